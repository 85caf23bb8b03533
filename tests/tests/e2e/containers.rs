//! Engines in containers: not our descendants, found by port and cgroup, ended by their runtime, never signalled.

use hotbunk_api::words::{Strategy, Tier};
use hotbunk_tests::{
    Agent, EngineSetup, MIB, Node, Runtime, Setup, Switch, kill, restart, start, stop, until,
};

const CLIENT: &str = env!("CARGO_BIN_EXE_fake-runtime");
const GENEROUS: &str = r#"restart = { budget = 50, initial = "100ms", max = "100ms" }"#;

/// An engine that is started by the runtime's client.
fn contained(runtime: &Runtime, engine: EngineSetup, name: &str, more: &[&str], table: &str) -> EngineSetup {
    let docker = runtime.client();
    let mut words = vec![docker.as_str(), "run", "--rm", "--network", "host", "--name", name];
    words.extend(["-e", "VLLM_SERVER_DEV_MODE=1"]);
    words.extend(more);
    words.push("sim:latest");
    let table = table.replace("docker", &docker);
    engine.started_by(&words).line(&format!("container = {{ {table} }}")).line(GENEROUS)
}

const COMMANDS: &str = r#"stop = ["docker", "stop", "{name}"], kill = ["docker", "kill", "{name}"]"#;

fn pair(runtime: &Runtime) -> Setup {
    let of = |name: &str| contained(runtime, EngineSetup::new(name, name), name, &[], COMMANDS);
    Setup::new(vec![of("A"), of("B")])
}

async fn up(setup: Setup) -> (Node, Agent) {
    let node = setup.build();
    let agent = node.start().await;
    agent.until_up().await;
    (node, agent)
}

fn parent(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

async fn pid(agent: &Agent, engine: &str) -> u32 {
    agent.engine(engine).await.incarnation.unwrap().pid
}

async fn lives_in_containers(with_cgroups: bool) {
    let runtime = Runtime::start(CLIENT, with_cgroups);
    let (node, agent) = up(pair(&runtime)).await;
    if !with_cgroups {
        assert!(!runtime.has_cgroups());
    }
    for name in ["A", "B"] {
        // The engine is the container, not its client; and the container is the daemon's child.
        let leader = pid(&agent, name).await;
        assert_eq!(Some(leader), runtime.pid(name));
        assert_eq!(parent(leader), std::process::id());
    }
    // Its processes are known as its own: the driver's list is attributed, and its bytes are measured by it.
    let b = agent.engine("B").await;
    let asleep = b.footprints.iter().find(|f| f.tier == Tier::Level1).unwrap();
    assert_eq!((asleep.measured, asleep.device_bytes), (true, Some(455 * MIB)));
    assert!(b.footprints.iter().any(|f| f.host_bytes.is_some_and(|bytes| bytes > 0)), "{b:#?}");
    for (to, from) in [("B", "A"), ("A", "B")] {
        agent.done(Switch::to(to).strategy(Strategy::SleepFirst)).await;
        agent.until_at(from, Tier::Level1).await;
        node.engine(to).serves().await;
    }
    // Its output is kept as any other's.
    let log = std::fs::read_to_string(agent.engine("A").await.log_path.unwrap()).unwrap();
    assert!(log.contains("vLLM API server version"), "{log}");
    assert_eq!(runtime.asked(), ["run B", "run A"].map(str::to_owned), "nobody was told to stop");

    // Stopped by its runtime, in order, and verified gone.
    let op = agent.done(stop("B")).await;
    assert!(op.steps.iter().any(|s| s.phase == "await_release"), "{op:#?}");
    assert_eq!((node.tree("B"), node.used_by("B"), runtime.pid("B")), (Vec::new(), 0, None));
    assert_eq!(runtime.asked()[2..], ["stop B".to_owned()]);
    agent.done(start("B")).await;
    agent.done(restart("A")).await;
    node.engine("A").serves().await;
    assert_eq!(agent.incident_codes(0).await, Vec::<String>::new());
    agent.stop().await;
    assert_eq!((runtime.pid("A"), runtime.pid("B")), (None, None));
}

#[tokio::test]
async fn engines_in_containers_start_switch_and_stop() {
    lives_in_containers(true).await;
}

#[tokio::test]
async fn a_runtime_without_cgroups_is_found_by_its_session() {
    lives_in_containers(false).await;
}

/// What becomes of an engine is what becomes of its container: its first process is killed, its core is killed, the whole
/// of it is destroyed behind everybody's back.
#[tokio::test]
async fn a_container_s_end_is_noticed_and_it_is_started_again() {
    let runtime = Runtime::start(CLIENT, true);
    let (node, agent) = up(pair(&runtime)).await;
    for way in ["first process", "core", "destroyed"] {
        let before = pid(&agent, "A").await;
        let mark = agent.mark().await;
        match way {
            "first process" => kill(before),
            "core" => kill(node.core("A").pid),
            _ => runtime.destroy("A"),
        }
        until("a new container", async || agent.entries("spawned", mark).await.len() == 1).await;
        agent.until_at("A", Tier::Awake).await;
        agent.until_idle().await;
        assert_ne!(pid(&agent, "A").await, before, "{way}");
        node.engine("A").serves().await;
        assert_eq!(agent.incident_codes(mark).await, ["crashed A"], "{way}");
    }
    let asked: Vec<String> = runtime.asked().into_iter().filter(|line| line.starts_with("run A")).collect();
    assert_eq!(asked.len(), 4);
    agent.stop().await;
}

/// `kill -9` of the client alone: the container runs on and is still ours. It serves, is switched, and is stopped by its
/// runtime; only its output is not kept any more, which is said once.
#[tokio::test]
async fn a_client_that_is_killed_alone_is_no_crash() {
    let runtime = Runtime::start(CLIENT, true);
    let (node, agent) = up(pair(&runtime)).await;
    let container = pid(&agent, "A").await;
    let mark = agent.mark().await;
    let clients = || {
        let living = node.living().into_iter();
        living
            .filter(|p| p.command.contains("/socket run") && p.command.contains("--name A "))
            .collect::<Vec<_>>()
    };
    let client = clients();
    assert_eq!(client.len(), 1, "{client:#?}");
    kill(client[0].pid);
    until("the loss to be told", async || !agent.incidents(mark).await.is_empty()).await;
    assert_eq!(agent.incident_codes(mark).await, ["container_client_lost A"]);
    node.engine("A").serves().await;
    agent.done(Switch::to("B").strategy(Strategy::SleepFirst)).await;
    agent.done(Switch::to("A").strategy(Strategy::SleepFirst)).await;
    assert_eq!(pid(&agent, "A").await, container, "the same container, all the time");
    // Its end is noticed all the same.
    kill(container);
    until("a new container", async || agent.entries("spawned", mark).await.len() == 1).await;
    agent.until_at("A", Tier::Awake).await;
    assert_eq!(agent.incident_codes(mark).await, ["container_client_lost A", "crashed A"]);
    assert_eq!(clients().len(), 1, "its new container has a client");
    // And one without a client is stopped like any other.
    kill(clients()[0].pid);
    until("the loss to be told", async || agent.incidents(mark).await.len() == 3).await;
    agent.stop().await;
    assert_eq!(runtime.pid("A"), None);
}

/// A stop command that does not help (the daemon hangs, the name is wrong): the container is not ours to kill, so it is
/// left, reported, and started again only once it has gone.
#[tokio::test]
async fn what_its_runtime_does_not_end_is_left_and_reported() {
    let runtime = Runtime::start(CLIENT, true);
    let deaf = contained(
        &runtime,
        EngineSetup::new("B", "B"),
        "B",
        &[],
        r#"stop = ["docker", "stop", "somebody-else"], kill = ["/bin/false"]"#,
    );
    let setup = Setup::new(vec![EngineSetup::new("A", "A"), deaf.line("stop_grace = \"1s\"")]);
    let (node, agent) = up(setup).await;
    let container = pid(&agent, "B").await;
    let op = agent.run(stop("B")).await;
    assert!(op.error.is_some(), "{op:#?}");
    assert_eq!(runtime.pid("B"), Some(container), "it was not touched");
    assert!(std::path::Path::new(&format!("/proc/{container}")).exists());
    assert!(
        agent.incident_codes(0).await.contains(&"leftovers B".to_owned()),
        "{:?}",
        agent.incidents(0).await
    );
    node.engine("A").serves().await;
    // An operator ends it.
    runtime.destroy("B");
    until("it to be gone", async || runtime.pid("B").is_none()).await;
    drop(agent);
}

/// What listens is young and in a cgroup of its own, and serves another model: it is not taken for ours.
#[tokio::test]
async fn a_container_that_serves_another_model_is_not_taken_for_ours() {
    let runtime = Runtime::start(CLIENT, true);
    let once = r#"restart = { budget = 0, initial = "100ms", max = "100ms" }"#;
    let mut b = EngineSetup::new("B", "B").flag(&["--model", "somebody/else"]);
    let docker = runtime.client();
    let words = [docker.as_str(), "run", "--rm", "--network", "host", "--name", "B", "sim:latest"];
    b = b.started_by(&words).line(once);
    b = b.line(&format!("container = {{ stop = [\"{docker}\", \"stop\", \"B\"] }}"));
    let node = Setup::new(vec![EngineSetup::new("A", "A"), b]).build();
    let agent = node.start().await;
    agent.until_failed("B").await;
    let seen = agent.incidents(0).await;
    assert!(seen[0].message.contains("it serves somebody/else, not"), "{seen:#?}");
    agent.until_at("A", Tier::Awake).await;
    agent.stop().await;
}

/// With the container's id in a file it is found as soon as it runs, whoever listens.
#[tokio::test]
async fn an_id_file_names_the_container_before_it_listens() {
    let runtime = Runtime::start(CLIENT, true);
    let id_file = runtime.dir().join("A.cid").display().to_string();
    std::fs::write(&id_file, "0123456789abcdef").unwrap();
    let table = format!("{COMMANDS}, id_file = \"{}\"", runtime.dir().join("{name}.cid").display());
    let node = Setup::new(vec![contained(
        &runtime,
        EngineSetup::new("A", "A"),
        "A",
        &["--cidfile", &id_file],
        &table,
    )])
    .build();
    // It never comes so far as to listen.
    node.start_flags("A", "--fault hang_start");
    let agent = node.start().await;
    until("a container", async || runtime.pid("A").is_some()).await;
    if runtime.has_cgroups() {
        until("it to be known", async || {
            let engine = agent.engine("A").await;
            engine.incarnation.is_some_and(|i| Some(i.pid) == runtime.pid("A"))
        })
        .await;
    }
    assert!(std::net::TcpStream::connect(("127.0.0.1", node.engine("A").port())).is_err(), "it listens");
    // Told to stop in the middle of its start, the agent has its runtime end it.
    agent.stop().await;
    assert_eq!((runtime.pid("A"), runtime.asked().last()), (None, Some(&"stop A".to_owned())));
}

/// `kill -9` of the shim: nobody would hear of the container's end any more, so it is stopped (by its runtime) and started
/// again.
#[tokio::test]
async fn a_container_whose_shim_was_killed_is_stopped_by_its_runtime() {
    let runtime = Runtime::start(CLIENT, true);
    let (node, agent) = up(pair(&runtime)).await;
    let before = pid(&agent, "A").await;
    let mark = agent.mark().await;
    let shim = node.living().into_iter().find(|p| p.command.contains(" shim ") && p.command.contains("/A-"));
    kill(shim.unwrap().pid);
    until("a new container", async || agent.entries("spawned", mark).await.len() == 1).await;
    agent.until_at("A", Tier::Awake).await;
    assert_ne!(pid(&agent, "A").await, before);
    node.engine("A").serves().await;
    assert!(runtime.asked().contains(&"stop A".to_owned()), "{:?}", runtime.asked());
    agent.stop().await;
}

/// An agent that was killed leaves its shims, their clients and the containers. The next one knows the containers by the
/// record's proofs, takes them over as they are, and goes on: nothing is restarted, nothing is told to stop.
#[tokio::test]
async fn a_later_agent_takes_its_containers_over() {
    for with_cgroups in [true, false] {
        let runtime = Runtime::start(CLIENT, with_cgroups);
        let (node, agent) = up(pair(&runtime)).await;
        let before = (pid(&agent, "A").await, pid(&agent, "B").await);
        // One of them has lost its client, too.
        let clients = node.living().into_iter();
        let client = clients.filter(|p| p.command.contains("/socket run") && p.command.contains("--name B "));
        client.for_each(|p| kill(p.pid));
        until("the loss to be told", async || agent.incident_codes(0).await == ["container_client_lost B"])
            .await;
        agent.kill().await;
        node.engine("A").serves().await;

        let agent = node.start().await;
        let mark = agent.mark().await;
        agent.until_at("A", Tier::Awake).await;
        agent.until_at("B", Tier::Level1).await;
        assert_eq!((pid(&agent, "A").await, pid(&agent, "B").await), before);
        agent.done(Switch::to("B").strategy(Strategy::SleepFirst)).await;
        agent.done(Switch::to("A").strategy(Strategy::SleepFirst)).await;
        node.engine("A").serves().await;
        assert_eq!(runtime.asked(), ["run B", "run A"].map(str::to_owned));
        assert_eq!(agent.entries("spawned", mark).await.len(), 0);
        // And it hears of their end like the first.
        kill(before.0);
        until("a new container", async || agent.entries("spawned", mark).await.len() == 1).await;
        agent.until_at("A", Tier::Awake).await;
        agent.stop().await;
        assert_eq!((runtime.pid("A"), runtime.pid("B")), (None, None));
    }
}

/// A container that ended while no agent was there to see.
#[tokio::test]
async fn a_container_that_ended_unseen_is_started_again() {
    let runtime = Runtime::start(CLIENT, true);
    let (node, agent) = up(pair(&runtime)).await;
    agent.kill().await;
    runtime.destroy("A");
    until("it to be gone", async || runtime.pid("A").is_none()).await;
    let agent = node.start().await;
    agent.until_at("A", Tier::Awake).await;
    node.engine("A").serves().await;
    agent.until_at("B", Tier::Level1).await;
    assert!(!runtime.asked().iter().any(|line| line.starts_with("stop")), "{:?}", runtime.asked());
    agent.stop().await;
}
