//! An agent that starts the next one itself: SIGUSR2.

use super::through::{Crowd, none_lost, table};
use crate::door::{Door, Ended, HangUp, Wanted};
use crate::draw::say;
use crate::left;
use hotbunk_api::client::Client;
use hotbunk_api::words::State;
use hotbunk_tests::{Agent, Handed, Node, Setup, Switch, agent_binary, signal, until, until_some};
use rustix::process::Signal;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use tokio::net::UnixDatagram;

fn api(node: &Node) -> Client {
    Client::new(node.socket()).unwrap()
}

/// Waits until another agent than this one answers; its pid.
async fn next(node: &Node, old: u32) -> u32 {
    let api = api(node);
    until_some("the next agent to answer", async || {
        api.version().await.ok().map(|version| version.pid).filter(|pid| *pid != old)
    })
    .await
}

/// What agents say to whoever started them, read as it comes: a full socket would stop them.
fn listen(node: &Node) -> Arc<Mutex<Vec<String>>> {
    let socket = UnixDatagram::bind(node.dir().join("notify")).unwrap();
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let to = Arc::clone(&said);
    tokio::spawn(async move {
        let mut text = [0; 256];
        while let Ok(read) = socket.recv(&mut text).await {
            let text = String::from_utf8_lossy(&text[..read]).into_owned();
            to.lock().unwrap().extend(text.lines().map(str::to_owned));
        }
    });
    said
}

fn cores(node: &Node) -> Vec<u32> {
    node.engines().iter().map(|e| node.core(e.name()).pid).collect()
}

/// Stops an agent that is no child of ours, and with it the engines.
async fn stop(node: &Node, pid: u32) {
    signal(pid, Signal::TERM);
    until("everything to end", async || node.living().is_empty()).await;
    for engine in node.engines() {
        assert_eq!(node.used_by(engine.name()), 0, "device bytes of {}", engine.name());
    }
}

fn wanted(prompt: &str, tokens: u32, stream: bool) -> Wanted {
    Wanted { role: "A", prompt: prompt.to_owned(), tokens, stream, hang_up: HangUp::No, key: None }
}

#[tokio::test]
async fn the_next_agent_serves_and_waits_for_what_the_old_one_passes_on() {
    let node = Setup::pair()
        .each(|e| e.speed(5.0))
        .policy_line("drain_deadline = \"60s\"")
        .env("NOTIFY_SOCKET", "{dir}/notify")
        .env("WATCHDOG_USEC", "600000")
        .build();
    let said = listen(&node);
    let handed = Handed::of(&node);
    let mut agent = handed.start(&node).await;
    agent.until_up().await;
    let engines = cores(&node);
    let door = Door::of_strangers(&node);
    let running = {
        let door = door.clone();
        tokio::spawn(async move { door.ask(&wanted("long", 1200, true)).await })
    };
    until("it to run", async || left::load(&agent).await[0] == (1, 0)).await;
    agent.signal(Signal::USR2);
    let new = next(&node, agent.pid()).await;
    assert_eq!(door.ask(&wanted("short", 3, false)).await.ended, Ok(Ended::Whole));
    assert!(!running.is_finished() && agent.is_running(), "the old one passes on what runs");
    // systemd would not hear of the end of one that is another's child, nor wait for it.
    let successor = node.living().into_iter().find(|p| p.pid == new).expect("it runs");
    assert_ne!(successor.parent, agent.pid());
    // systemd is told which process is the service now, and that one feeds the watchdog; as the old one did until then.
    let main = format!("MAINPID={new}");
    until("the watchdog to be fed after the change", async || {
        let said = said.lock().unwrap();
        assert!(!said.contains(&"STOPPING=1".to_owned()));
        // Before it is the main process nobody listens to it.
        assert!(
            said[0] == "READY=1" && said.iter().filter(|line| *line == "READY=1").count() == 1,
            "{said:?}"
        );
        let after = said.iter().skip_while(|line| **line != main);
        after.filter(|line| *line == "WATCHDOG=1").count() > 2
    })
    .await;
    // It is no request of the new agent's, and must be waited for all the same.
    let api = api(&node);
    let switch = hotbunk_api::operation::Submit { id: None, request: Switch::to("B").into() };
    let begun = api.submit(&switch).await.unwrap();
    let report = running.await.unwrap();
    assert_eq!(report.ended, Ok(Ended::Whole));
    let over = until_some("the handoff to end", async || {
        let operation = api.operation(&begun.id).await.unwrap();
        operation.state.is_over().then_some(operation)
    })
    .await;
    assert_eq!((over.state, over.error), (State::Succeeded, None));
    assert!(agent.ended().await.success());
    assert_eq!(cores(&node), engines, "no engine was started again");
    assert!(agent.log().contains("the next agent serves"), "{}", agent.log());
    for engine in node.engines() {
        let (arrived, asleep, late) = left::arrivals(engine).await;
        assert_eq!(asleep, 0, "of {arrived} to {}: {late}", engine.name());
    }
    stop(&node, new).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_succeed_each_other_and_no_client_notices() {
    // Sockets of its own: they go from agent to agent.
    let node = Setup::pair().each(|e| e.speed(20.0)).build();
    let mut agent = node.start().await;
    agent.until_up().await;
    let engines = cores(&node);
    let crowd = Crowd::at(&node, 2);
    let mut pid = agent.pid();
    for _ in 0..3 {
        crowd.go_on(2).await;
        until("somebody to be served", async || left::in_flight(&node).await > 0).await;
        signal(pid, Signal::USR2);
        pid = next(&node, pid).await;
    }
    crowd.go_on(2).await;
    assert!(agent.ended().await.success());
    let reports = crowd.end().await;
    say(&format!("three successions:\n{}", table(&reports)));
    none_lost(&reports);
    assert_eq!(cores(&node), engines, "no engine was started again");
    stop(&node, pid).await;
}

#[tokio::test]
async fn a_new_program_or_file_that_is_no_good_costs_nothing() {
    let node = Setup::pair().build();
    // A program that can be replaced.
    let program = node.dir().join("agent-program");
    std::fs::copy(agent_binary(), &program).unwrap();
    let log = std::fs::File::create(node.dir().join("agent.log")).unwrap();
    let mut command = Command::new(&program);
    command
        .args(["run", "--config"])
        .arg(node.config())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    let mut agent = Agent::up(command.spawn().unwrap(), node.clone()).await;
    agent.until_up().await;
    let engines = cores(&node);

    let good = std::fs::read_to_string(node.config()).unwrap();
    std::fs::write(node.config(), good.replace("state_dir", "state_dri")).unwrap();
    agent.signal(Signal::USR2);
    until("the file to be refused", async || agent.log().contains("this agent goes on")).await;
    assert!(agent.log().contains("state_dri") && agent.log().contains("refuses"), "{}", agent.log());
    node.model("A").serves().await;
    assert!(agent.is_running());

    std::fs::write(node.config(), good).unwrap();
    let bad = node.dir().join("bad-program");
    std::fs::write(&bad, "#!/bin/sh\n[ \"$1\" = check ] && exit 0\necho cannot >&2\nexit 3\n").unwrap();
    std::fs::set_permissions(&bad, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::rename(&bad, &program).unwrap();
    agent.signal(Signal::USR2);
    let new = next(&node, agent.pid()).await;
    assert!(agent.ended().await.success());
    assert!(agent.log().contains("the old one is started again"), "{}", agent.log());
    node.model("A").serves().await;
    assert_eq!(cores(&node), engines);
    stop(&node, new).await;
}
