//! Sleeping and waking without requests: replies, memory, what does nothing (CONTRACT 1.1, 1.2, 1.3).

use crate::check::Check;
use crate::server::Server;
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new(
            "sleep.bad_parameters_are_400",
            "1.1: 0.32 -> 400 for level outside 0..2 or another mode",
            bad,
        ),
        Check::new(
            "sleep.a_body_is_no_parameter",
            "1.1: a JSON body such as {\"level\":2} is silently ignored",
            body,
        ),
        Check::new("sleep.replies", "1.1: the bodies of 0.32", replies),
        Check::new(
            "sleep.level_1_frees_and_keeps",
            "1.3: level 1; fact 1: confirm with free memory",
            level_1,
        ),
        Check::new(
            "sleep.level_2_sequence",
            "1.3: wake weights, reload_weights, wake kv_cache, reset",
            level_2,
        ),
        Check::new(
            "sleep.level_2_without_reload",
            "1.3: a tagless wake after level 2 resumes with other weights",
            no_reload,
        ),
        Check::new("sleep.kv_first_after_level_2", "1.3: kv_cache first is fixed from 0.27", kv_first),
        Check::new("sleep.twice_is_no_op", "1.2: 2nd /sleep while fully asleep: no-op 200", twice),
        Check::new("sleep.wake_twice_is_no_op", "1.2: 2nd /wake_up when awake: no-op 200", wake_twice),
        Check::new("sleep.partial_wake", "1.2: partial wake keeps the scheduler paused (0.24+)", partial),
        Check::new(
            "sleep.a_wrong_tag_is_no_op",
            "1.2: a tag that is awake or unknown: whole call ignored, 200",
            wrong_tag,
        ),
        Check::new(
            "sleep.after_partial_wake",
            "1.2: /sleep after partial wake really sleeps (0.31+)",
            after_partial,
        ),
        Check::new("sleep.level_0_is_a_pause", "1.2: level 0 = pause only; tag scheduling", level_0),
        Check::new(
            "sleep.release_is_refused_unless",
            "1.1: 500 unless paused and all memory resident",
            refusals,
        ),
        Check::new("sleep.parked", "1.1: /release_kv_cache_memory returns the KV cache alone", parked),
        Check::new("sleep.parked_then_level_1", "1.2: /sleep from parked really sleeps (0.31+)", demoted),
        Check::new(
            "sleep.resume_asleep_unpauses",
            "1.2: /resume on a sleeping engine un-pauses the scheduler",
            resume,
        ),
    ]
}

async fn bad(server: Arc<Server>) {
    for (query, param, word) in [
        ("level=3", "query.level", "less than or equal to 2"),
        ("level=-1", "query.level", "greater than or equal to 0"),
        ("level=abc", "query.level", "valid integer"),
        ("level=", "query.level", "valid integer"),
        ("level=1.5", "query.level", "valid integer"),
        ("mode=gently", "query.mode", "'abort', 'wait' or 'keep'"),
        ("level=1&mode=", "query.mode", "'abort', 'wait' or 'keep'"),
    ] {
        let reply = server.http.post(&format!("/sleep?{query}")).await;
        let (message, named) = reply.error(400);
        assert!(message.contains(word), "{query}: {message}");
        assert_eq!(named, param, "{query}");
    }
    assert!(!server.is_sleeping().await && server.is_all_awake());
}

async fn body(server: Arc<Server>) {
    let reply = server.http.post_json("/sleep", &json!({ "level": 2, "mode": "wait" })).await;
    assert_eq!(reply.json, json!({ "status": "sleeping", "level": 1 }));
    let reply = server.http.post_json("/wake_up", &json!({ "tags": ["weights"] })).await;
    assert_eq!(reply.json, json!({ "status": "awake", "tags": null }));
}

async fn replies(server: Arc<Server>) {
    for (call, reply) in [
        ("/sleep?level=0", json!({ "status": "sleeping", "level": 0 })),
        ("/wake_up?tags=scheduling", json!({ "status": "awake", "tags": ["scheduling"] })),
        ("/sleep", json!({ "status": "sleeping", "level": 1 })),
        ("/wake_up?tags=weights", json!({ "status": "sleeping", "tags": ["weights"] })),
        ("/wake_up?tags=kv_cache", json!({ "status": "awake", "tags": ["kv_cache"] })),
        ("/sleep?level=2&mode=wait", json!({ "status": "sleeping", "level": 2 })),
        ("/wake_up", json!({ "status": "awake", "tags": null })),
        ("/sleep?level=1.0", json!({ "status": "sleeping", "level": 1 })),
        ("/wake_up", json!({ "status": "awake", "tags": null })),
        ("/sleep?level=0&mode=keep", json!({ "status": "sleeping", "level": 0 })),
        ("/release_kv_cache_memory", json!({ "status": "kv_cache_released" })),
        ("/wake_up?tags=kv_cache", json!({ "status": "awake", "tags": ["kv_cache"] })),
    ] {
        assert_eq!(server.ok(call).await, reply, "{call}");
    }
    server.rpc("reload_weights", json!({})).await;
}

async fn level_1(server: Arc<Server>) {
    let text = server.text(20).await;
    for mode in ["abort", "wait", "keep"] {
        server.ok(&format!("/sleep?level=1&mode={mode}")).await;
        assert_eq!(server.used(), server.figures.residual, "{mode}");
        assert!(server.is_sleeping().await && server.is_paused().await);
        assert_eq!(server.http.get("/health").await.status, 200);
        server.ok("/wake_up").await;
        assert!(server.is_all_awake() && !server.is_sleeping().await && !server.is_paused().await);
        assert_eq!(server.text(20).await, text);
    }
}

async fn level_2(server: Arc<Server>) {
    let text = server.text(20).await;
    server.ok("/sleep?level=2&mode=wait").await;
    assert_eq!(server.used(), server.figures.residual);
    assert_eq!(server.ok("/wake_up?tags=weights").await["status"], "sleeping");
    server.holds_weights_alone();
    assert!(server.is_sleeping().await);
    server.rpc("reload_weights", json!({})).await;
    assert!(server.is_sleeping().await);
    assert_eq!(server.ok("/wake_up?tags=kv_cache").await["status"], "awake");
    assert_eq!(server.ok("/reset_prefix_cache").await, json!({ "success": true }));
    assert!(server.is_all_awake() && !server.is_sleeping().await);
    assert_eq!(server.text(20).await, text);
}

async fn no_reload(server: Arc<Server>) {
    let text = server.text(20).await;
    let sums = server.http.post_json("/weight_checker", &json!({ "action": "checksum" })).await.json;
    let compare = json!({ "action": "compare", "baseline": sums["checksums"] });
    server.ok("/sleep?level=2").await;
    assert_eq!(server.ok("/wake_up").await, json!({ "status": "awake", "tags": null }), "no warning");
    assert_ne!(server.text(20).await, text);
    assert_eq!(server.http.post_json("/weight_checker", &compare).await.json["match"], false);
    server.rpc("reload_weights", json!({})).await;
    server.ok("/reset_prefix_cache").await;
    assert_eq!(server.http.post_json("/weight_checker", &compare).await.json["match"], true);
    assert_eq!(server.text(20).await, text);
}

async fn kv_first(server: Arc<Server>) {
    let text = server.text(20).await;
    server.ok("/sleep?level=2").await;
    assert_eq!(server.ok("/wake_up?tags=kv_cache").await["status"], "sleeping");
    assert_eq!(server.used(), server.figures.residual + server.figures.kv);
    assert_eq!(server.ok("/wake_up?tags=weights").await["status"], "awake");
    server.rpc("reload_weights", json!({})).await;
    assert_eq!(server.text(20).await, text);
}

async fn twice(server: Arc<Server>) {
    let text = server.text(12).await;
    server.ok("/sleep?level=1").await;
    let done = server.operations().len();
    assert_eq!(server.ok("/sleep?level=1").await, json!({ "status": "sleeping", "level": 1 }));
    assert_eq!(server.ok("/sleep?level=2").await, json!({ "status": "sleeping", "level": 2 }), "and lies");
    assert_eq!(server.used(), server.figures.residual);
    if server.kind == crate::target::Kind::Real {
        assert_eq!(server.operations().len(), done, "the worker is not reached");
    }
    server.ok("/wake_up").await;
    assert_eq!(server.text(12).await, text, "it was level 1 all the time");
}

async fn wake_twice(server: Arc<Server>) {
    for _ in 0..2 {
        assert_eq!(server.ok("/wake_up").await, json!({ "status": "awake", "tags": null }));
    }
    for tag in ["weights", "kv_cache", "scheduling", "nothing"] {
        assert_eq!(
            server.ok(&format!("/wake_up?tags={tag}")).await,
            json!({ "status": "awake", "tags": [tag] })
        );
    }
    assert!(server.is_all_awake() && !server.is_sleeping().await);
    // It resumes a scheduler that was paused.
    server.ok("/pause?mode=wait").await;
    server.ok("/wake_up").await;
    assert!(!server.is_paused().await);
}

async fn partial(server: Arc<Server>) {
    let text = server.text(12).await;
    server.ok("/sleep?level=1").await;
    server.ok("/wake_up?tags=weights").await;
    server.holds_weights_alone();
    assert!(server.is_sleeping().await && server.is_paused().await);
    server.ok("/wake_up?tags=kv_cache").await;
    assert!(server.is_all_awake() && !server.is_sleeping().await && !server.is_paused().await);
    assert_eq!(server.text(12).await, text);
}

async fn wrong_tag(server: Arc<Server>) {
    let reply = |status: &str, tags: Value| json!({ "status": status, "tags": tags });
    server.ok("/sleep?level=1").await;
    assert_eq!(server.ok("/wake_up?tags=nothing").await, reply("sleeping", json!(["nothing"])));
    assert_eq!(server.used(), server.figures.residual);
    server.ok("/wake_up?tags=weights").await;
    for tags in [&["weights"][..], &["weights", "kv_cache"]] {
        let query: Vec<String> = tags.iter().map(|t| format!("tags={t}")).collect();
        let path = format!("/wake_up?{}", query.join("&"));
        assert_eq!(server.ok(&path).await, reply("sleeping", json!(tags)));
        server.holds_weights_alone();
    }
    // A tagless wake takes what is left.
    assert_eq!(server.ok("/wake_up").await, reply("awake", Value::Null));
    assert!(server.is_all_awake());
}

async fn after_partial(server: Arc<Server>) {
    let text = server.text(12).await;
    server.ok("/sleep?level=1").await;
    server.ok("/wake_up?tags=weights").await;
    server.ok("/sleep?level=1").await;
    assert_eq!(server.used(), server.figures.residual);
    server.ok("/wake_up").await;
    assert_eq!(server.text(12).await, text);
}

async fn level_0(server: Arc<Server>) {
    for mode in ["abort", "wait", "keep"] {
        server.ok(&format!("/sleep?level=0&mode={mode}")).await;
        assert!(server.is_all_awake(), "no memory moves");
        assert!(server.is_sleeping().await && server.is_paused().await);
        assert_eq!(server.ok("/wake_up?tags=scheduling").await["status"], "awake");
        assert!(!server.is_sleeping().await);
    }
    // Asleep, the tag wakes nothing, beside another it is dropped.
    server.ok("/sleep?level=1").await;
    assert_eq!(server.ok("/wake_up?tags=scheduling").await["status"], "sleeping");
    assert_eq!(server.used(), server.figures.residual);
    assert_eq!(server.ok("/wake_up?tags=scheduling&tags=weights").await["status"], "sleeping");
    server.holds_weights_alone();
    server.ok("/wake_up").await;
}

async fn refusals(server: Arc<Server>) {
    let path = "/release_kv_cache_memory";
    let refused = async |why: &str| {
        let reply = server.http.post(path).await;
        let (message, _) = reply.error(500);
        assert!(message.starts_with("Call to release_kv_cache_memory method failed"), "{message}");
        assert!(message.contains(why), "{message}");
    };
    refused("a completed pause first").await;
    server.ok("/sleep?level=1").await;
    refused("all executor memory to be resident").await;
    server.ok("/wake_up?tags=weights").await;
    refused("all executor memory to be resident").await;
    server.ok("/wake_up").await;
    server.ok("/sleep?level=0").await;
    server.ok(path).await;
    refused("all executor memory to be resident").await;
    server.ok("/wake_up").await;
    // A pause by its own route is as good.
    server.ok("/pause?mode=wait").await;
    server.ok(path).await;
    server.holds_weights_alone();
    // What gives back the memory does resume; what resumes gives no memory back.
    server.ok("/wake_up").await;
    assert!(!server.is_paused().await && server.is_all_awake());
}

async fn parked(server: Arc<Server>) {
    let text = server.text(20).await;
    server.ok("/sleep?level=0&mode=wait").await;
    server.ok("/release_kv_cache_memory").await;
    server.holds_weights_alone();
    assert!(server.is_sleeping().await);
    // An awake tag: nothing.
    assert_eq!(server.ok("/wake_up?tags=weights").await["status"], "sleeping");
    server.holds_weights_alone();
    assert_eq!(server.ok("/wake_up?tags=kv_cache").await["status"], "awake");
    assert!(server.is_all_awake());
    assert_eq!(server.text(20).await, text);
}

async fn demoted(server: Arc<Server>) {
    let text = server.text(20).await;
    server.ok("/sleep?level=0&mode=wait").await;
    server.ok("/release_kv_cache_memory").await;
    server.ok("/sleep?level=1&mode=wait").await;
    assert_eq!(server.used(), server.figures.residual);
    server.ok("/wake_up").await;
    assert!(server.is_all_awake());
    assert_eq!(server.text(20).await, text);
}

async fn resume(server: Arc<Server>) {
    server.ok("/sleep?level=1").await;
    assert_eq!(server.ok("/resume").await, json!({ "status": "resumed" }));
    assert!(!server.is_paused().await, "a request would run now");
    assert!(server.is_sleeping().await, "by the executor's word");
    assert_eq!(server.used(), server.figures.residual);
    server.ok("/wake_up").await;
    assert!(server.is_all_awake() && !server.is_sleeping().await);
}
