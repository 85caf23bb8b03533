//! What is left when all clients have gone: nothing.

use crate::door::Door;
use hotbunk_tests::{Agent, Engine, Node, until};
use serde_json::Value;

/// Waits until no lease and no waiting request is left, by the agent's own word and by the engines'.
pub(crate) async fn nothing(agent: &Agent) {
    until("leases and queues to be empty", async || load(agent).await.iter().all(|load| *load == (0, 0)))
        .await;
    let tenants = agent.status().await.gateway.expect("a gateway").tenants;
    assert!(tenants.iter().all(|t| (t.in_flight, t.held) == (0, 0)), "{tenants:?}");
    for engine in agent.node.engines() {
        until("the engines to be at rest", async || {
            engine.metric("vllm:num_requests_running").await == Some(0.0)
        })
        .await;
    }
}

/// By the agent's own word: requests in flight and requests held, by engine.
pub(crate) async fn load(agent: &Agent) -> Vec<(u32, u32)> {
    let gateway = agent.status().await.gateway.expect("a gateway");
    gateway.lines.iter().map(|line| (line.in_flight, line.held)).collect()
}

/// Requests that run in a node's engines, by their own word.
pub(crate) async fn in_flight(node: &Node) -> u64 {
    let mut all = 0.0;
    for engine in node.engines() {
        all += engine.metric("vllm:num_requests_running").await.unwrap_or(0.0);
    }
    all as u64
}

/// Requests that came to an engine, and those of them that came while it was not awake, with how late.
pub(crate) async fn arrivals(engine: &Engine) -> (u64, u64, String) {
    let url = format!("http://127.0.0.1:{}/sim/arrivals", engine.port());
    let body: Value = reqwest::get(url).await.expect("an answer").json().await.expect("JSON");
    let count = |key: &str| body[key].as_u64().expect("a count");
    (count("arrived"), count("asleep"), body["late_ms"].to_string())
}

/// No request has reached an engine that was not awake.
pub(crate) async fn nobody_came_asleep(agent: &Agent) {
    for engine in agent.node.engines() {
        let (arrived, asleep, late) = arrivals(engine).await;
        assert_eq!(asleep, 0, "of {arrived} requests to {}: {late} ms after it left", engine.name());
    }
}

/// Files that a process has open.
pub(crate) fn open_files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Resident memory of a process, MiB.
pub(crate) fn rss_mib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) / 1024
}

/// The gateway serves both models, whatever happened before.
pub(crate) async fn serves(door: &Door) {
    use crate::door::{Ended, HangUp, Wanted};
    for role in ["A", "B"] {
        let prompt = format!("is anybody there, {role}?");
        let wanted = Wanted { role, prompt, tokens: 3, stream: false, hang_up: HangUp::No, key: None };
        let report = door.ask(&wanted).await;
        assert_eq!(report.ended, Ok(Ended::Whole));
    }
}
