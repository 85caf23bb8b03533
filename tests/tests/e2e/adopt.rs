//! Servers that somebody else has started are taken over as they run.

use hotbunk_api::error::{ApiError, ErrorCode};
use hotbunk_api::operation::Operation;
use hotbunk_api::status::{Condition, StoppedWhy};
use hotbunk_api::words::{State, Tier};
use hotbunk_tests::{
    Agent, ByHand, DeviceSetup, EngineSetup, GIB, IncidentSeen, MIB, Node, Setup, Switch, adopt, kill, reset,
    start, stop, until,
};
use rustix::process::Signal;

/// Nothing is started by the agent, and a port of each engine's own.
fn setup() -> Setup {
    Setup::pair().by_hand()
}

async fn pid(agent: &Agent, engine: &str) -> Option<u32> {
    agent.engine(engine).await.incarnation.map(|i| i.pid)
}

/// Waits until the device shows somebody else's memory.
async fn until_foreign(agent: &Agent) {
    until("its memory to be foreign", async || {
        agent.status().await.devices[0].foreign_bytes.is_some_and(|bytes| bytes > 0)
    })
    .await;
}

async fn adopted(setup: Setup) -> (Node, Agent, ByHand) {
    let node = setup.build();
    let server = node.by_hand("A", &[]).await;
    let agent = node.start().await;
    agent.done(adopt("A")).await;
    (node, agent, server)
}

/// Taken over under traffic through its own port: the stream goes on to its last token. From then on it is an engine like any
/// other: it is handed over both ways, through the gateway, by the same process.
#[tokio::test]
async fn a_server_started_by_hand_becomes_an_engine_and_nobody_notices() {
    let node = setup().build();
    let mut server = node.by_hand("A", &[]).await;
    let reference = node.engine("A").complete(120).await.unwrap();
    let agent = node.start().await;
    until_foreign(&agent).await;
    assert_eq!(agent.engine("A").await.tier, Some(Tier::Stopped));
    // Its tokens take their time now: the stream lasts longer than the taking over.
    node.engine("A").pace(2.0).await;
    let mut stream = node.engine("A").stream(120).await;
    stream.until(2).await;

    let operation = agent.done(adopt("A")).await;
    assert_eq!(operation.note.as_deref(), Some("taken over as it ran"), "{operation:#?}");
    let phases: Vec<&str> = operation.steps.iter().map(|s| s.phase.as_str()).collect();
    assert_eq!(phases, ["hold", "probe", "warm_up", "keep"]);
    let status = agent.status().await;
    let (a, gpu) = (&status.engines[0], &status.devices[0]);
    assert_eq!((a.tier, &a.condition), (Some(Tier::Awake), &Condition::Settled));
    assert_eq!(pid(&agent, "A").await, Some(server.pid()));
    assert_eq!(
        (gpu.foreign_bytes, gpu.held_bytes),
        (Some(0), Some(node.used())),
        "foreign has become held at once"
    );
    let awake = a.footprints.iter().find(|f| f.tier == Tier::Awake).unwrap();
    assert!(awake.measured && awake.device_bytes == Some(node.used_by("A")), "{awake:?}");
    assert_eq!(stream.end().await, (reference.clone(), "length".to_owned()), "its client noticed nothing");
    node.engine("A").pace(200.0).await;
    assert_eq!(agent.incident_codes(0).await.iter().filter(|c| c.ends_with(" A")).count(), 0);
    // Its output is where it was; its log here says so.
    let log = std::fs::read_to_string(a.log_path.as_ref().unwrap()).unwrap();
    assert!(log.contains(&server.output.display().to_string()), "{log}");

    assert_eq!(node.model("A").complete(120).await.unwrap(), reference);
    agent.done(start("B")).await;
    for (to, from) in [("B", "A"), ("A", "B")] {
        agent.done(Switch::to(to).leave(Tier::Level1)).await;
        agent.until_at(from, Tier::Level1).await;
        node.model(to).serves().await;
    }
    assert_eq!(node.engine("A").complete(120).await.unwrap(), reference);
    assert_eq!(pid(&agent, "A").await, Some(server.pid()), "the same process, all the time");
    assert!(server.runs());
    agent.stop().await;
    server.ended().await;
}

/// Its end is noticed, what it leaves is swept although nobody of ours was its parent, and it comes back with the configured
/// command.
#[tokio::test]
async fn the_end_of_an_adopted_engine_is_noticed_and_it_is_started_as_configured() {
    let (node, agent, mut server) = adopted(setup()).await;
    let orphans: Vec<u32> = node.tree("A").iter().map(|p| p.pid).filter(|p| *p != server.pid()).collect();
    assert!(!orphans.is_empty(), "its core outlives it");
    let mark = agent.mark().await;
    kill(server.pid());
    server.ended().await;
    until("a new process", async || agent.entries("spawned", mark).await.len() == 1).await;
    agent.until_at("A", Tier::Awake).await;
    agent.until_idle().await;
    let seen = agent.incidents(mark).await;
    assert_eq!(agent.incident_codes(mark).await, ["crashed A"], "{seen:#?}");
    assert!(seen[0].message.contains("how is not known"), "{seen:#?}");
    let now: Vec<u32> = node.tree("A").iter().map(|p| p.pid).collect();
    assert!(orphans.iter().all(|pid| !now.contains(pid)), "{orphans:?} {now:?}");
    assert_eq!(node.used_by("A"), node.used());
    node.engine("A").serves().await;
    // This one is our own: its output is kept, its end is known.
    let log = std::fs::read_to_string(agent.engine("A").await.log_path.unwrap()).unwrap();
    assert!(log.contains("vLLM API server version"), "{log}");
    agent.stop().await;
}

/// Whoever started it starts it again at once, as a unit with `Restart=` does: its memory is no leftover of the engine's, the port
/// is taken, and the new one can be taken over in its turn.
#[tokio::test]
async fn a_server_that_is_started_again_at_once_is_no_leftover_of_the_one_before() {
    let slowly = setup().engine("A", |e| e.line("restart = { initial = \"60s\", max = \"60s\" }"));
    let (node, agent, mut server) = adopted(slowly).await;
    let mark = agent.mark().await;
    // Taken just before its end, so that it is never seen beside it at rest.
    let newcomer = node.foreign(6 * GIB);
    node.tree("A").iter().for_each(|p| kill(p.pid));
    server.ended().await;
    until_foreign(&agent).await;
    drop(newcomer);
    let again = node.by_hand("A", &[]).await;
    until("the port to be seen taken", async || {
        agent.engine("A").await.condition == Condition::Stopped { why: StoppedWhy::PortTaken }
    })
    .await;
    assert!(!agent.incident_codes(mark).await.contains(&"leftovers A".to_owned()));
    agent.done(adopt("A")).await;
    assert_eq!(pid(&agent, "A").await, Some(again.pid()));
    node.engine("A").serves().await;
    agent.stop().await;
}

/// Memory that somebody takes while an engine of the agent's own ends is taken for its leftovers, until an operator who has
/// been told says otherwise: then it is foreign, and what runs on the port can be taken over.
#[tokio::test]
async fn a_reset_tells_a_stranger_from_leftovers() {
    let slowly = setup().engine("A", |e| e.line("restart = { initial = \"60s\", max = \"60s\" }"));
    let node = slowly.build();
    let agent = node.start().await;
    agent.done(start("A")).await;
    let newcomer = node.foreign(6 * GIB);
    node.tree("A").iter().for_each(|p| kill(p.pid));
    until("it to have failed", async || {
        matches!(agent.engine("A").await.condition, Condition::Failed { .. })
    })
    .await;
    assert!(agent.incident_codes(0).await.contains(&"leftovers A".to_owned()));
    let (code, message) = refused(&agent, "A").await;
    assert!(code == ErrorCode::Refused && message.contains("reset"), "{code:?} {message}");

    agent.done(reset("A")).await;
    assert_eq!(agent.status().await.devices[0].foreign_bytes, Some(6 * GIB));
    drop(newcomer);
    let server = node.by_hand("A", &[]).await;
    agent.done(adopt("A")).await;
    assert_eq!(pid(&agent, "A").await, Some(server.pid()));
    node.engine("A").serves().await;
    agent.stop().await;
}

#[tokio::test]
async fn stopping_an_adopted_engine_ends_its_whole_tree() {
    let (node, agent, mut server) = adopted(setup()).await;
    let mark = agent.mark().await;
    agent.done(stop("A")).await;
    server.ended().await;
    assert_eq!((node.tree("A"), node.used_by("A")), (Vec::new(), 0));
    agent.done(start("A")).await;
    assert_ne!(pid(&agent, "A").await, Some(server.pid()));
    agent.until_at("A", Tier::Awake).await;
    assert_eq!(agent.incident_codes(mark).await, Vec::<String>::new());
    agent.stop().await;
}

/// The next agent takes it over again as it is, by the record: it is not restarted, and its end is still heard of.
#[tokio::test]
async fn a_later_agent_takes_an_adopted_engine_over() {
    let (node, agent, mut server) = adopted(setup()).await;
    agent.done(start("B")).await;
    let before = agent.engine("A").await;
    agent.kill().await;
    node.engine("A").serves().await;
    let agent = node.start().await;
    let mark = agent.mark().await;
    agent.until_at("A", Tier::Awake).await;
    let after = agent.engine("A").await;
    assert_eq!((&after.incarnation, after.generation), (&before.incarnation, before.generation));
    assert_eq!((&after.footprints, &after.log_path), (&before.footprints, &before.log_path));
    agent.done(Switch::to("B")).await;
    agent.done(Switch::to("A")).await;
    node.engine("A").serves().await;
    assert!(server.runs());
    assert_eq!(agent.entries("spawned", mark).await.len(), 0);
    kill(server.pid());
    server.ended().await;
    until("a new process", async || agent.entries("spawned", mark).await.len() == 1).await;
    agent.until_at("A", Tier::Awake).await;
    agent.stop().await;
}

async fn refused(agent: &Agent, engine: &str) -> (ErrorCode, String) {
    let error = match agent.submit(adopt(engine)).await {
        Err(error) => error,
        Ok(begun) => {
            let Operation { state, error, .. } = agent.wait(&begun.id).await;
            assert_eq!(state, State::Failed);
            error.unwrap_or_else(|| panic!("adopting {engine} must fail"))
        }
    };
    let ApiError { code, message, .. } = error;
    (code, message)
}

/// Each reason, and that nothing of what it is about has been touched.
#[tokio::test]
async fn what_cannot_be_taken_over_is_left_as_it_is_with_the_reason() {
    let elsewhere = EngineSetup::new("C", "B").devices(&[1]);
    let devices = vec![DeviceSetup::new("gpu0"), DeviceSetup::new("gpu1")];
    let pair = vec![EngineSetup::new("A", "A"), EngineSetup::new("B", "B"), elsewhere];
    let node = Setup::new(pair).devices(devices).by_hand().build();
    let agent = node.start().await;
    let is = |got: &(ErrorCode, String), words: &str| {
        assert!(got.0 == ErrorCode::Refused && got.1.contains(words), "{got:?}, wanted: {words}");
    };
    is(&refused(&agent, "A").await, "nobody listens on port");

    // Another model: the server of B on A's port.
    let port = node.engine("A").port().to_string();
    let mut words = node.command("B");
    let at = words.iter().position(|word| word == "--port").unwrap();
    words[at + 1].clone_from(&port);
    let mut server = node.run_by_hand("A", &words, &[]).await;
    is(&refused(&agent, "A").await, "serves Qwen3-1.7B, not `");
    assert!(server.runs());
    drop(server);
    until("it to be gone", async || {
        node.living().iter().filter(|p| p.command.contains("--name B")).for_each(|p| kill(p.pid));
        node.used() == 0
    })
    .await;

    // Without sleep mode: its /sleep would free nothing.
    let words: Vec<String> =
        node.command("A").into_iter().filter(|word| word != "--enable-sleep-mode").collect();
    let mut server = node.run_by_hand("A", &words, &[]).await;
    is(&refused(&agent, "A").await, "was started without --enable-sleep-mode");
    assert!(server.runs());
    drop(server);
    gone(&node, "A").await;

    // Asleep, and nobody knows how deep.
    let mut server = node.by_hand("A", &[]).await;
    assert_eq!(node.engine("A").post("/sleep?level=1").await, 200);
    is(&refused(&agent, "A").await, "it sleeps, and at which level nobody has recorded: wake it first");
    assert!(server.runs());
    assert_eq!(node.engine("A").post("/wake_up").await, 200);

    // On another device than is configured.
    let mut words = node.command("C");
    let at = words.iter().position(|word| word == "--device-ledger").unwrap();
    words[at + 1] = words[at + 1].replace("gpu1", "gpu0");
    let mut stray = node.run_by_hand("C", &words, &[]).await;
    let got = refused(&agent, "C").await;
    is(&got, "holds memory on gpu0, which is not among the engine's devices");
    assert!(stray.runs());
    drop(stray);
    gone(&node, "C").await;

    // Once it is taken over it has a process; and nothing of all that has been an incident of an engine of ours.
    agent.done(adopt("A")).await;
    is(&refused(&agent, "A").await, "it has a process already");
    assert!(server.runs());
    node.engine("A").serves().await;
    let told = agent.incident_codes(0).await;
    assert!(told.iter().all(|code| code.contains(" gpu")), "{told:?}");
    assert_eq!(node.shims().len(), 1, "whoever was not taken over is not held");
    agent.stop().await;
}

/// Ends what a killed server leaves.
async fn gone(node: &Node, engine: &str) {
    until("it to be gone", async || {
        node.tree(engine).iter().for_each(|p| kill(p.pid));
        node.tree(engine).is_empty()
    })
    .await;
}

/// It runs with other settings than are configured: taken over all the same, said, and its bytes are its own. The configured
/// settings come with its next start.
#[tokio::test]
async fn other_settings_are_said_and_the_next_restart_applies_the_configured_ones() {
    let node = setup().build();
    let kv = (2048 * MIB).to_string();
    let mut words = node.command("A");
    let at = words.iter().position(|word| word == "--kv-cache-memory-bytes").unwrap();
    let configured = std::mem::replace(&mut words[at + 1], kv.clone());
    let mut server = node.run_by_hand("A", &words, &["--max-model-len", "4096"]).await;
    let agent = node.start().await;
    let operation = agent.done(adopt("A")).await;
    let note = operation.note.unwrap();
    for word in
        [format!("--kv-cache-memory-bytes {kv} instead of {configured}"), "--max-model-len 4096".to_owned()]
    {
        assert!(note.contains(&word) && note.contains("its next restart applies"), "{note}");
    }
    let small = node.used_by("A");
    let bytes = async |agent: &Agent| {
        let status = agent.status().await;
        let awake = status.engines[0].footprints.iter().find(|f| f.tier == Tier::Awake).unwrap().clone();
        (status.devices[0].held_bytes, awake.device_bytes)
    };
    assert_eq!(bytes(&agent).await, (Some(small), Some(small)));
    assert_eq!(agent.incident_codes(0).await.iter().filter(|c| *c == "settings_changed A").count(), 1);
    agent.done(hotbunk_tests::restart("A")).await;
    server.ended().await;
    let (held, measured) = bytes(&agent).await;
    assert!(held == measured && held.is_some_and(|bytes| bytes > small + 1024 * MIB), "{held:?} {small}");
    agent.stop().await;
}

/// An engine whose port is taken when the agent would start it does not use up its budget of crashes, and is told where to
/// go; adopted, it is what the agent would have started.
#[tokio::test]
async fn an_engine_that_runs_already_when_the_agent_comes_up_waits_to_be_adopted() {
    let once = r#"restart = { budget = 1, initial = "100ms", max = "100ms" }"#;
    let node = Setup::pair().engine("A", |e| e.line(once)).build();
    let mut server = node.by_hand("A", &[]).await;
    let agent = node.start().await;
    let waits = async |agent: &Agent| {
        agent.engine("A").await.condition == Condition::Stopped { why: StoppedWhy::PortTaken }
    };
    until("it to wait for its port", async || waits(&agent).await).await;
    agent.until_at("B", Tier::Level1).await;
    // Its memory may have been seen first, and that there is no room beside it.
    let told = async || -> Vec<_> {
        agent.incidents(0).await.into_iter().filter(|i| i.code == "start_failed").collect()
    };
    // What a status shows is on its way into the journal.
    until("it to be said", async || !told().await.is_empty()).await;
    let told = told().await;
    assert_eq!(told.len(), 1, "{told:#?}");
    let mark = agent.mark().await;
    for word in ["`ctl adopt A`".to_owned(), format!("process {}", server.pid())] {
        assert!(told[0].message.contains(&word), "{told:#?}");
    }
    let doctor = agent.api.doctor().await.unwrap().checks;
    let port = doctor.iter().find(|c| c.name.starts_with("engine A: port")).unwrap();
    assert!(port.help.as_ref().is_some_and(|help| help.contains("ctl adopt A")), "{port:?}");
    let refused = agent.submit(Switch::to("A")).await.unwrap_err();
    assert!(refused.message.contains("ctl adopt"), "{refused:?}");
    // The next agent knows its memory to be foreign before it would start it, and waits for the same.
    agent.kill().await;
    let agent = node.start().await;
    until("it to wait for its port", async || waits(&agent).await).await;
    assert_eq!(agent.incident_codes(mark).await, Vec::<String>::new());

    agent.done(adopt("A")).await;
    agent.until_at("A", Tier::Awake).await;
    assert_eq!(pid(&agent, "A").await, Some(server.pid()));
    agent.done(Switch::to("B")).await;
    agent.done(Switch::to("A")).await;
    assert!(server.runs());
    agent.stop().await;
}

/// A server beside one that is awake: there is room, it is there. That one is more than `max_awake` is said.
#[tokio::test]
async fn one_more_than_may_be_awake_is_taken_over_and_said() {
    let node = Setup::pair().engine("B", |e| e.line("autostart = false")).build();
    let agent = node.start().await;
    agent.until_at("A", Tier::Awake).await;
    let server = node.by_hand("B", &[]).await;
    let operation = agent.done(adopt("B")).await;
    assert!(
        operation.note.as_ref().is_some_and(|n| n.contains("A is awake on gpu0 as well")),
        "{operation:#?}"
    );
    assert_eq!(pid(&agent, "B").await, Some(server.pid()));
    node.engine("B").serves().await;
    // The one that nobody uses steps back.
    until("one of the two to step back", async || {
        let (a, b) = (agent.engine("A").await, agent.engine("B").await);
        [a.tier, b.tier].iter().filter(|tier| **tier == Some(Tier::Awake)).count() == 1
    })
    .await;
    agent.until_idle().await;
    assert_eq!(pid(&agent, "B").await, Some(server.pid()), "it sleeps, or serves, and was not ended");
    agent.stop().await;
}

/// A shim that is killed while it only holds: the server is not touched, and is taken over the next time.
#[tokio::test]
async fn a_hold_that_is_lost_leaves_the_server_as_it_was() {
    let node = setup().build();
    let mut server = node.by_hand("A", &[]).await;
    let agent = node.start().await;
    // No token comes until the deadline: time to kill.
    node.engine("A").fault("completions_hang", None, None).await;
    let begun = agent.submit(adopt("A")).await.unwrap();
    until("it to be held", async || node.shims().len() == 1).await;
    kill(node.shims()[0].pid);
    let operation = agent.wait(&begun.id).await;
    assert_eq!(operation.state, State::Failed, "{operation:#?}");
    assert!(server.runs());
    assert_eq!(node.tree("A").len(), 3);
    assert_eq!(agent.engine("A").await.incarnation, None);
    node.engine("A").clear_faults().await;
    agent.done(adopt("A")).await;
    node.engine("A").serves().await;
    agent.stop().await;
}

/// A process that is stopped by a signal, as a shell's ^Z does, answers nothing: it is not taken over, and not touched.
#[tokio::test]
async fn a_server_that_does_not_answer_is_not_taken_over() {
    let node = setup().engine("A", |e| e.line("timeouts = { control = \"500ms\" }")).build();
    let mut server = node.by_hand("A", &[]).await;
    let agent = node.start().await;
    hotbunk_tests::signal(server.pid(), Signal::STOP);
    let got = refused(&agent, "A").await;
    assert!(got.1.contains("does not answer"), "{got:?}");
    hotbunk_tests::signal(server.pid(), Signal::CONT);
    agent.done(adopt("A")).await;
    assert!(server.runs());
    agent.stop().await;
}

/// An agent that ends in the middle lets go: in order, or killed and followed by one that knows the engine no more.
#[tokio::test]
async fn an_agent_that_ends_in_the_middle_lets_go() {
    let node = setup().build();
    let mut server = node.by_hand("A", &[]).await;
    // No token comes: it stays in the middle.
    node.engine("A").fault("completions_hang", None, None).await;
    let held = async |agent: &Agent| {
        drop(agent.submit(adopt("A")).await);
        until("it to be held", async || node.shims().len() == 1).await;
    };
    let mut agent = node.start().await;
    held(&agent).await;
    agent.signal(Signal::TERM);
    assert!(agent.ended().await.success());
    until("nobody to hold it", async || node.shims().is_empty()).await;
    assert!(server.runs());

    let agent = node.start().await;
    held(&agent).await;
    agent.kill().await;
    let config = std::fs::read_to_string(node.config()).unwrap();
    std::fs::write(node.config(), config.replace("name = \"A\"\n", "name = \"other\"\n")).unwrap();
    let agent = node.start().await;
    until("nobody to hold it", async || node.shims().is_empty()).await;
    assert!(server.runs());
    assert_eq!(node.tree("A").len(), 3);
    node.engine("A").clear_faults().await;
    node.engine("A").serves().await;
    let of_engines = |i: &IncidentSeen| !i.about.starts_with("gpu");
    let told: Vec<_> = agent.incidents(0).await.into_iter().filter(of_engines).collect();
    assert_eq!(told, [], "nothing has happened to an engine of ours");
    drop(agent);
}

/// As an operator sees it.
#[tokio::test]
async fn ctl_says_what_was_done_and_what_was_refused() {
    use hotbunk_api::error::ExitCode;
    use hotbunk_tests::ctl;
    let node = setup().build();
    let agent = node.start().await;
    let refused = ctl(&node.socket(), &["adopt", "A"]).await.exits(ExitCode::Refused);
    assert!(refused.stderr.contains("nobody listens on port"), "{}", refused.stderr);
    let _server = node.by_hand("A", &[]).await;
    let done = ctl(&node.socket(), &["adopt", "A"]).await.exits(ExitCode::Ok);
    assert_eq!(done.stdout, "A: taken over as it ran\n");
    let logs = ctl(&node.socket(), &["logs", "A"]).await.exits(ExitCode::Ok);
    assert!(logs.stdout.contains("taken over while it ran; its output goes to"), "{}", logs.stdout);
    ctl(&node.socket(), &["adopt", "A"]).await.exits(ExitCode::Refused);
    ctl(&node.socket(), &["adopt", "nobody"]).await.exits(ExitCode::Unknown);
    agent.stop().await;
}
