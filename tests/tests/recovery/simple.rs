//! At rest, and in the middle of a handoff.

use hotbunk_api::cycle::{PlanSource, RunCycle};
use hotbunk_api::operation::Submit;
use hotbunk_api::words::{State, Strategy, Tier};
use hotbunk_tests::{Agent, Node, Setup, Switch, kill, start, stop, until};
use rustix::process::Signal;
use std::collections::BTreeSet;

async fn pair() -> (Node, Agent) {
    let node = Setup::pair().build();
    let agent = node.start().await;
    agent.until_up().await;
    (node, agent)
}

fn pids(node: &Node) -> BTreeSet<u32> {
    node.living().iter().map(|p| p.pid).collect()
}

#[tokio::test]
async fn an_agent_killed_at_rest_is_succeeded_by_one_that_takes_over() {
    let (node, agent) = pair().await;
    agent.done(Switch::to("B")).await;
    let before = agent.status().await;
    agent.kill().await;
    // What is about to end by itself has ended.
    let left = pids(&node);
    node.engine("B").serves().await;

    let agent = node.start().await;
    agent.until_at("B", Tier::Awake).await;
    node.engine("B").serves().await;
    agent.until_idle().await;
    assert_eq!(pids(&node).difference(&[agent.pid()].into()).copied().collect::<BTreeSet<_>>(), left);
    let after = agent.status().await;
    for (was, is) in before.engines.iter().zip(&after.engines) {
        assert_eq!((&was.incarnation, was.tier, was.generation), (&is.incarnation, is.tier, is.generation));
        assert_eq!((&was.version, &was.capabilities), (&is.version, &is.capabilities));
        assert_eq!((&was.footprints, &was.log_path), (&is.footprints, &is.log_path));
    }
    assert_eq!(before.devices[0].held_bytes, after.devices[0].held_bytes);
    assert_eq!(agent.incident_codes(0).await, Vec::<String>::new());
    // Everything goes on as it would have: both ways, canaries and costs included, and the end.
    agent.done(Switch::to("A")).await;
    node.engine("A").serves().await;
    agent.done(Switch::to("B")).await;
    node.engine("B").serves().await;
    assert_eq!(agent.incident_codes(0).await, Vec::<String>::new());
    agent.stop().await;
}

#[tokio::test]
async fn an_agent_killed_in_the_middle_of_a_handoff_is_succeeded_by_one_that_finishes_it() {
    let (node, agent) = pair().await;
    node.engine("B").fault("wake_hang", None, None).await;
    let begun = agent.submit(Switch::to("B").strategy(Strategy::SleepFirst)).await.unwrap();
    until("the wake to hang", async || {
        agent.api.operation(&begun.id).await.unwrap().steps.iter().any(|s| s.phase == "wake")
    })
    .await;
    agent.kill().await;
    let left = pids(&node);
    let agent = node.start().await;
    let operation = agent.wait(&begun.id).await;
    agent.until_idle().await;
    // One of the two serves, and the operation says which.
    match operation.state {
        State::Succeeded => node.engine("B").serves().await,
        _ => node.engine("A").serves().await,
    }
    let a: BTreeSet<u32> = node.tree("A").iter().map(|p| p.pid).collect();
    assert!(a.is_subset(&left), "A is not started again: {a:?} {left:?}");
    agent.done(Switch::to(if operation.state == State::Succeeded { "A" } else { "B" })).await;
    agent.stop().await;
}

#[tokio::test]
async fn an_agent_that_goes_by_signal_leaves_the_engines_and_a_plain_stop_does_not() {
    let (node, mut agent) = pair().await;
    agent.signal(Signal::USR1);
    assert!(agent.ended().await.success());
    let left = pids(&node);
    node.engine("A").serves().await;
    let agent = node.start().await;
    agent.until_up().await;
    assert!(left.is_subset(&pids(&node)));
    agent.stop().await;
    let agent = node.start().await;
    agent.until_up().await;
    assert!(left.is_disjoint(&pids(&node)));
    agent.stop().await;
}

#[tokio::test]
async fn a_stream_goes_on_while_one_agent_is_killed_and_another_takes_over() {
    let node = Setup::pair().each(|e| e.speed(5.0)).build();
    let agent = node.start().await;
    agent.until_up().await;
    let whole = node.engine("A").complete(300).await.unwrap();
    let mut stream = node.engine("A").stream(300).await;
    stream.until(5).await;
    agent.kill().await;
    stream.until(10).await;
    let agent = node.start().await;
    agent.until_at("A", Tier::Awake).await;
    assert_eq!(stream.end().await, (whole, "length".to_owned()));
    agent.stop().await;
}

#[tokio::test]
async fn what_ended_while_no_agent_watched_is_swept_and_started_again() {
    let (node, agent) = pair().await;
    let leader = agent.engine("B").await.incarnation.unwrap().pid;
    let a = node.core("A").pid;
    agent.kill().await;
    kill(leader);
    let old: BTreeSet<u32> = node.tree("B").iter().map(|p| p.pid).collect();
    let agent = node.start().await;
    agent.until_up().await;
    assert_eq!(agent.incident_codes(0).await, ["crashed B"]);
    assert_eq!(node.core("A").pid, a, "the one that serves is not touched");
    let now: BTreeSet<u32> = node.tree("B").iter().map(|p| p.pid).collect();
    assert!(now.is_disjoint(&old), "{now:?} {old:?}");
    agent.done(Switch::to("B")).await;
    agent.stop().await;
}

#[tokio::test]
async fn an_engine_that_somebody_put_to_sleep_meanwhile_serves_again() {
    let (node, agent) = pair().await;
    let a = node.core("A").pid;
    agent.kill().await;
    assert_eq!(node.engine("A").post("/sleep?level=1").await, 200);
    let agent = node.start().await;
    agent.until_idle().await;
    agent.until_at("A", Tier::Awake).await;
    node.engine("A").serves().await;
    assert_eq!(agent.incident_codes(0).await, ["drifted A"]);
    assert_eq!(node.core("A").pid, a, "its weights are read again, it is not started again");
    agent.stop().await;
}

#[tokio::test]
async fn what_an_operator_has_stopped_stays_stopped() {
    let (node, agent) = pair().await;
    agent.done(stop("B")).await;
    agent.kill().await;
    let agent = node.start().await;
    agent.until_at("A", Tier::Awake).await;
    agent.until_idle().await;
    assert_eq!(agent.engine("B").await.tier, Some(Tier::Stopped));
    assert_eq!(node.tree("B"), []);
    agent.done(start("B")).await;
    agent.stop().await;
}

#[tokio::test]
async fn other_settings_wait_for_an_idle_moment_and_a_removed_engine_is_stopped() {
    // A token of A takes a millisecond: a stream lasts for seconds.
    let node = Setup::pair().each(|e| e.speed(40.0)).build();
    let agent = node.start().await;
    agent.until_up().await;
    let a = node.core("A").pid;
    agent.kill().await;
    let text = std::fs::read_to_string(node.config()).unwrap();
    let mut stream = node.engine("A").stream(3000).await;
    stream.until(5).await;
    let (rest, _b) = text.rsplit_once("\n[[engine]]\n").unwrap();
    std::fs::write(node.config(), rest.replace("\"0.78\"", "\"0.77\"")).unwrap();
    let agent = node.start().await;
    agent.until_at("A", Tier::Awake).await;
    let mut told = agent.incident_codes(0).await;
    told.sort();
    assert_eq!(told, ["predecessor_stopped B", "settings_changed A"]);
    assert_eq!(node.core("A").pid, a);
    assert_eq!((node.tree("B"), node.used_by("B")), (Vec::new(), 0));
    // It is being used; then it is not.
    assert_eq!(stream.end().await.1, "length");
    let is_new = async || node.tree("A").first().is_some_and(|p| p.command.contains("0.77"));
    until("A to be started with the new settings", is_new).await;
    agent.until_at("A", Tier::Awake).await;
    agent.until_idle().await;
    agent.stop().await;
}

/// B is not configured any more, and serves somebody when its agent is killed: the next one lets it end that. Another engine
/// serves meanwhile, and what is asked of it last is cut off by the drain deadline, or by the agent's own end.
#[tokio::test]
async fn a_removed_engine_ends_its_requests_before_the_next_agent_stops_it() {
    let node = Setup::pair().each(|e| e.speed(40.0)).policy_line("drain_deadline = \"20s\"").build();
    let agent = node.start().await;
    agent.until_up().await;
    agent.done(Switch::to("B")).await;
    let whole = node.engine("B").complete(1500).await.unwrap();
    agent.kill().await;
    let text = std::fs::read_to_string(node.config()).unwrap();
    let (rest, _b) = text.rsplit_once("\n[[engine]]\n").unwrap();
    std::fs::write(node.config(), rest).unwrap();
    let pids: BTreeSet<u32> = node.tree("B").iter().map(|p| p.pid).collect();
    node.engine("B").pace(0.5).await;
    let mut stream = node.engine("B").stream(1500).await;
    stream.until(5).await;

    let agent = node.start().await;
    agent.done(Switch::to("A")).await;
    node.engine("A").serves().await;
    assert_eq!(agent.incident_codes(0).await.iter().filter(|c| c.ends_with(" B")).count(), 0);
    // Killed again meanwhile: the next one goes on waiting.
    agent.kill().await;
    let agent = node.start().await;
    assert_eq!(node.tree("B").iter().map(|p| p.pid).collect::<BTreeSet<_>>(), pids);
    node.engine("B").pace(200.0).await;
    assert_eq!(stream.end().await, (whole, "length".to_owned()));
    until("B to be stopped", async || node.tree("B").is_empty() && node.used_by("B") == 0).await;
    until("that to be told", async || {
        agent.incident_codes(0).await.contains(&"predecessor_stopped B".to_owned())
    })
    .await;
    node.engine("A").serves().await;
    agent.stop().await;
    assert!(node.living().is_empty(), "{:#?}", node.living());
}

/// Whoever never ends its requests is not waited for: not beyond the drain deadline, and not by an agent that stops.
#[tokio::test]
async fn a_removed_engine_is_cut_off_by_the_deadline_and_by_the_end_of_the_agent() {
    for deadline in ["1s", "60s"] {
        let node = Setup::pair().policy_line(&format!("drain_deadline = \"{deadline}\"")).build();
        let agent = node.start().await;
        agent.until_up().await;
        agent.done(Switch::to("B")).await;
        agent.kill().await;
        node.engine("B").pace(0.05).await;
        let mut stream = node.engine("B").stream(3000).await;
        stream.until(1).await;
        let text = std::fs::read_to_string(node.config()).unwrap();
        let (rest, _b) = text.rsplit_once("\n[[engine]]\n").unwrap();
        std::fs::write(node.config(), rest).unwrap();
        let agent = node.start().await;
        assert!(!node.tree("B").is_empty());
        if deadline == "1s" {
            until("B to be stopped", async || node.tree("B").is_empty()).await;
        }
        agent.stop().await;
        assert!(node.living().is_empty(), "{:#?}", node.living());
    }
}

/// A cycle run whose agent was killed has one end, however many agents come: it failed, and how long it took is not known.
#[tokio::test]
async fn a_run_whose_agent_was_killed_is_ended_once() {
    let (node, agent) = pair().await;
    let plan = PlanSource::Named { name: "quick".to_owned() };
    agent.api.run_cycle(&RunCycle { id: Some("cut".to_owned()), plan }).await.unwrap();
    until("the run to have come somewhere", async || agent.api.cycle("cut").await.unwrap().steps_done >= 2)
        .await;
    agent.kill().await;
    for _ in 0..2 {
        let agent = node.start().await;
        agent.until_idle().await;
        let run = agent.api.cycle("cut").await.unwrap();
        assert_eq!(run.state, State::Failed, "{run:#?}");
        assert!(run.error.as_ref().unwrap().message.contains("its agent ended"), "{run:#?}");
        assert!(run.ended_at.is_some() && run.elapsed_s == 0.0, "{run:#?}");
        let ends = agent.entries("run_ended", 0).await;
        assert_eq!(ends.len(), 1, "{ends:#?}");
        assert_eq!(ends[0].run.as_deref(), Some("cut"));
        assert_eq!(ends[0].record["outcome"]["code"], "agent_ended", "{ends:#?}");
        let report = agent.api.report("cut").await.unwrap();
        assert_eq!(report["run"]["outcome"], "failed", "{report:#}");
        assert_eq!(report["run"]["finished"].as_f64(), run.ended_at, "{report:#}");
        assert_ne!(report["status"], "PASS");
        agent.kill().await;
    }
}

#[tokio::test]
async fn what_is_not_proven_is_left_alone() {
    let (node, agent) = pair().await;
    agent.kill().await;
    let record = node.dir().join("state/shims/A-00000000/shim.json");
    std::fs::create_dir_all(record.parent().unwrap()).unwrap();
    std::fs::write(&record, "{ not a record").unwrap();
    let agent = node.start().await;
    agent.until_up().await;
    assert_eq!(agent.incident_codes(0).await, ["left_alone "]);
    assert!(record.exists());
    let checks = agent.api.doctor().await.unwrap().checks;
    assert!(checks.iter().any(|c| c.name == "left by a former agent" && c.found.contains("shim.json")));
    agent.stop().await;
}

#[tokio::test]
async fn a_second_agent_is_refused_and_touches_nothing() {
    let (node, agent) = pair().await;
    let before = pids(&node);
    let mut second = Agent::spawn(&node, &[]);
    let status = tokio::task::spawn_blocking(move || second.wait()).await.unwrap().unwrap();
    assert!(!status.success());
    assert_eq!(pids(&node), before);
    assert!(agent.log().contains("in use by another agent"), "{}", agent.log());
    node.engine("A").serves().await;
    agent.stop().await;
}

#[tokio::test]
async fn a_clients_id_is_known_to_the_next_agent() {
    let (node, agent) = pair().await;
    let submit = Submit { id: Some("mine".into()), request: Switch::to("B").into() };
    let first = agent.api.submit(&submit).await.unwrap();
    agent.wait(&first.id).await;
    agent.kill().await;
    let agent = node.start().await;
    // The same request again is the same operation, also for an agent that was not there.
    let again = agent.api.submit(&submit).await.unwrap();
    assert_eq!((again.number, again.state), (first.number, State::Succeeded));
    let other = Submit { id: Some("mine".into()), request: Switch::to("A").into() };
    assert!(agent.api.submit(&other).await.is_err(), "another request under the same id is a conflict");
    agent.stop().await;
}
