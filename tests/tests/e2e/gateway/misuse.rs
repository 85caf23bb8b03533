//! What clients must not be able to do.

use super::{eager, pair};
use hotbunk_api::words::Tier;
use hotbunk_tests::PATIENCE;
use reqwest::Method;
use serde_json::{Value, json};

/// I9: nothing that controls an engine is reachable through the gateway.
#[tokio::test]
async fn an_engine_cannot_be_controlled_through_the_gateway() {
    let (node, agent) = pair(eager).await;
    let port = node.gateway_port();
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let body = json!({ "model": node.engine("A").model(), "method": "sleep" });
    for path in [
        "sleep?level=1",
        "pause",
        "collective_rpc",
        "abort_requests",
        "release_kv_cache_memory",
        "sim/fault",
        "metrics",
    ] {
        for prefix in ["/", "//", "/v1/..//", "/v1/%2e%2e/", "/v1/x/..%2f..%2f", "/V1/"] {
            for method in [Method::POST, Method::GET] {
                let url = format!("http://127.0.0.1:{port}{prefix}{path}");
                let answer =
                    http.request(method.clone(), &url).json(&body).timeout(PATIENCE).send().await.unwrap();
                assert_eq!(answer.status(), 404, "{method} {url}");
                let error: Value = answer.json().await.unwrap();
                assert_eq!(error["error"]["code"], "not_found", "{method} {url}");
            }
        }
    }
    agent.until_at("A", Tier::Awake).await;
    node.engine("A").serves().await;
    assert_eq!(agent.incident_codes(0).await, Vec::<String>::new());
    agent.stop().await;
}

#[tokio::test]
async fn asking_what_there_is_switches_nothing() {
    let (node, agent) = pair(eager).await;
    let mark = agent.mark().await;
    let base = format!("http://127.0.0.1:{}", node.gateway_port());
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let list: Value = http.get(format!("{base}/v1/models")).send().await.unwrap().json().await.unwrap();
    let tiers: Vec<(&str, &str)> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| (m["id"].as_str().unwrap(), m["hotbunk"]["tier"].as_str().unwrap()))
        .collect();
    assert_eq!(tiers, [(node.engine("A").model(), "awake"), (node.engine("B").model(), "level1")]);
    for path in ["/health", "/ready"] {
        assert_eq!(http.get(format!("{base}{path}")).send().await.unwrap().status(), 200);
    }
    // And a request that must not switch is told so at once.
    let body = json!({ "model": node.engine("B").model(), "prompt": "x" });
    let asked = http.post(format!("{base}/v1/completions")).header("x-no-switch", "1").json(&body);
    let answer = asked.send().await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["x-should-retry"]),
        (409, &"false".parse().unwrap())
    );
    assert_eq!(agent.entries("operation_accepted", mark).await.len(), 0);
    agent.stop().await;
}
