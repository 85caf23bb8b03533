//! Another configuration while requests run and wait.

use super::*;
use crate::effects::EngineSlot;

fn engine(name: &str, port: u16, model: &str) -> String {
    format!(
        r#"
        [[engine]]
        name = "{name}"
        device = "none"
        model = "{model}"
        port = {port}
        command = ["vllm", "serve", "x", "--host", "127.0.0.1", "--port", "{port}", "--served-model-name", "{model}"]
        env = {{ VLLM_SERVER_DEV_MODE = "1" }}
        "#
    )
}

fn parsed(text: &str) -> config::Config {
    let parsed = config::parse(text, Path::new("hotbunk.toml"), &Facts::default());
    parsed.unwrap_or_else(|problems| panic!("{}", problems.render(false))).0
}

/// The red one, by the trusted header.
fn red(desk: &Desk) -> Tenant {
    let headers = HeaderMap::from_iter([("x-team".parse().unwrap(), "red".parse().unwrap())]);
    desk.hub.authenticate(&headers).unwrap()
}

fn of_red(limits: &str) -> String {
    format!("[gateway]\ntenant_header = \"x-team\"\n[[tenant]]\nname = \"red\"\n{limits}\n")
}

/// As a reload does it.
fn reload(desk: &Desk, former: &config::Config, file: config::Config) -> config::Config {
    let config = file.arranged(former);
    config.engines.iter().skip(desk.node.engines.len()).for_each(|engine| desk.hub.grow(engine));
    desk.hub.configure(&config, |_| None);
    config
}

#[tokio::test]
async fn what_is_not_configured_any_more_is_not_found_and_what_runs_is_finished() {
    let former = config("", "");
    let mut desk = Desk::new("", "");
    desk.serve(A);
    let anybody = desk.anybody();
    let runs = go(desk.hub.admit(&anybody, ask(A)));
    let waits = hold(desk.hub.admit(&anybody, ask(B)));
    let now = reload(&desk, &former, parsed(&engine("C", 8103, "org/C")));
    assert_eq!(now.engines.iter().map(|e| e.retired).collect::<Vec<_>>(), [true, true, false]);
    for id in [A, B] {
        desk.node.engine_mut(id).retired = true;
    }
    desk.node.engines.push(hotbunk_core::state::Engine::new(desk.node.engine(B).spec.clone()));
    desk.apply();
    assert_eq!((desk.hub.resolve("org/A"), desk.hub.resolve("org/C")), (None, Some(EngineId(2))));
    let models: Vec<String> = desk.hub.models().into_iter().map(|m| m.id).collect();
    assert_eq!(models, ["org/C"]);
    let refusal = waits.await.unwrap_err();
    assert_eq!((refusal.status().as_u16(), refusal.code()), (404, "model_not_found"));
    // Whoever had found the model a moment before is told the same.
    assert_eq!(refused(desk.hub.admit(&anybody, ask(B))), Refusal::NotConfigured);
    assert_eq!(desk.hub.in_flight(A), 1);
    assert!(!runs.frozen());
    drop(runs);
    // The new one takes requests of a tenant that was there before it.
    drop(hold(desk.hub.admit(&anybody, ask(EngineId(2)))));
}

#[tokio::test]
async fn limits_change_under_those_who_run_and_counts_go_on() {
    let former = config(&of_red("requests_per_second = 1.0\nburst = 3"), "max_in_flight = 2");
    let mut desk = Desk::new(&of_red("requests_per_second = 1.0\nburst = 3"), "max_in_flight = 2");
    desk.serve(A);
    let (_one, two) = (go(desk.hub.admit(&red(&desk), ask(A))), go(desk.hub.admit(&red(&desk), ask(A))));
    let old = red(&desk);
    let limited = of_red("requests_per_second = 1.0\nburst = 3\nmax_in_flight = 1");
    let now = reload(&desk, &former, config(&limited, "max_in_flight = 2"));
    // Those who run count, and a burst is not given anew.
    assert_eq!(old.load(A), (2, 0));
    assert_eq!(refused(desk.hub.admit(&red(&desk), ask(A))).code(), "too_many_in_flight");
    drop(two);
    assert_eq!(red(&desk).load(A), (1, 0), "one that was let in before leaves by the same count");
    let now =
        reload(&desk, &now, config(&of_red("requests_per_second = 1.0\nburst = 3"), "max_in_flight = 2"));
    let _three = go(desk.hub.admit(&red(&desk), ask(A)));
    assert_eq!(refused(desk.hub.admit(&red(&desk), ask(A))).code(), "rate_limit_exceeded");
    // Room that the new settings make is used at once.
    let waits = hold(desk.hub.admit(&desk.anybody(), ask(A)));
    let now = reload(&desk, &now, config(&of_red(""), "max_in_flight = 3"));
    drop(waits.await.unwrap());
    // Not a tenant any more: everybody. Again: the same as before.
    let now = reload(&desk, &now, config("[gateway]\ntenant_header = \"x-team\"", "max_in_flight = 9"));
    assert_eq!(red(&desk).name(), "default");
    assert_eq!(desk.hub.show(&desk.node).tenants.len(), 1);
    reload(&desk, &now, config(&of_red(""), "max_in_flight = 9"));
    assert_eq!((red(&desk).name(), red(&desk).load(A).0), ("red", 2));
}

#[tokio::test]
async fn a_process_is_asked_for_what_it_was_started_with() {
    let (was, is) = (engine("A", 8101, "org/A"), engine("A", 8109, "org/new"));
    let (former, file) = (parsed(&was), parsed(&is));
    let mut desk = Desk::new("", "");
    let slot = Arc::new(EngineSlot::new(former.engines[0].clone(), former.fingerprint(0).unwrap()));
    let now = file.arranged(&former);
    // Its process runs with the former settings.
    desk.hub.configure(&now, |id| (id == A).then(|| Arc::clone(&slot)));
    assert_eq!((desk.hub.resolve("org/A"), desk.hub.resolve("org/new")), (Some(A), None));
    desk.serve(A);
    let address = |desk: &Desk| go(desk.hub.admit(&desk.anybody(), ask(A))).upstream().address().clone();
    let at = |port: u16| crate::gateway::Address::Tcp(std::net::SocketAddr::from(([127, 0, 0, 1], port)));
    assert_eq!(address(&desk), at(8101));
    desk.hub.revised(A, &now.engines[0]);
    assert_eq!((desk.hub.resolve("org/A"), desk.hub.resolve("org/new")), (None, Some(A)));
    assert_eq!(address(&desk), at(8109));
}
