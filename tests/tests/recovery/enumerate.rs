//! One operation, killed after every transaction that it commits to the journal, each time with a new agent afterwards.
//!
//! A first undisturbed run tells which transactions there are. Then the agent is killed right after each of them (nothing
//! of what follows has been asked of the engines), and again a moment later (it has been, and nobody hears the answer).

use hotbunk_api::operation::{OperationRequest, Submit};
use hotbunk_api::status::{Condition, Status};
use hotbunk_api::words::{State, Tier};
use hotbunk_tests::{Agent, MIB, Node, Setup, until};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Write as _;
use std::time::Duration;

/// Milliseconds after a commit that are "a moment later".
const LATER: u64 = 12;

/// Where the agent is killed: after so many records, and so many milliseconds.
#[derive(Debug, Clone)]
struct Point {
    records: usize,
    delay: u64,
    /// Kinds of the transaction.
    kinds: String,
}

/// What is asked again and again.
struct Ask {
    what: &'static str,
    request: OperationRequest,
    /// The engine whose process it ends, if any.
    ends: Option<&'static str>,
    points: Option<VecDeque<Point>>,
    /// Who is awake afterwards.
    then: BTreeSet<String>,
}

/// An operation that leads from one state to the next of a circle of states.
pub(crate) fn ask(
    what: &'static str,
    request: impl Into<OperationRequest>,
) -> (&'static str, OperationRequest) {
    (what, request.into())
}

/// What was counted.
#[derive(Debug, Default)]
pub(crate) struct Table {
    killed: u32,
    finished: u32,
    rolled_back: u32,
    kinds: BTreeSet<String>,
    took: Vec<Duration>,
}

/// Kills the agent in each of the operations at each point; every one leads from the state that the one before it leaves.
pub(crate) async fn everywhere(
    name: &str,
    setup: Setup,
    asks: Vec<(&'static str, OperationRequest)>,
    ends: Option<&'static str>,
) {
    let later = if all() { 1 } else { 4 };
    let node = setup.env("HOTBUNK_DIE_AFTER_RECORD", "{dir}/die").build();
    let mut agent = node.start().await;
    agent.until_up().await;
    let mut asks: Vec<Ask> = asks
        .into_iter()
        .map(|(what, request)| Ask { what, request, ends, points: None, then: BTreeSet::new() })
        .collect();
    // Once around, so that everything has been measured and learned, and once to see what is committed.
    for _ in 0..2 {
        for ask in &mut asks {
            let mark = agent.mark().await;
            agent.done(ask.request.clone()).await;
            agent.until_idle().await;
            ask.then = awake(&agent.status().await);
            ask.points = Some(points(&agent, mark, later).await);
        }
    }
    let mut tables: BTreeMap<&'static str, Table> = BTreeMap::new();
    let mut at = 0;
    while asks.iter().any(|ask| ask.points.as_ref().is_some_and(|p| !p.is_empty())) {
        let index = at % asks.len();
        let ask = &mut asks[index];
        let Some(point) = ask.points.as_mut().and_then(VecDeque::pop_front) else {
            agent.done(ask.request.clone()).await;
            at += 1;
            continue;
        };
        let table = tables.entry(ask.what).or_default();
        let (next, finished) = killed(&node, agent, ask, &point, table).await;
        agent = next;
        // What was rolled back is as it was before.
        at += usize::from(finished);
    }
    agent.stop().await;
    for (what, table) in &tables {
        let most = table.took.iter().max().copied().unwrap_or_default();
        let mean = table.took.iter().sum::<Duration>() / u32::try_from(table.took.len()).unwrap_or(1).max(1);
        let _ = writeln!(
            std::io::stderr(),
            "recovery {name}, {what}: killed {}, recovered {} (finished {}, rolled back {}); {} kinds of transaction; \
             recovered after {:.0} ms, at most {:.0} ms",
            table.killed,
            table.finished + table.rolled_back,
            table.finished,
            table.rolled_back,
            table.kinds.len(),
            mean.as_secs_f64() * 1e3,
            most.as_secs_f64() * 1e3,
        );
        assert_eq!(table.killed, table.finished + table.rolled_back);
    }
}

/// Whether nothing is to be left out.
pub(crate) fn all() -> bool {
    std::env::var_os("HOTBUNK_RECOVERY_ALL").is_some()
}

/// Every transaction since `mark`, up to and including the one with the operation's end.
async fn points(agent: &Agent, mark: u64, later: usize) -> VecDeque<Point> {
    // The engines' work is recorded beside the way, after the end.
    until("the operation's last record", async || !agent.entries("engine_work", mark).await.is_empty()).await;
    let query = hotbunk_api::journal::JournalQuery {
        after: Some(mark),
        limit: Some(hotbunk_api::journal::JournalQuery::MAX_LIMIT),
        ..Default::default()
    };
    let entries = agent.api.journal(&query).await.expect("the journal").entries;
    let mut points: Vec<Point> = Vec::new();
    let mut last = None;
    for (index, entry) in entries.iter().enumerate() {
        let kind = entry.record["kind"].as_str().unwrap_or_default();
        let phase = entry.record["phase"].as_str().unwrap_or_default();
        let word = if phase.is_empty() { kind.to_owned() } else { format!("{kind}:{phase}") };
        // What was committed together was made at one instant.
        match points.last_mut().filter(|_| last == Some(entry.at)) {
            Some(point) => {
                point.records = index + 1;
                point.kinds += &format!("+{word}");
            }
            None => points.push(Point { records: index + 1, delay: 0, kinds: word }),
        }
        last = Some(entry.at);
    }
    let moments_later: Vec<Point> =
        points.iter().step_by(later).map(|p| Point { delay: LATER, ..p.clone() }).collect();
    points.into_iter().chain(moments_later).collect()
}

fn awake(status: &Status) -> BTreeSet<String> {
    let awake = status.engines.iter().filter(|e| e.tier == Some(Tier::Awake));
    awake.filter(|e| e.condition == Condition::Settled).map(|e| e.name.clone()).collect()
}

fn leaders(status: &Status) -> BTreeMap<String, u32> {
    let of = status.engines.iter().filter_map(|e| Some((e.name.clone(), e.incarnation.as_ref()?.pid)));
    of.collect()
}

/// One operation, one kill, one new agent; whether the operation was finished.
async fn killed(node: &Node, mut agent: Agent, ask: &Ask, point: &Point, table: &mut Table) -> (Agent, bool) {
    let before = agent.status().await;
    let (mark, id) =
        (agent.mark().await, format!("op-{}-{}", table.killed, ask.what.replace([' ', '→'], "-")));
    let place =
        format!("{} after {} records (+{} ms): {}", ask.what, point.records, point.delay, point.kinds);
    std::fs::write(node.dir().join("die.next"), format!("{} {}", point.records, point.delay))
        .expect("written");
    std::fs::rename(node.dir().join("die.next"), node.dir().join("die")).expect("in place");
    let submit = Submit { id: Some(id.clone()), request: ask.request.clone() };
    // There may be nobody left to answer.
    drop(agent.api.submit(&submit).await);
    // An operation may need fewer records than the one that was looked at; then it is killed after its end.
    let mut waited = Duration::ZERO;
    while agent.is_running() {
        if waited > Duration::from_secs(20) {
            agent.signal(rustix::process::Signal::KILL);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        waited += Duration::from_millis(5);
    }
    drop(std::fs::remove_file(node.dir().join("die")));
    agent.kill().await;
    table.killed += 1;
    table.kinds.extend(point.kinds.split('+').map(str::to_owned));

    let agent = node.start().await;
    let recovered = async || agent.entries("recovered", mark).await.pop();
    until("the new agent to have recovered", async || recovered().await.is_some()).await;
    let recovered = recovered().await.expect("it is there");
    let at = |key: &str| recovered.record[key].as_u64().unwrap_or_default();
    table.took.push(Duration::from_nanos(at("recovered") - at("began")));
    // The id that its client chose is known, and leads to an end.
    let accepted = !agent.entries("operation_accepted", mark).await.is_empty();
    let operation = agent.wait(&id).await;
    agent.until_idle().await;
    assert!(accepted, "{place}");
    let ended = agent.entries("operation_ended", mark).await;
    let ends = ended.iter().filter(|e| e.operation == operation.number).count();
    assert_eq!(ends, 1, "{place}: one end: {ended:#?}");
    let incidents = agent.incident_codes(mark).await;
    assert!(incidents.is_empty(), "{place}: {incidents:?}\n{}", agent.log());
    let finished = operation.state == State::Succeeded;
    let after = agent.status().await;
    let expected = if finished { ask.then.clone() } else { awake(&before) };
    assert_eq!(awake(&after), expected, "{place}: who serves; {operation:#?}\n{}", agent.log());
    for name in awake(&after) {
        node.engine(&name).serves().await;
    }
    // Whoever served is the same process as before.
    let now = leaders(&after);
    for (name, pid) in leaders(&before).iter().filter(|(name, _)| ask.ends != Some(name.as_str())) {
        assert_eq!(now.get(name), Some(pid), "{place}: {name} was started again\n{}", agent.log());
    }
    let (held, used) = (after.devices[0].held_bytes.unwrap_or_default(), node.used());
    assert!(held.abs_diff(used) <= 256 * MIB, "{place}: {held} held, {used} used");
    // Nothing is left of what is gone, and of what is there nothing is missing.
    until(&format!("{place}: no shim too many"), async || {
        node.living().iter().filter(|p| p.command.contains(" shim ")).count() == now.len()
    })
    .await;
    for engine in node.engines() {
        let tree = node.tree(engine.name());
        assert_eq!(tree.is_empty(), !now.contains_key(engine.name()), "{place}: {tree:?}");
        assert!(tree.len() <= 3, "{place}: {tree:?}");
    }
    if finished {
        table.finished += 1
    } else {
        table.rolled_back += 1
    }
    (agent, finished)
}
