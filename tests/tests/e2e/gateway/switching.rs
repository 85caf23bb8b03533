//! Whoever asks for a model gets it, whichever is awake.

use super::{eager, pair};
use hotbunk_api::words::Tier;

#[tokio::test]
async fn one_port_serves_both_models() {
    let (node, agent) = pair(eager).await;
    let (a, b) = (node.engine("A"), node.engine("B"));
    let of_a = a.complete(20).await.unwrap();
    assert_eq!(node.model("A").complete(20).await.unwrap(), of_a);
    // A request is what causes the switch, and its answer comes from the other engine.
    let of_b = node.model("B").complete(20).await.unwrap();
    assert_ne!(of_a, of_b);
    agent.until_at("B", Tier::Awake).await;
    assert_eq!(b.complete(20).await.unwrap(), of_b);
    // Back, by a stream.
    let mut stream = node.model("A").stream(20).await;
    stream.until(1).await;
    assert_eq!(stream.end().await, (of_a, "length".to_owned()));
    agent.until_at("A", Tier::Awake).await;
    assert_eq!(agent.incident_codes(0).await, Vec::<String>::new());
    agent.stop().await;
}
