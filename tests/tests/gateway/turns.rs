//! Whose turn it is, with real requests: bounds on switching and on waiting hold whatever clients do.

use crate::door::{Door, Ended, HangUp, Report, Wanted};
use crate::draw::{is_full, say};
use crate::left;
use hotbunk_api::words::Tier;
use hotbunk_tests::{Agent, Engine, Setup, Switch, until};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// What a loaded machine may add to a wait before it is somebody's fault.
fn slack() -> Duration {
    if is_full() { Duration::from_millis(500) } else { Duration::from_secs(3) }
}

fn wanted(role: &'static str, number: usize, tokens: u32, key: Option<&'static str>) -> Wanted {
    let prompt = format!("turn {number} of {role}");
    Wanted { role, prompt, tokens, stream: false, hang_up: HangUp::No, key }
}

/// Engine times are divided by this from now on.
async fn set_speed(agent: &Agent, speed: f64) {
    for engine in agent.node.engines() {
        let url = format!("http://127.0.0.1:{}/sim/speed", engine.port());
        let body = serde_json::json!({ "speed": speed });
        let answer = reqwest::Client::new().post(url).json(&body).send().await.expect("an answer");
        assert_eq!(answer.status(), 200);
    }
}

/// Handoffs since a mark: how long each took.
async fn switches(agent: &Agent, mark: u64) -> Vec<Duration> {
    let ended = agent.entries("operation_ended", mark).await;
    let accepted = agent.entries("operation_accepted", mark).await;
    let by_gateway = accepted.iter().filter(|e| e.record["by"] == "gateway").map(|e| e.operation);
    let by_gateway: Vec<Option<u64>> = by_gateway.collect();
    let moment = |record: &serde_json::Value, key: &str| record[key].as_u64().expect("a moment, ns");
    let took = |record| Duration::from_nanos(moment(record, "ended") - moment(record, "accepted"));
    ended.iter().filter(|e| by_gateway.contains(&e.operation)).map(|e| took(&e.record)).collect()
}

fn whole(reports: &[Report]) {
    let wrong: Vec<String> =
        reports.iter().filter(|r| r.ended != Ok(Ended::Whole)).map(|r| format!("{:?}", r.ended)).collect();
    assert!(wrong.is_empty(), "{} of {} are not whole:\n{}", wrong.len(), reports.len(), wrong.join("\n"));
}

/// Two models, a request for the other one every 200 ms, for a minute, with switches of about 3 s; the short run ten
/// times faster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alternating_models_do_not_thrash() {
    let scale = if is_full() { 1.0 } else { 0.1 };
    let scaled = |seconds: f64| Duration::from_secs_f64(seconds * scale);
    let (residency, max_wait, every) = (scaled(5.0), scaled(20.0), scaled(0.2));
    let node = Setup::pair()
        .gateway_line("hold_deadline = \"5m\"")
        .policy_line("strategy = \"sleep-first\"")
        .each(|e| {
            e.line(&format!("min_residency = \"{}ms\"", residency.as_millis()))
                .line(&format!("max_wait = \"{}ms\"", max_wait.as_millis()))
        })
        .build();
    let door = Door::of(&node);
    let agent = node.start().await;
    agent.until_up().await;
    set_speed(&agent, 0.6 / scale).await;
    let mark = agent.mark().await;

    let began = Instant::now();
    let mut asked = JoinSet::new();
    let mut beat = tokio::time::interval(every);
    for number in 0..300 {
        beat.tick().await;
        let (door, wanted) = (door.clone(), wanted(["A", "B"][number % 2], number, 2, None));
        asked.spawn(async move { door.ask(&wanted).await });
    }
    let reports = asked.join_all().await;
    let took = began.elapsed();
    whole(&reports);
    agent.until_idle().await;

    let switches = switches(&agent, mark).await;
    let (shortest, longest) = (switches.iter().min(), switches.iter().max());
    let (shortest, longest) = (*shortest.expect("a switch"), *longest.expect("a switch"));
    let waits = reports.iter().map(|r| r.took).max().expect("a request");
    let most = took.as_secs_f64() / (shortest + residency).as_secs_f64() + 1.0;
    let bound = max_wait + longest;
    say(&format!(
        "300 requests for two models in turns, one every {every:?}, over {took:.1?}: {} switches of {shortest:.2?} to \
         {longest:.2?} (residency {residency:.1?}: at most {most:.1}); longest wait {waits:.2?} (at most {bound:.2?})",
        switches.len()
    ));
    assert!(switches.len() as f64 <= most, "{} switches, {most} are the most", switches.len());
    assert!(waits <= bound + slack(), "a request waited {waits:?}, {bound:?} is the most");
    left::nobody_came_asleep(&agent).await;
    left::nothing(&agent).await;
    agent.stop().await;
}

/// A steady flow for A never ends, and B is served all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_request_is_served_against_a_steady_flow() {
    let max_wait = Duration::from_secs(2);
    let node = Setup::pair().each(|e| e.line("min_residency = \"200ms\"").line("max_wait = \"2s\"")).build();
    let door = Door::of(&node);
    let agent = node.start().await;
    agent.until_up().await;
    let mark = agent.mark().await;

    let goes_on = Arc::new(AtomicBool::new(true));
    let answered = Arc::new(AtomicUsize::new(0));
    let flow = {
        let (door, goes_on, answered) = (door.clone(), Arc::clone(&goes_on), Arc::clone(&answered));
        tokio::spawn(async move {
            let (mut asked, mut beat) = (JoinSet::new(), tokio::time::interval(Duration::from_millis(200)));
            for number in 0.. {
                beat.tick().await;
                if !goes_on.load(Ordering::Relaxed) {
                    break;
                }
                let (door, answered) = (door.clone(), Arc::clone(&answered));
                let wanted = wanted("A", number, 4, None);
                asked.spawn(async move {
                    let report = door.ask(&wanted).await;
                    answered.fetch_add(1, Ordering::Relaxed);
                    report
                });
            }
            asked.join_all().await
        })
    };
    until("the flow to be steady", async || answered.load(Ordering::Relaxed) >= 5).await;
    let one = door.ask(&wanted("B", 0, 4, None)).await;
    // A gets its turn back, for the flow waits now.
    agent.until_at("A", Tier::Awake).await;
    goes_on.store(false, Ordering::Relaxed);
    let flow = flow.await.expect("the flow");
    whole(std::slice::from_ref(&one));
    whole(&flow);
    let switches = switches(&agent, mark).await;
    let longest = switches.iter().max().copied().unwrap_or_default();
    say(&format!(
        "one request for B against 5 a second for A: served after {:.2?} (max_wait {max_wait:?}, longest switch \
         {longest:.2?})",
        one.took
    ));
    assert!(one.took <= max_wait + longest + slack(), "it waited {:?}", one.took);
    left::nobody_came_asleep(&agent).await;
    left::nothing(&agent).await;
    agent.stop().await;
}

const X: &str = "key-of-x";
const Y: &str = "key-of-y";
/// At once, of X's flood.
const FLOOD: usize = 200;
/// What X may have running.
const LIMIT: usize = 4;

fn tenants() -> String {
    format!(
        "\n[[tenant]]\nname = \"x\"\nmax_in_flight = {LIMIT}\n\
         key_sha256 = \"6ae6f59b80cfaa5643ab717da8de635225aa7656955799346c7da2213bad54da\"\n\
         \n[[tenant]]\nname = \"y\"\n\
         key_sha256 = \"dfddde2388f187c97de4319de072d4ea9bfb4c061357da1a86eb608e1268a92f\"\n"
    )
}

/// Y asks, one request after the other.
async fn steadily(door: &Door, count: usize) -> Vec<Report> {
    let mut reports = Vec::new();
    for number in 0..count {
        reports.push(door.ask(&wanted("A", number, 48, Some(Y))).await);
    }
    reports
}

fn p95(reports: &[Report]) -> Duration {
    let mut took: Vec<Duration> = reports.iter().map(|r| r.took).collect();
    took.sort();
    took[(took.len() * 95).div_ceil(100) - 1]
}

/// X floods with long requests, as often as it is refused; Y does not notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_tenants_flood_does_not_delay_another() {
    // At a pace at which the engine's time is what counts, or quickly.
    let (speed, count) = if is_full() { (4.0, 60) } else { (50.0, 12) };
    let node = Setup::pair().tables(&tenants()).build();
    let door = Door::of(&node);
    let agent = node.start().await;
    agent.until_up().await;
    set_speed(&agent, speed).await;
    let alone = steadily(&door, count).await;

    let goes_on = Arc::new(AtomicBool::new(true));
    let mut flood = JoinSet::new();
    for number in 0..FLOOD {
        let (door, goes_on) = (door.clone(), Arc::clone(&goes_on));
        flood.spawn(async move {
            let (mut refused, mut served) = (0_usize, 0_usize);
            while goes_on.load(Ordering::Relaxed) {
                let mut wanted = wanted("A", number, 400, Some(X));
                wanted.prompt.push_str(" by X");
                match door.ask(&wanted).await.ended {
                    Ok(Ended::Whole) => served += 1,
                    Ok(Ended::Refused(429, _)) => {
                        refused += 1;
                        // The least that it may be told.
                        tokio::time::sleep(Duration::from_secs(1)).await;
                    }
                    other => panic!("{other:?}"),
                }
            }
            (served, refused)
        });
    }
    let a = node.engine("A").clone();
    let limit = LIMIT as f64;
    until("the flood to fill what it may", async || running(&a).await == limit).await;
    let most = tokio::spawn(async move {
        let mut most = 0.0_f64;
        for _ in 0..20 {
            most = most.max(running(&a).await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        most
    });
    let flooded = steadily(&door, count).await;
    let most = most.await.expect("the look");
    goes_on.store(false, Ordering::Relaxed);
    let (served, refused) =
        flood.join_all().await.into_iter().fold((0, 0), |(s, r), one| (s + one.0, r + one.1));

    whole(&alone);
    whole(&flooded);
    let ratio = p95(&flooded).as_secs_f64() / p95(&alone).as_secs_f64();
    say(&format!(
        "{FLOOD} clients of X ({served} served, {refused} refused, {most} running at most with Y's): Y's p95 {:.1?} \
         alone, {:.1?} in the flood: {ratio:.2} times",
        p95(&alone),
        p95(&flooded),
    ));
    assert!(refused > 0, "nobody was refused");
    assert!(most <= limit + 1.0, "{most} ran at once");
    if is_full() {
        assert!(ratio <= 1.2, "{ratio} times");
    }
    left::nothing(&agent).await;
    agent.stop().await;
}

async fn running(engine: &Engine) -> f64 {
    engine.metric("vllm:num_requests_running").await.unwrap_or(0.0)
}

/// X has more waiting for a model that sleeps than anybody; Y's one request goes in with the first when it wakes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_tenants_queue_does_not_stand_before_another() {
    let node = Setup::pair()
        .tables(&tenants())
        // A has its residency before it: B stays asleep until the operator wakes it, when all of them wait.
        .engine("A", |e| e.line("min_residency = \"2m\""))
        .engine("B", |e| e.line("max_wait = \"5m\""))
        .gateway_line("hold_deadline = \"5m\"")
        .build();
    let door = Door::of(&node);
    let agent = node.start().await;
    agent.until_up().await;
    let waits = async |count: u32| {
        until("requests to wait", async || left::load(&agent).await[1].1 >= count).await;
    };
    let ask = |number: usize, key| {
        let (door, wanted) = (door.clone(), wanted("B", number, 30, Some(key)));
        tokio::spawn(async move {
            let report = door.ask(&wanted).await;
            (Instant::now(), report)
        })
    };
    let many = 100;
    let xs: Vec<_> = (0..many).map(|number| ask(number, X)).collect();
    waits(100).await;
    let y = ask(many, Y);
    waits(101).await;
    agent.done(Switch::to("B")).await;
    let (y_ended, y) = y.await.expect("Y");
    whole(std::slice::from_ref(&y));
    let mut before = 0;
    for x in xs {
        let (ended, x) = x.await.expect("X");
        whole(std::slice::from_ref(&x));
        before += usize::from(ended < y_ended);
    }
    say(&format!("{many} requests of X waited for B before Y's one: {before} of them ended before it"));
    // Those that ran when it went in, and some rounds that may have been quicker on a busy machine; in the order of their
    // coming it would be all of them.
    assert!(before <= many / 2, "{before} of X's ended before Y's one");
    left::nobody_came_asleep(&agent).await;
    left::nothing(&agent).await;
    agent.stop().await;
}
