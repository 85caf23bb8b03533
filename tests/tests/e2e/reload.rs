//! A changed configuration under a running agent: what is unchanged is not touched, what has changed comes when it may.

use hotbunk_api::error::ExitCode;
use hotbunk_api::reload::ReloadOutcome;
use hotbunk_api::status::Settings;
use hotbunk_api::words::Tier;
use hotbunk_tests::{Agent, EngineSetup, Node, Setup, changes, ctl, start, until};
use rustix::process::Signal;

/// The pair, slow enough that a stream lasts: a token of A takes a millisecond.
async fn pair() -> (Node, Agent) {
    let node = Setup::pair().each(|e| e.speed(40.0)).build();
    let agent = node.start().await;
    agent.until_up().await;
    (node, agent)
}

/// Tokens of a stream that lasts for some seconds.
const LONG: u32 = 3000;

async fn until_version(agent: &Agent, engine: &str, version: &str) {
    until("the new release", async || {
        let engine = agent.engine(engine).await;
        engine.version.is_some_and(|v| v.starts_with(version)) && engine.settings == Settings::InForce
    })
    .await;
}

async fn has_model(node: &Node, engine: &str) -> bool {
    let url = format!("http://127.0.0.1:{}/v1/models", node.gateway_port());
    let text = reqwest::get(url).await.unwrap().text().await.unwrap();
    text.contains(&format!("\"id\":\"{}\"", node.model(engine).model()))
}

#[tokio::test]
async fn a_stream_of_an_unchanged_engine_goes_on_and_a_new_release_comes_at_the_next_idle_moment() {
    let (node, agent) = pair().await;
    let (a, b) = (node.core("A").pid, node.core("B").pid);
    let expected = node.model("A").complete(LONG).await.unwrap();
    let mut stream = node.model("A").stream(LONG).await;
    stream.until(5).await;
    let mark = agent.mark().await;
    node.file()
        .version("B", "0.31", "0.30")
        .line("A", "idle = [{ after = \"1h\", tier = \"level1\" }]")
        .write();
    assert_eq!(agent.reloaded().await, "A settings, B restart");
    let (of_a, of_b) = (agent.engine("A").await, agent.engine("B").await);
    assert_eq!((of_a.settings, of_b.settings), (Settings::InForce, Settings::PendingRestart));
    let shown = ctl(&node.socket(), &["status"]).await.exits(ExitCode::Ok);
    assert!(shown.stdout.contains("settings: pending restart"), "{}", shown.stdout);
    // A is served on the same device: B waits.
    stream.until(1000).await;
    assert_eq!(node.core("B").pid, b);
    assert_eq!(stream.end().await, (expected, "length".to_owned()));
    until_version(&agent, "B", "0.30").await;
    agent.until_at("B", Tier::Level1).await;
    agent.until_idle().await;
    assert_eq!(node.core("A").pid, a);
    let touched = agent.entries("transition", mark).await;
    assert!(touched.iter().all(|entry| entry.record["engine"] != "A"), "{touched:#?}");
    let records = agent.entries("reloaded", mark).await;
    assert_eq!(records.len(), 1);
    let engines = &records[0].record["engines"];
    assert_eq!(engines[1]["change"], "restart");
    assert_ne!(engines[1]["from"], engines[1]["to"]);
    // Once more, and nothing happens.
    let again = agent.reload().await.unwrap();
    assert_eq!(
        (again.outcome, changes(&again)),
        (ReloadOutcome::Unchanged, "A unchanged, B unchanged".to_owned())
    );
    agent.stop().await;
}

#[tokio::test]
async fn now_means_at_once_and_still_after_its_drain() {
    let (node, agent) = pair().await;
    let (a, b) = (node.core("A").pid, node.core("B").pid);
    node.file().version("A", "0.31", "0.30").write();
    let dry = ctl(&node.socket(), &["reload", "--dry-run", "--now"]).await;
    assert_eq!(dry.code, Some(2), "the two contradict each other");
    let dry = ctl(&node.socket(), &["reload", "--dry-run"]).await.exits(ExitCode::Ok);
    assert!(dry.stdout.contains("would be applied") && dry.stdout.contains("restart"), "{}", dry.stdout);
    assert_eq!(agent.engine("A").await.settings, Settings::InForce);
    let mut stream = node.model("A").stream(LONG).await;
    stream.until(5).await;
    let socket = node.socket();
    let (done, streamed) = tokio::join!(
        ctl(&socket, &["reload", "--now", "--drain", "wait", "--deadline", "50s"]),
        stream.end()
    );
    let done = done.exits(ExitCode::Ok);
    assert!(done.stdout.contains("A has restarted"), "{}", done.stdout);
    assert_eq!(streamed.1, "length");
    until_version(&agent, "A", "0.30").await;
    agent.until_at("A", Tier::Awake).await;
    assert_ne!(node.core("A").pid, a);
    assert_eq!(node.core("B").pid, b);
    agent.stop().await;
}

#[tokio::test]
async fn an_engine_that_is_added_serves_and_one_that_is_removed_finishes_and_goes() {
    let engines = vec![EngineSetup::new("A", "A"), EngineSetup::new("B", "B"), EngineSetup::new("C", "B")];
    let setup = Setup::new(engines).policy_line("awake_at_start = \"B\"");
    let node = setup.each(|e| e.speed(40.0).line("min_residency = \"0s\"")).build();
    let all = node.file();
    all.clone().without("C").write();
    let agent = node.start().await;
    agent.until_at("B", Tier::Awake).await;
    agent.until_idle().await;
    assert!(!has_model(&node, "C").await);
    assert!(node.model("C").complete(3).await.unwrap_err().starts_with("404"));
    all.write();
    assert_eq!(agent.reloaded().await, "A unchanged, B unchanged, C added");
    assert!(has_model(&node, "C").await);
    agent.until_at("C", Tier::Level1).await;
    node.model("C").serves().await;
    agent.until_at("C", Tier::Awake).await;

    // It goes while it answers.
    let mut stream = node.model("C").stream(LONG).await;
    stream.until(5).await;
    all.clone().without("C").write();
    assert_eq!(agent.reloaded().await, "A unchanged, B unchanged, C removed");
    assert!(!has_model(&node, "C").await);
    let refused = node.model("C").complete(3).await.unwrap_err();
    assert!(refused.contains("model_not_found"), "{refused}");
    assert!(agent.engine("C").await.retiring);
    assert_eq!(stream.end().await.1, "length");
    until("it to be gone", async || agent.status().await.engines.iter().all(|e| e.name != "C")).await;
    until("its process to be gone", async || node.tree("C").is_empty()).await;
    let status = agent.status().await;
    assert!(status.gateway.unwrap().lines.iter().all(|line| line.engine != "C"));
    assert!(!node.metrics().await.contains("engine=\"C\""));
    let gone = ctl(&node.socket(), &["start", "C"]).await;
    assert_eq!(gone.code, Some(4), "{}", gone.stderr);

    // Its name again is its place again.
    all.write();
    assert_eq!(agent.reloaded().await, "A unchanged, B unchanged, C added");
    agent.until_at("C", Tier::Level1).await;
    node.model("C").serves().await;
    assert!(node.metrics().await.contains("engine=\"C\""));
    agent.stop().await;
}

#[tokio::test]
async fn a_file_that_cannot_be_applied_is_refused_whole() {
    let (node, agent) = pair().await;
    let sound = node.file();
    let b = node.core("B").pid;
    let mark = agent.mark().await;
    sound.clone().version("B", "0.31", "0.30").line("A", "wieght = 3").write();
    let refused = ctl(&node.socket(), &["reload"]).await.exits(ExitCode::BadFile);
    assert!(refused.stdout.contains("wieght") && refused.stdout.contains("weight"), "{}", refused.stdout);
    // Nobody waits for the answer of a signal: it is recorded.
    agent.signal(Signal::HUP);
    until("the incident", async || agent.incident_codes(mark).await == ["reload_refused "]).await;

    let moved = sound
        .clone()
        .version("B", "0.31", "0.30")
        .replace("\nlisten = \"127.0.0.1:", "\nlisten = \"127.0.0.2:");
    moved.write();
    let refused = ctl(&node.socket(), &["reload"]).await.exits(ExitCode::Refused);
    assert!(refused.stdout.contains("gateway.listen: 127.0.0.1:"), "{}", refused.stdout);
    let extra =
        sound.clone().version("B", "0.31", "0.30").tables("[[device]]\nname = \"gpu9\"\nledger = \"/tmp/x\"");
    extra.write();
    let report = agent.reload().await.unwrap();
    assert_eq!(report.outcome, ReloadOutcome::NeedsRestart);
    assert_eq!(report.needs_restart[0].key, "device gpu9");
    assert_eq!(agent.engine("B").await.settings, Settings::InForce, "nothing of it is applied");

    // Sound again: SIGHUP applies it.
    let outcomes: Vec<_> = agent.entries("reloaded", mark).await;
    let outcomes: Vec<_> = outcomes.iter().map(|entry| entry.record["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, ["invalid", "invalid", "needs_restart", "needs_restart"]);
    assert_eq!(node.core("B").pid, b);
    sound.version("B", "0.31", "0.30").write();
    agent.signal(Signal::HUP);
    until_version(&agent, "B", "0.30").await;
    agent.until_idle().await;
    agent.stop().await;
}

#[tokio::test]
async fn a_change_that_is_taken_back_restarts_nobody_and_the_order_of_the_file_means_nothing() {
    let (node, agent) = pair().await;
    let (a, b) = (node.core("A").pid, node.core("B").pid);
    let before = node.file();
    let mut stream = node.model("A").stream(LONG).await;
    stream.until(5).await;
    before.clone().version("B", "0.31", "0.30").version("A", "0.31", "0.30").write();
    assert_eq!(agent.reloaded().await, "A restart, B restart");
    before.clone().reversed().write();
    assert_eq!(agent.reloaded().await, "A unchanged, B unchanged");
    assert_eq!(stream.end().await.1, "length");
    agent.until_idle().await;
    assert_eq!(agent.engine("A").await.settings, Settings::InForce);
    assert_eq!((node.core("A").pid, node.core("B").pid), (a, b));
    // The next agent has them in that order, and the same engines.
    agent.kill().await;
    let agent = node.start().await;
    agent.until_idle().await;
    let names: Vec<_> = agent.status().await.engines.into_iter().map(|e| e.name).collect();
    assert_eq!(names, ["B", "A"]);
    agent.until_at("A", Tier::Awake).await;
    agent.until_at("B", Tier::Level1).await;
    assert_eq!((node.core("A").pid, node.core("B").pid), (a, b));
    assert_eq!(agent.reload().await.unwrap().outcome, ReloadOutcome::Unchanged);
    agent.stop().await;
}

#[tokio::test]
async fn an_agent_that_is_killed_after_a_reload_is_followed_by_one_that_finishes_it() {
    let engines = vec![EngineSetup::new("A", "A"), EngineSetup::new("B", "B"), EngineSetup::new("C", "B")];
    let node = Setup::new(engines).each(|e| e.speed(40.0)).build();
    let all = node.file();
    all.clone().without("C").write();
    let agent = node.start().await;
    agent.until_at("A", Tier::Awake).await;
    agent.until_idle().await;
    let (a, b) = (node.core("A").pid, node.core("B").pid);
    let mut stream = node.engine("A").stream(LONG).await;
    stream.until(5).await;
    all.version("A", "0.31", "0.30").write();
    assert_eq!(agent.reloaded().await, "A restart, B unchanged, C added");
    agent.kill().await;
    let agent = node.start().await;
    // It serves on as it was started, and is restarted when nobody needs it.
    let waits = async || agent.engine("A").await.settings == Settings::PendingRestart;
    until("what was found to be decided", waits).await;
    assert_eq!(agent.incident_codes(0).await, ["settings_changed A"]);
    assert_eq!(stream.end().await.1, "length");
    until_version(&agent, "A", "0.30").await;
    agent.until_at("A", Tier::Awake).await;
    assert_ne!(node.core("A").pid, a);
    assert_eq!(node.core("B").pid, b);
    agent.until_at("C", Tier::Level1).await;
    agent.stop().await;
}

#[tokio::test]
async fn tenants_and_their_limits_change_while_requests_run() {
    let (node, agent) = pair().await;
    let before = node.file();
    let mut stream = node.model("A").stream(LONG).await;
    stream.until(5).await;
    let limited = "[[tenant]]\nname = \"default\"\nmax_in_flight = 1";
    before.clone().tables(limited).write();
    let report = agent.reload().await.unwrap();
    assert_eq!(changes(&report), "A unchanged, B unchanged");
    assert_eq!(report.settings[0].key, "tenant default");
    // The stream that runs counts.
    let refused = node.model("A").complete(3).await.unwrap_err();
    assert!(refused.contains("too_many_in_flight"), "{refused}");
    before.write();
    agent.reload().await.unwrap();
    node.model("A").serves().await;
    assert_eq!(stream.end().await.1, "length");
    agent.stop().await;
}

#[tokio::test]
async fn schedules_and_the_log_filter_change_and_a_measuring_cycle_is_left_alone() {
    let (node, agent) = pair().await;
    let before = node.file();
    let mut stream = node.model("A").stream(LONG).await;
    stream.until(5).await;
    let schedule = "[[schedule]]\nname = \"often\"\ncron = \"0 3 * * *\"\nplan = \"quick\"";
    before.clone().tables(schedule).replace("log_filter = \"info\"", "log_filter = \"debug\"").write();
    let report = agent.reload().await.unwrap();
    assert_eq!(report.outcome, ReloadOutcome::Applied, "{}", report.check.rendered);
    let keys: Vec<&str> = report.settings.iter().map(|s| s.key.as_str()).collect();
    assert_eq!(keys, ["node.log_filter", "schedule often"]);
    until("the log to be of the new level", async || agent.log().contains(" DEBUG ")).await;
    before.write();
    agent.reload().await.unwrap();
    assert_eq!(stream.end().await.1, "length");
    agent.until_idle().await;

    // What a run measures is its own.
    let socket = node.socket();
    let begun = ctl(&socket, &["cycle", "run", "quick", "--no-wait"]).await.exits(ExitCode::Ok);
    let run = begun.stdout.trim().to_owned();
    before.clone().without("B").write();
    let refused = ctl(&socket, &["reload"]).await.exits(ExitCode::Refused);
    assert!(refused.stderr.contains(&run) && refused.stderr.contains("cycle cancel"), "{}", refused.stderr);
    ctl(&socket, &["reload", "--dry-run"]).await.exits(ExitCode::Ok);
    ctl(&socket, &["cycle", "cancel", &run]).await;
    until("the run to be over", async || agent.status().await.cycle.is_none()).await;
    agent.until_idle().await;
    // Removed and asleep: it goes by itself, or by the command that comes with `--now`.
    ctl(&socket, &["reload", "--now"]).await.exits(ExitCode::Ok);
    until("B to be gone", async || agent.status().await.engines.len() == 1).await;
    until("its process to be gone", async || node.tree("B").is_empty()).await;
    node.model("A").serves().await;
    agent.stop().await;
}

/// `--no-start` holds for engines that a reload adds as well: a command starts them, or a request.
#[tokio::test]
async fn an_agent_that_starts_no_engine_starts_none_that_is_added() {
    let engines = vec![EngineSetup::new("A", "A"), EngineSetup::new("B", "B"), EngineSetup::new("C", "B")];
    let node = Setup::new(engines).build();
    let all = node.file();
    all.clone().without("C").write();
    let agent = Agent::up(Agent::spawn(&node, &["--no-start"]), node.clone()).await;
    all.write();
    assert_eq!(agent.reloaded().await, "A unchanged, B unchanged, C added");
    agent.done(start("B")).await;
    agent.until_idle().await;
    let tiers: Vec<_> = agent.status().await.engines.iter().map(|e| e.tier == Some(Tier::Stopped)).collect();
    assert_eq!(tiers, [true, false, true]);
    assert_eq!((node.tree("A"), node.tree("C")), (Vec::new(), Vec::new()));
    agent.done(start("C")).await;
    agent.stop().await;
}
