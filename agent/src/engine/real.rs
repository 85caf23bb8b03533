//! The client against a real vLLM server, by hand:
//! `HOTBUNK_REAL_ENGINE=http://127.0.0.1:8101 HOTBUNK_REAL_MODEL=A cargo test -p hotbunk-agent --lib engine::real -- --ignored --nocapture`
//!
//! Any server of 0.31 or later that is awake and serves nobody else will do, the CPU build included (it moves no memory,
//! but its API server, scheduler and control flow are the real ones). One test, since it changes the server's state.

#![expect(clippy::print_stderr, reason = "a run by hand is made to be read")]

use super::*;
use hotbunk_core::call::{Call, CallOutcome, Mode, SleepLevel, SleepingAnswer, WakeTags};
use hotbunk_measure::load::{RoundSpec, run_round};
use hotbunk_measure::{Api, ProbeSpec, Timed};
use std::env;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(120);

fn sleep(level: SleepLevel, mode: Mode) -> Call {
    Call::Sleep { level, mode: Some(mode) }
}

async fn accepted(client: &Client, call: Call) {
    let began = Instant::now();
    let outcome = client.call(call, LONG).await;
    eprintln!("{call:?}: {outcome:?} in {:.1} ms", began.elapsed().as_secs_f64() * 1e3);
    assert!(matches!(outcome, CallOutcome::Accepted { .. }), "{call:?}: {outcome:?}");
}

async fn is_asleep(client: &Client, expected: bool) {
    assert_eq!(client.is_sleeping(LONG).await, SleepingAnswer::Says { is_sleeping: expected });
}

async fn sings(client: &Client, canary: &Canary, depth: Depth) {
    let result = client.probe(ProbeKind::Canary { recorded: canary, depth }, LONG).await;
    let ms = result.first_token.map(|t| t.since(result.sent).as_secs_f64() * 1e3);
    eprintln!("canary {depth:?}: {:?}, first token after {ms:?} ms", result.end);
    assert_eq!(result.end, ProbeEnd::Matched);
}

async fn long_answer(target: hotbunk_measure::Target) -> Timed {
    let spec = ProbeSpec { max_tokens: 1800, detail: true, ..ProbeSpec::one_token("The sea at night", LONG) };
    hotbunk_measure::probe(&target, &spec).await
}

/// Starts the long answer and waits until the engine has generated some of it. Tokens are counted, not looked for in
/// the gauge of running requests: a poller that is kept from running may miss a level that comes and goes, not a count.
async fn stream_under_way(client: &Client) -> tokio::task::JoinHandle<Timed> {
    let generated = async || client.progress(LONG).await.unwrap().generated.unwrap_or(0);
    let before = generated().await;
    let stream = tokio::spawn(long_answer(client.target().clone()));
    let began = Instant::now();
    while generated().await <= before {
        assert!(began.elapsed() < LONG, "nothing is generated");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!stream.is_finished(), "the stream ended before it could be disturbed");
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM server, named by HOTBUNK_REAL_ENGINE"]
async fn a_real_server_behaves_as_the_contract_says() {
    let base = env::var("HOTBUNK_REAL_ENGINE").expect("HOTBUNK_REAL_ENGINE names the server");
    let model = env::var("HOTBUNK_REAL_MODEL").unwrap_or_else(|_| "A".into());
    let client =
        Client::new(Endpoint { base, model: model.clone(), api_key: None, load_tracking: false }).unwrap();

    assert_eq!(client.health(LONG).await, Health::Ok);
    let began = Instant::now();
    let found = client.detect(None, LONG).await.unwrap();
    eprintln!("{found:?} in {:?}", began.elapsed());
    let can = found.capabilities;
    assert!(can.can_park() && can.can_level2() && can.can_freeze_into_level1());
    let probed = client.probe_routes(http::Budget::new(LONG)).await.unwrap();
    assert_eq!(probed, can.routes, "probing finds what the document lists");
    assert!(matches!(client.identify(&model, LONG).await, Identity::Ours { max_model_len: Some(_) }));
    assert_eq!(client.identify("other", LONG).await, Identity::Foreign { models: vec![model] });
    is_asleep(&client, false).await;

    let warm = client.warm_up(3, LONG).await;
    for w in &warm {
        eprintln!("warm-up: {:?} {:?}", w.end, w.ended.since(w.sent));
    }
    assert!(warm.iter().all(ProbeResult::ok));
    let (_, canary) = client.record_canary(LONG).await;
    let canary = canary.unwrap();
    for expected in canary.recorded() {
        eprintln!("canary: {expected}");
    }

    eprintln!("-- level 1");
    let before = client.progress(LONG).await.unwrap().operations;
    accepted(&client, sleep(SleepLevel::L1, Mode::Wait)).await;
    is_asleep(&client, true).await;
    assert_eq!(client.progress(LONG).await.unwrap().sleep_state, Some(SleepState::WeightsOffloaded));
    accepted(&client, Call::WakeUp { tags: WakeTags::All }).await;
    is_asleep(&client, false).await;
    let after = client.progress(LONG).await.unwrap().operations;
    let took = after.sleep.and_then(|op| op.took_since(before.sleep));
    eprintln!("sleep by the engine's own clock: {took:?}");
    assert!(took.is_some(), "0.32 and later tell their own times");
    sings(&client, &canary, Depth::First).await;

    eprintln!("-- level 2");
    accepted(&client, sleep(SleepLevel::L2, Mode::Wait)).await;
    accepted(&client, Call::WakeUp { tags: WakeTags::Weights }).await;
    is_asleep(&client, true).await;
    accepted(&client, Call::ReloadWeights).await;
    accepted(&client, Call::WakeUp { tags: WakeTags::KvCache }).await;
    accepted(&client, Call::ResetPrefixCache).await;
    is_asleep(&client, false).await;
    sings(&client, &canary, Depth::All).await;

    eprintln!("-- parked");
    accepted(&client, sleep(SleepLevel::L0, Mode::Wait)).await;
    is_asleep(&client, true).await;
    assert_eq!(client.progress(LONG).await.unwrap().sleep_state, Some(SleepState::Neither));
    let released = client.call(Call::ReleaseKvCache, LONG).await;
    eprintln!("release: {released:?} (the CPU build refuses unless its worker is stubbed)");
    is_asleep(&client, true).await;
    accepted(&client, Call::WakeUp { tags: WakeTags::KvCache }).await;
    is_asleep(&client, false).await;
    sings(&client, &canary, Depth::First).await;

    eprintln!("-- pause, resume");
    accepted(&client, Call::Pause { mode: Mode::Wait }).await;
    is_asleep(&client, true).await;
    accepted(&client, Call::Resume).await;
    is_asleep(&client, false).await;

    eprintln!("-- a sleep that is not waited for");
    let cut = client.call(sleep(SleepLevel::L1, Mode::Wait), Duration::from_millis(100)).await;
    eprintln!("{cut:?}, operations {:?}", client.progress(LONG).await.unwrap().operations.sleep);
    is_asleep(&client, true).await;
    let (asleep, began) = (client.probe(ProbeKind::FirstToken, Duration::from_secs(1)).await, Instant::now());
    assert_eq!(asleep.end, ProbeEnd::Unknown, "a sleeping engine lets requests hang");
    accepted(&client, Call::WakeUp { tags: WakeTags::All }).await;
    eprintln!(
        "drain after a hung probe: {:?} in {:?}",
        client.drain(can, DrainPolicy::Wait, LONG).await,
        began.elapsed()
    );

    eprintln!("-- a frozen stream");
    let undisturbed = long_answer(client.target().clone()).await;
    assert!(undisturbed.ok(), "{:?}", undisturbed.error);
    let stream = stream_under_way(&client).await;
    accepted(&client, sleep(SleepLevel::L0, Mode::Keep)).await;
    eprintln!("in flight while frozen: {:?}", client.in_flight(LONG).await);
    eprintln!("release: {:?}", client.call(Call::ReleaseKvCache, LONG).await);
    is_asleep(&client, true).await;
    assert!(!stream.is_finished());
    accepted(&client, Call::WakeUp { tags: WakeTags::KvCache }).await;
    let frozen = stream.await.unwrap();
    assert!(frozen.ok(), "{:?}", frozen.error);
    eprintln!("frozen: {:?} tokens, undisturbed: {:?}", frozen.output_tokens, undisturbed.output_tokens);
    assert_eq!(frozen.text, undisturbed.text);

    eprintln!("-- an aborted stream");
    let stream = stream_under_way(&client).await;
    accepted(&client, sleep(SleepLevel::L1, Mode::Abort)).await;
    let aborted = stream.await.unwrap();
    eprintln!("aborted: {:?} after {:?} tokens", aborted.error, aborted.output_tokens);
    assert_eq!(aborted.error, Some(hotbunk_measure::Error::Aborted));
    accepted(&client, Call::WakeUp { tags: WakeTags::All }).await;

    eprintln!("-- drain");
    let stream = stream_under_way(&client).await;
    let began = Instant::now();
    assert_eq!(client.drain(can, DrainPolicy::Wait, LONG).await, Drain::Drained);
    eprintln!("drained in {:?}, stream finished: {}", began.elapsed(), stream.is_finished());
    let ended = stream.await.unwrap();
    assert!(ended.ok());

    eprintln!("-- a round");
    let spec = RoundSpec {
        api: Api::Chat,
        requests: 8,
        concurrency: 4,
        output_tokens: 32,
        prompt: "The sea at night".into(),
        ignore_eos: true,
        deadline: LONG,
    };
    let round = run_round(client.target(), &spec).await.unwrap();
    for r in &round.results {
        let ttft = r.first_token.map(|t| (t - r.began) as f64 / 1e6);
        eprintln!("ttft {ttft:?} ms, {:?} of {:?} tokens, {:?}", r.output_tokens, r.prompt_tokens, r.error);
    }
    assert!(round.passed() && round.results.iter().all(|r| r.output_tokens == Some(32)));

    let model = client.endpoint().model.clone();
    let wrong = Client::new(Endpoint { model: format!("{model}-not"), ..client.endpoint().clone() }).unwrap();
    let ProbeEnd::Failed(e) = wrong.probe(ProbeKind::FirstToken, LONG).await.end else { panic!("served") };
    eprintln!("{e}");
    assert_eq!(e.status(), Some(404));
}
