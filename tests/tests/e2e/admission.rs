//! Who is let in, and when: maintenance, tenants, idle ladders, and what the status says of it.

use hotbunk_api::gateway::{Eta, LineStatus, MaintenanceStage};
use hotbunk_api::operation::{OperationRequest, PauseRequest, ResumeRequest};
use hotbunk_api::words::Tier;
use hotbunk_tests::{Agent, Node, Setup, until};
use reqwest::Response;
use serde_json::{Value, json};

async fn pair(setup: Setup) -> (Node, Agent) {
    let node = setup.build();
    let agent = node.start().await;
    agent.until_up().await;
    (node, agent)
}

/// A short completion of an engine's model through the gateway, with these headers.
async fn ask(node: &Node, agent: &Agent, engine: &str, headers: &[(&str, &str)]) -> Response {
    let listen = agent.status().await.gateway.and_then(|g| g.listen).expect("the gateway's address");
    let body =
        json!({ "model": node.engine(engine).model(), "prompt": "x", "max_tokens": 3, "ignore_eos": true });
    let mut request = reqwest::Client::new().post(format!("http://{listen}/v1/completions")).json(&body);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.send().await.expect("an answer")
}

/// Status, `Retry-After` and OpenAI's code of a refusal.
async fn refusal(response: Response) -> (u16, Option<u64>, String) {
    let status = response.status().as_u16();
    let retry = response.headers().get("retry-after").map(|v| v.to_str().unwrap().parse().unwrap());
    let body: Value = response.json().await.unwrap();
    (status, retry, body["error"]["code"].as_str().unwrap_or_default().to_owned())
}

async fn line(agent: &Agent, engine: &str) -> LineStatus {
    let lines = agent.status().await.gateway.unwrap().lines;
    lines.into_iter().find(|line| line.engine == engine).unwrap()
}

#[tokio::test]
async fn maintenance_keeps_clients_out_and_brings_back_what_served() {
    let (node, agent) = pair(Setup::pair()).await;
    assert_eq!(ask(&node, &agent, "A", &[]).await.status(), 200);
    let pause = PauseRequest { tier: Some(Tier::Stopped), ..PauseRequest::default() };
    agent.done(OperationRequest::Pause(pause)).await;
    let maintenance = agent.status().await.maintenance.expect("maintenance");
    assert_eq!((maintenance.stage, maintenance.served), (MaintenanceStage::Lasts, vec!["A".to_owned()]));
    assert_eq!(node.used(), 0, "the devices are free");
    for engine in ["A", "B"] {
        let (status, retry, code) = refusal(ask(&node, &agent, engine, &[]).await).await;
        assert_eq!((status, code.as_str()), (503, "paused"));
        assert!(retry.is_some_and(|s| s > 0));
    }
    agent.done(OperationRequest::Resume(ResumeRequest {})).await;
    agent.until_at("A", Tier::Awake).await;
    assert_eq!(agent.status().await.maintenance, None);
    assert_eq!(ask(&node, &agent, "A", &[]).await.status(), 200);
    agent.stop().await;
}

/// Digest of `sk-red`, as `printf %s sk-red | sha256sum` prints it.
const RED: &str = "6a5179dfb15c0a35aa273cdf9b271c569d97d52f3bfdb58c7c36772029ba3e4c";

#[tokio::test]
async fn tenants_are_told_apart_and_held_to_their_limits() {
    let tenants = format!(
        "[[tenant]]\nname = \"red\"\nkey_sha256 = \"{RED}\"\nrequests_per_second = 0.01\nburst = 2\n"
    );
    let (node, agent) = pair(Setup::pair().tables(&tenants)).await;
    let key = [("authorization", "Bearer sk-red")];
    for (headers, wanted) in
        [(&[][..], 401), (&[("authorization", "Bearer sk-blue")][..], 401), (&key[..], 200)]
    {
        assert_eq!(ask(&node, &agent, "A", headers).await.status(), wanted, "{headers:?}");
    }
    // The other model has a rate of its own, and this request causes a switch that is charged to whoever sent it.
    assert_eq!(ask(&node, &agent, "B", &key).await.status(), 200);
    assert_eq!(ask(&node, &agent, "B", &key).await.status(), 200);
    let (status, retry, code) = refusal(ask(&node, &agent, "B", &key).await).await;
    assert_eq!((status, code.as_str()), (429, "rate_limit_exceeded"));
    assert!(retry.is_some_and(|s| s > 1 && s <= 100), "{retry:?}");
    let gateway = agent.status().await.gateway.unwrap();
    let names: Vec<&str> = gateway.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
    assert_eq!(names, ["default", "red"]);
    until("the switch to be over and charged", async || {
        agent.status().await.gateway.unwrap().tenants[1].switch_s > 0.0
    })
    .await;
    let page = node.metrics().await;
    assert!(
        page.contains("hotbunk_gateway_refusals_total{code=\"rate_limit_exceeded\",engine=\"B\"} 1\n"),
        "{page}"
    );
    agent.stop().await;
}

#[tokio::test]
async fn an_engine_that_nobody_asks_falls_down_its_ladder_and_comes_back_for_whoever_does() {
    let ladder = "idle = [{ after = \"1s\", tier = \"parked\" }, { after = \"2s\", tier = \"level1\" }]";
    let (node, agent) = pair(Setup::pair().engine("A", |e| e.line(ladder))).await;
    assert_eq!(line(&agent, "A").await.eta, Eta::Serving);
    agent.until_at("A", Tier::Level1).await;
    let idle = line(&agent, "A").await;
    assert!(!idle.open && matches!(idle.eta, Eta::In { s } if s > 0.0), "{idle:?}");
    // Lists and scrapes are no use of it, and wake nobody.
    let listen = agent.status().await.gateway.unwrap().listen.unwrap();
    let models = reqwest::get(format!("http://{listen}/v1/models")).await.unwrap();
    assert_eq!(models.status(), 200);
    assert!(!line(&agent, "A").await.open);
    assert_eq!(ask(&node, &agent, "A", &[("x-no-switch", "1")]).await.status(), 409);
    assert_eq!(ask(&node, &agent, "A", &[]).await.status(), 200);
    assert!(line(&agent, "A").await.used_at.is_some());
    agent.stop().await;
}
