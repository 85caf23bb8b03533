//! The gate under loom; the hub as the proxy and the switcher use it.

mod admission;
mod interleaved;
mod reloaded;
mod tenants;

use super::{Admit, Ask, Hub, Lease, Link, Refusal, Tenant};
use crate::clock;
use crate::config::{self, Facts};
use crate::metrics::Metrics;
use crate::switcher::spec;
use hotbunk_core::event::Event;
use hotbunk_core::ids::EngineId;
use hotbunk_core::state::Node;
use hotbunk_core::tier::Tier;
use hyper::HeaderMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

const A: EngineId = EngineId(0);
const B: EngineId = EngineId(1);

/// Two engines, and what the test adds.
fn config(more: &str, of_a: &str) -> config::Config {
    let engine = |name: &str, port: u16, more: &str| {
        format!(
            r#"
            [[engine]]
            name = "{name}"
            device = "none"
            model = "org/{name}"
            aliases = ["small-{name}"]
            api_key = "engine-key"
            port = {port}
            command = ["vllm", "serve", "x", "--host", "127.0.0.1", "--port", "{port}",
                       "--served-model-name", "org/{name}", "small-{name}"]
            env = {{ VLLM_SERVER_DEV_MODE = "1" }}
            {more}
            "#
        )
    };
    let text = format!("{}{}{more}", engine("A", 8101, of_a), engine("B", 8102, ""));
    match config::parse(&text, Path::new("hotbunk.toml"), &Facts::default()) {
        Ok((config, _)) => config,
        Err(problems) => panic!("{}", problems.render(false)),
    }
}

/// A hub with a switcher that the test plays.
struct Desk {
    hub: Arc<Hub>,
    node: Node,
    told: Arc<Mutex<Vec<Event>>>,
    publish: watch::Sender<Arc<Node>>,
}

impl Desk {
    fn new(more: &str, of_a: &str) -> Self {
        let config = config(more, of_a);
        let unknown = |_: &str| None;
        let (engines, devices) = (spec::engines(&config, unknown), spec::devices(&config, unknown));
        let node = Node::new(engines, devices, spec::policy(&config, None), 1);
        let hub = Hub::new(&config, Metrics::new());
        let (publish, newest) = watch::channel(Arc::new(node.clone()));
        let told: Arc<Mutex<Vec<Event>>> = Arc::default();
        let heard = Arc::clone(&told);
        let tell = Box::new(move |told: Event| heard.lock().unwrap().push(told));
        hub.attach(Link { tell, node: newest });
        Desk { hub, node, told, publish }
    }

    fn apply(&mut self) {
        self.publish.send_replace(Arc::new(self.node.clone()));
        self.hub.follow(&self.node, &[], clock::now());
    }

    fn serve(&mut self, engine: EngineId) {
        let e = self.node.engine_mut(engine);
        (e.tier, e.admission, e.process) = (Tier::Awake, true, true);
        e.life = e.life.max(1);
        e.generation += 1;
        self.apply();
    }

    fn close(&mut self, engine: EngineId) {
        self.node.engine_mut(engine).admission = false;
        self.apply();
    }

    fn anybody(&self) -> Tenant {
        self.hub.authenticate(&HeaderMap::new()).unwrap()
    }

    fn told(&self) -> Vec<Event> {
        std::mem::take(&mut *self.told.lock().unwrap())
    }
}

fn ask(engine: EngineId) -> Ask {
    Ask { engine, stream: false, body_bytes: 100, tokens_estimate: 10, no_switch: false }
}

fn go(admit: Admit) -> Lease {
    match admit {
        Admit::Go(lease) => lease,
        Admit::Hold(held) => panic!("held at {:?}", held.position()),
        Admit::Refuse(refusal) => panic!("{refusal}"),
    }
}

fn hold(admit: Admit) -> super::Held {
    match admit {
        Admit::Hold(held) => held,
        Admit::Go(_) => panic!("let in"),
        Admit::Refuse(refusal) => panic!("{refusal}"),
    }
}

fn refused(admit: Admit) -> Refusal {
    match admit {
        Admit::Refuse(refusal) => refusal,
        Admit::Go(_) => panic!("let in"),
        Admit::Hold(_) => panic!("held"),
    }
}
