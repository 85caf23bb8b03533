//! Requests through handoffs: each ends once, and as it must.

use crate::door::{Door, Ended, HangUp, Report, Wanted};
use crate::draw::{Draw, is_full, say, seed};
use crate::left;
use hotbunk_api::error::ErrorCode;
use hotbunk_api::journal::JournalEntry;
use hotbunk_api::operation::Initiator;
use hotbunk_api::words::{Drain, Strategy, Tier};
use hotbunk_tests::{Agent, PATIENCE, Setup, Switch};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Clients at work at once.
const CLIENTS: usize = 24;

/// Requests and handoffs.
fn size() -> (usize, usize) {
    if is_full() { (10_000, 200) } else { (400, 12) }
}

/// A handoff that was made, as the journal has it.
#[derive(Debug)]
struct Handoff {
    from: String,
    drain: String,
    by: String,
    /// On the boot's monotonic clock, ns.
    began: u64,
    ended: u64,
    ok: bool,
}

/// All handoffs since a mark, whoever asked for them.
async fn handoffs_since(agent: &Agent, mark: u64) -> Vec<Handoff> {
    let accepted = agent.entries("operation_accepted", mark).await;
    let ended = agent.entries("operation_ended", mark).await;
    let word = |record: &Value, key: &str| record[key].as_str().unwrap_or_default().to_owned();
    let moment = |record: &Value, key: &str| record[key].as_u64().expect("a moment, ns");
    let handoff = |entry: &JournalEntry| {
        let end = &ended.iter().find(|e| e.operation == entry.operation)?.record;
        Some(Handoff {
            from: entry.record["from"].as_str()?.to_owned(),
            drain: word(&entry.record, "drain"),
            by: word(&entry.record, "by"),
            began: moment(end, "accepted"),
            ended: moment(end, "ended"),
            ok: end["outcome"]["result"] == "ok",
        })
    };
    accepted.iter().filter_map(handoff).collect()
}

fn drawn(draw: &mut Draw, number: usize) -> Wanted {
    let role = if draw.once_in(2) { "A" } else { "B" };
    // Some outlast any handoff.
    let most = if draw.once_in(8) { 400 } else { 40 };
    let tokens = 1 + u32::try_from(draw.below(most)).unwrap_or(0);
    let stream = !draw.once_in(3);
    let hang_up = match draw.below(12) {
        0 => HangUp::After(Duration::from_millis(draw.below(60))),
        1 if stream => HangUp::AtToken(1 + usize::try_from(draw.below(u64::from(tokens))).unwrap_or(0)),
        _ => HangUp::No,
    };
    Wanted { role, prompt: format!("watch {number} of the night"), tokens, stream, hang_up, key: None }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_ends_once_and_correctly() {
    let (requests, handoffs) = size();
    let seed = seed(1);
    let node = Setup::pair().each(|e| e.line("min_residency = \"500ms\"").line("max_wait = \"5s\"")).build();
    let door = Door::of(&node);
    let agent = Arc::new(node.start().await);
    agent.until_up().await;
    let mark = agent.mark().await;
    let began = Instant::now();

    let mut draw = Draw::new(seed);
    let plan: Arc<Vec<Wanted>> = Arc::new((0..requests).map(|number| drawn(&mut draw, number)).collect());
    let (next, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (plan, next, done, door) =
                (Arc::clone(&plan), Arc::clone(&next), Arc::clone(&done), door.clone());
            tokio::spawn(async move {
                let mut reports = Vec::new();
                while let Some(wanted) = plan.get(next.fetch_add(1, Ordering::Relaxed)) {
                    reports.push((wanted.clone(), door.ask(wanted).await));
                    done.fetch_add(1, Ordering::Relaxed);
                }
                reports
            })
        })
        .collect();
    let driver = tokio::spawn(drive(Arc::clone(&agent), draw, handoffs, requests, done));
    let mut reports = Vec::new();
    for client in clients {
        reports.extend(client.await.expect("a client"));
    }
    driver.await.expect("the driver");
    agent.until_idle().await;
    let handoffs = handoffs_since(&agent, mark).await;
    show(seed, began.elapsed(), &reports, &handoffs);

    let wrong: Vec<String> = reports.iter().filter_map(|(w, r)| fault(w, r, &handoffs)).collect();
    assert!(wrong.is_empty(), "seed {seed}: {} requests ended wrongly:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(reports.len(), requests, "each once");
    let refused: Vec<&Handoff> = handoffs.iter().filter(|h| !h.ok).collect();
    assert!(refused.is_empty(), "seed {seed}: {refused:?}");
    left::nothing(&agent).await;
    left::nobody_came_asleep(&agent).await;
    assert_eq!(agent.incident_codes(mark).await, Vec::<String>::new());
    left::serves(&door).await;
    Arc::into_inner(agent).expect("the only one").stop().await;
}

/// Handoffs to and fro, spread over all requests, by every strategy and drain policy in turns. The gateway makes some of
/// its own meanwhile.
async fn drive(agent: Arc<Agent>, mut draw: Draw, handoffs: usize, requests: usize, done: Arc<AtomicUsize>) {
    for number in 0..handoffs {
        // Where all clients wait for the model that sleeps, the count stands still until it is woken.
        let due = Instant::now() + Duration::from_millis(300);
        while done.load(Ordering::Relaxed) < requests * number / handoffs && Instant::now() < due {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let drain = [Drain::Wait, Drain::Freeze, Drain::Abort][number % 3];
        let strategies = [Strategy::SleepFirst, Strategy::WakeFirst, Strategy::Park, Strategy::Auto];
        let strategy = strategies[usize::try_from(draw.below(4)).unwrap_or(0)];
        let leave = if strategy == Strategy::Park || draw.once_in(2) { Tier::Parked } else { Tier::Level1 };
        let end = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < end, "handoff {number} cannot be made");
            let awake = agent.engine("A").await.tier == Some(Tier::Awake);
            let wish = Switch::to(if awake { "B" } else { "A" });
            let wish = wish.strategy(strategy).leave(leave).drain(drain).deadline_s(20.0);
            let begun = match agent.submit(wish).await {
                Ok(begun) => begun,
                Err(busy) if busy.code == ErrorCode::Busy => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    continue;
                }
                Err(other) => panic!("handoff {number} ({strategy}, {leave}, {drain}) is refused: {other:?}"),
            };
            let operation = agent.wait(&begun.id).await;
            assert!(operation.error.is_none(), "handoff {number}: {operation:#?}");
            // Not one of the gateway's that it joined, nor one that had nothing to do.
            if operation.from.is_some() && matches!(operation.initiator, Initiator::Operator { .. }) {
                break;
            }
        }
    }
}

/// What is wrong with how a request ended; `None` where nothing is.
fn fault(wanted: &Wanted, report: &Report, handoffs: &[Handoff]) -> Option<String> {
    let ended = match &report.ended {
        Err(why) => return Some(why.clone()),
        Ok(ended) => ended,
    };
    // Whatever of its engine's requests is ended by policy.
    let aborts = handoffs.iter().filter(|h| {
        h.drain == "abort"
            && h.from == wanted.role
            && h.began <= report.ended_ns
            && h.ended >= report.began_ns
    });
    let aborts = aborts.count();
    let fine = match ended {
        Ended::Whole => true,
        Ended::HungUp => wanted.hang_up != HangUp::No,
        // A stream that has begun cannot be asked for again.
        Ended::Broken(_) => wanted.stream && aborts > 0,
        // What got no byte is asked for again, once.
        Ended::Refused(503, _) => aborts > if wanted.stream { 0 } else { 1 },
        Ended::Refused(..) => false,
    };
    (!fine).then(|| format!("{wanted:?}: {ended:?} with {aborts} handoffs that abort"))
}

fn show(seed: u64, took: Duration, reports: &[(Wanted, Report)], handoffs: &[Handoff]) {
    let mut ends: BTreeMap<(String, &str), usize> = BTreeMap::new();
    for (wanted, report) in reports {
        let end = match &report.ended {
            Err(_) => "WRONG".to_owned(),
            Ok(Ended::Whole) => "whole".to_owned(),
            Ok(Ended::HungUp) => "hung up".to_owned(),
            Ok(Ended::Broken(why)) => format!("error event: {}", why.code),
            Ok(Ended::Refused(status, why)) => format!("{status}: {}", why.code),
        };
        *ends.entry((end, if wanted.stream { "stream" } else { "plain" })).or_default() += 1;
    }
    say(&format!(
        "{} requests, {} handoffs, seed {seed}, {:.1} s",
        reports.len(),
        handoffs.len(),
        took.as_secs_f64()
    ));
    for ((end, kind), count) in ends {
        say(&format!("  {count:>6} {kind:<7} {end}"));
    }
    let mut kinds: BTreeMap<(&str, &str), Vec<&Handoff>> = BTreeMap::new();
    handoffs.iter().for_each(|h| kinds.entry((h.drain.as_str(), h.by.as_str())).or_default().push(h));
    for ((drain, by), of) in kinds {
        let longest = of.iter().map(|h| h.ended - h.began).max().unwrap_or(0) as f64 / 1e6;
        let failed = of.iter().filter(|h| !h.ok).count();
        say(&format!(
            "  {:>6} handoffs by {drain} for the {by}, the longest {longest:.0} ms, {failed} failed",
            of.len()
        ));
    }
    let comments: usize = reports.iter().map(|(_, r)| r.comments).sum();
    let mut firsts: Vec<Duration> = reports.iter().filter_map(|(_, r)| r.first).collect();
    firsts.sort();
    let at = |share: usize| {
        firsts.get(firsts.len() * share / 100).copied().unwrap_or_default().as_secs_f64() * 1e3
    };
    say(&format!(
        "  first content after {:.0} ms (median), {:.0} ms (99 %); {comments} comments",
        at(50),
        at(99)
    ));
}
