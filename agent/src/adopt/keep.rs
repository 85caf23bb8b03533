//! What is written down for a later agent, and read by it.
//!
//! Of everything only the newest is kept ([`crate::journal::Keep`]), under these keys:
//!
//! | key | what | by whom |
//! |---|---|---|
//! | `boot` | the boot that the rest belongs to | the switcher |
//! | `engine/NAME` | the core's engine, without its configuration | the switcher, with each step's notes |
//! | `device/NAME` | foreign bytes | the same |
//! | `work` | operations under way, requests that wait | the same |
//! | `order/NUMBER` | who asked for an operation, and under which id | the same |
//! | `done/NUMBER` | operations of clients that are over, the last ones | the same |
//! | `settings/NAME` | fingerprint of the settings that `engine/NAME` speaks of | the same |
//! | `life/NAME` | one process life: incarnation, settings, canary | the hands, with the records of start and warm-up |
//!
//! It is state, not history: why anything is as it is stands in the journal's entries.

use crate::engine::Canary;
use crate::journal::Keep;
use crate::switcher::{Client, Order};
use hotbunk_api::operation::{Initiator, Operation, OperationRequest};
use hotbunk_api::words::State;
use hotbunk_core::event::{By, Request};
use hotbunk_core::ids::{Incarnation, OperationId};
use hotbunk_core::kept::{self, Kept, KeptDevice, KeptEngine, KeptWork};
use hotbunk_core::state::Node;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// One process life of an engine, as the edge knows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Life {
    /// Which process.
    pub incarnation: Incarnation,
    /// The settings that it was started with.
    pub fingerprint: String,
    /// Recorded after its warm-up.
    pub canary: Option<Canary>,
    /// `/version`.
    pub version: Option<String>,
    /// `max_model_len`.
    pub context_tokens: Option<u32>,
}

/// Who asked for an operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct KeptOrder {
    request: Request,
    by: By,
    run: Option<String>,
    client: Option<KeptClient>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct KeptClient {
    id: String,
    request: OperationRequest,
    initiator: Initiator,
}

impl From<&Order> for KeptOrder {
    fn from(order: &Order) -> Self {
        let client = order.client.as_ref().map(|c| KeptClient {
            id: c.id.clone(),
            request: c.request.clone(),
            initiator: c.initiator.clone(),
        });
        KeptOrder { request: order.request.clone(), by: order.by, run: order.run.clone(), client }
    }
}

impl From<KeptOrder> for Order {
    fn from(kept: KeptOrder) -> Self {
        let client = kept.client.map(|c| Client { id: c.id, request: c.request, initiator: c.initiator });
        Order { request: kept.request, by: kept.by, run: kept.run, client }
    }
}

/// A life, to be kept.
pub fn keep_life(engine: &str, life: &Life) -> Keep {
    keep(format!("life/{engine}"), life)
}

fn keep<T: Serialize>(key: String, value: &T) -> Keep {
    // These types hold nothing that JSON cannot hold; one that did would be forgotten, and the engine taken for unknown.
    Keep { key, body: serde_json::to_string(value).ok() }
}

/// Operations of clients that are remembered once they are over: whoever was waiting when the agent was killed learns from
/// the next one what became of it.
const DONE: usize = 256;

/// Knows what has been written, and what has to be after a step.
#[derive(Debug, Default)]
pub struct Keeper {
    written: Option<Kept>,
    /// Fingerprints by engine, as they were written.
    settings: BTreeMap<String, String>,
    orders: HashMap<OperationId, (Order, bool)>,
    /// Operations that are over, oldest first.
    done: VecDeque<u64>,
    /// Those of them that have not been written.
    unwritten: Vec<(u64, Operation)>,
}

impl Keeper {
    /// A command was given; it counts once the node knows it as an operation or as one that waits.
    pub fn order(&mut self, id: OperationId, order: &Order) {
        self.orders.insert(id, (order.clone(), false));
    }

    /// What a former agent has written already.
    pub fn orders(&mut self, orders: HashMap<OperationId, Order>) {
        self.orders.extend(orders.into_iter().map(|(id, order)| (id, (order, true))));
    }

    /// What a former agent has remembered already.
    pub fn remembers(&mut self, done: &[Operation]) {
        self.done.extend(done.iter().filter_map(|operation| operation.number));
    }

    /// An operation of a client is over.
    pub fn ended(&mut self, number: OperationId, mut shown: Operation) {
        shown.state = State::of_end(shown.error.as_ref().map(|error| error.code));
        self.done.push_back(number.0);
        self.unwritten.push((number.0, shown));
    }

    /// What has changed since the last time.
    pub fn changes(&mut self, node: &Node) -> Vec<Keep> {
        let now = kept::keep(node);
        let mut changes = Vec::new();
        if self.written.is_none() {
            changes.extend(crate::process::tree::boot_id().ok().map(|boot| keep("boot".to_owned(), &boot)));
        }
        let before = self.written.as_ref();
        for (at, engine) in now.engines.iter().enumerate() {
            if before.and_then(|b| b.engines.get(at)) != Some(engine) {
                changes.push(keep(format!("engine/{}", now.work.engines[at]), engine));
            }
        }
        for (at, device) in now.devices.iter().enumerate() {
            if before.and_then(|b| b.devices.get(at)) != Some(device) {
                changes.push(keep(format!("device/{}", now.work.devices[at]), device));
            }
        }
        if before.map(|b| &b.work) != Some(&now.work) {
            changes.push(keep("work".to_owned(), &now.work));
        }
        let known = |id: &OperationId| {
            now.work.operations.iter().any(|op| op.id == *id) || now.work.queue.iter().any(|q| q.id == *id)
        };
        self.orders.retain(|id, (order, written)| {
            let (known, key) = (known(id), || format!("order/{}", id.0));
            if known && !*written {
                changes.push(keep(key(), &KeptOrder::from(&*order)));
                *written = true;
            } else if !known && *written {
                changes.push(Keep { key: key(), body: None });
            }
            known
        });
        let done_key = |number: u64| format!("done/{number:020}");
        changes.extend(self.unwritten.drain(..).map(|(number, shown)| keep(done_key(number), &shown)));
        while self.done.len() > DONE {
            changes.extend(self.done.pop_front().map(|number| Keep { key: done_key(number), body: None }));
        }
        self.written = Some(now);
        changes
    }

    /// The same of the settings that are in force: name and fingerprint of each engine. What was learned counts for these,
    /// also where no process was ever started with them.
    pub fn settings<'a>(&mut self, in_force: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<Keep> {
        let mut changes = Vec::new();
        for (name, fingerprint) in in_force {
            if self.settings.get(name).is_none_or(|written| written != fingerprint) {
                changes.push(keep(format!("settings/{name}"), &fingerprint));
                self.settings.insert(name.to_owned(), fingerprint.to_owned());
            }
        }
        changes
    }

    /// What was to be written was not: all of it is due again.
    pub fn lost(&mut self) {
        self.written = None;
        self.settings.clear();
        self.orders.values_mut().for_each(|(_, written)| *written = false);
    }
}

/// Everything that a former agent wrote down.
#[derive(Debug, Clone, Default)]
pub struct Former {
    /// Whether it was in this boot: processes and instants of another one are gone.
    pub same_boot: bool,
    /// Engines by name.
    pub engines: BTreeMap<String, KeptEngine>,
    /// Devices by name.
    pub devices: BTreeMap<String, KeptDevice>,
    /// What was under way.
    pub work: Option<KeptWork>,
    /// Process lives by engine.
    pub lives: BTreeMap<String, Life>,
    /// Fingerprints of the settings that were in force, by engine.
    pub settings: BTreeMap<String, String>,
    /// Who asked for what.
    pub orders: HashMap<OperationId, Order>,
    /// Operations of clients that were over, oldest first.
    pub done: Vec<Operation>,
    /// Keys whose contents this version cannot read.
    pub unreadable: Vec<String>,
}

impl Former {
    /// Sorts what the journal keeps. What cannot be read (it was written by another version) is named and left out:
    /// then evidence alone decides.
    pub fn read(kept: Vec<(String, String)>, boot: &str) -> Former {
        let mut former = Former::default();
        for (key, body) in kept {
            let (kind, name) = key.split_once('/').unwrap_or((&key, ""));
            let read = match kind {
                "boot" => value::<String>(&body).map(|was| former.same_boot = was == boot),
                "engine" => value(&body).map(|e| drop(former.engines.insert(name.to_owned(), e))),
                "device" => value(&body).map(|d| {
                    former.devices.insert(name.to_owned(), d);
                }),
                "work" => value(&body).map(|w| former.work = Some(w)),
                "settings" => value(&body).map(|s| drop(former.settings.insert(name.to_owned(), s))),
                "life" => value(&body).map(|l| drop(former.lives.insert(name.to_owned(), l))),
                "order" => value::<KeptOrder>(&body).zip(name.parse().ok()).map(|(order, number)| {
                    former.orders.insert(OperationId(number), order.into());
                }),
                "done" => value(&body).map(|operation| former.done.push(operation)),
                // Of a newer version.
                _ => None,
            };
            if read.is_none() {
                former.unreadable.push(key);
            }
        }
        former
    }

    /// Whether what is kept of an engine is of other settings than these. What is kept of one that lives is of what its
    /// process was started with; of another one it may be of settings that were put in force and never started.
    pub fn is_of_others(&self, engine: &str, fingerprint: &str, lives: bool) -> bool {
        let started = self.lives.get(engine).map(|life| &life.fingerprint);
        let in_force = self.settings.get(engine).filter(|_| !lives);
        [in_force, started].into_iter().flatten().any(|known| known != fingerprint)
    }
}

fn value<T: DeserializeOwned>(body: &str) -> Option<T> {
    serde_json::from_str(body).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switcher::spec;
    use hotbunk_core::event::Event;
    use hotbunk_core::ids::EngineId;
    use hotbunk_core::step::step;
    use hotbunk_core::tier::Tier;
    use hotbunk_core::time::Moment;

    fn node() -> Node {
        spec::node_of(&["A", "B"])
    }

    /// A start of A is under way, a command of a client.
    fn begun(keeper: &mut Keeper) -> Node {
        let mut node = node();
        let id = node.number();
        let request = Request::Start { engine: EngineId(0), rehearse: None, awake: true };
        let client = Client {
            id: "mine".to_owned(),
            request: serde_json::from_str(r#"{"kind":"start","engine":"A"}"#).unwrap(),
            initiator: Initiator::Agent,
        };
        let order = Order { request: request.clone(), by: By::Operator, run: None, client: Some(client) };
        keeper.order(id, &order);
        step(&mut node, Event::Command { id, request, by: By::Operator }, Moment(5));
        node
    }

    fn written(changes: Vec<Keep>, table: &mut BTreeMap<String, String>) {
        for Keep { key, body } in changes {
            match body {
                Some(body) => drop(table.insert(key, body)),
                None => drop(table.remove(&key)),
            }
        }
    }

    fn read(table: &BTreeMap<String, String>, boot: &str) -> Former {
        Former::read(table.clone().into_iter().collect(), boot)
    }

    #[test]
    fn what_is_written_is_read_back_whole() {
        let (mut keeper, mut table) = (Keeper::default(), BTreeMap::new());
        let node = begun(&mut keeper);
        written(keeper.changes(&node), &mut table);
        let boot = crate::process::tree::boot_id().unwrap();
        let former = read(&table, &boot);
        let kept = kept::keep(&node);
        assert!(former.same_boot && former.unreadable.is_empty(), "{former:?}");
        assert_eq!(former.work.as_ref(), Some(&kept.work));
        assert_eq!(former.engines.values().collect::<Vec<_>>(), kept.engines.iter().collect::<Vec<_>>());
        assert_eq!(former.orders[&OperationId(1)].client.as_ref().map(|c| c.id.as_str()), Some("mine"));
        assert_eq!(former.work.map(|work| work.onto(&node)), Some(kept.work.clone()));
        assert_eq!(keeper.changes(&node), [], "what stands there is not written again");
        // Where the file orders engines otherwise, it means the same engines.
        let mut other = node.clone();
        other.engines.reverse();
        let moved = kept.work.clone().onto(&other);
        assert_eq!(moved.operations.len(), kept.work.operations.len());
        assert_eq!(moved.onto(&node), kept.work);
    }

    #[test]
    fn what_another_boot_has_left_is_not_taken_for_this_one() {
        let (mut keeper, mut table) = (Keeper::default(), BTreeMap::new());
        written(keeper.changes(&begun(&mut Keeper::default())), &mut table);
        assert!(!read(&table, "another boot").same_boot);
    }

    /// What was put into force and never started: its footprints are not those of the settings before.
    #[test]
    fn what_is_kept_is_of_the_settings_in_force_whatever_was_started_last() {
        let mut keeper = Keeper::default();
        assert_eq!(keeper.settings([("A", "old"), ("B", "b")]).len(), 2);
        let mut table = BTreeMap::new();
        written(keeper.settings([("A", "new"), ("B", "b")]), &mut table);
        assert_eq!(table.keys().collect::<Vec<_>>(), ["settings/A"], "and nothing that has not changed");
        let incarnation = Incarnation { pid: 7, start_ticks: 7, boot_id: String::new() };
        let fingerprint = "old".to_owned();
        let life = Life { incarnation, fingerprint, canary: None, version: None, context_tokens: None };
        written(vec![keep_life("A", &life)], &mut table);
        let former = read(&table, "");
        assert!(former.unreadable.is_empty() && former.is_of_others("A", "old", false), "{former:?}");
        assert!(former.is_of_others("A", "new", true), "its process is of the old ones");
        assert!(!former.is_of_others("A", "old", true), "and needs nothing");
        assert!(!former.is_of_others("B", "b", false), "what nothing is known of is of these");
        keeper.lost();
        assert_eq!(keeper.settings([("A", "new")]).len(), 1);
    }

    #[test]
    fn an_order_is_kept_as_long_as_its_operation_and_an_end_longer() {
        let (mut keeper, mut table) = (Keeper::default(), BTreeMap::new());
        let mut node = begun(&mut keeper);
        written(keeper.changes(&node), &mut table);
        assert!(table.contains_key("order/1"));
        node.operations.clear();
        let shown: Operation = serde_json::from_value(serde_json::json!({
            "id": "mine", "number": 1, "kind": "start", "engine": "A", "from": null, "request": null,
            "initiator": {"by": "agent"}, "state": "running", "note": null, "error": null, "plan": null, "steps": [],
            "accepted_at": 1.0, "ended_at": 2.0, "elapsed_s": 1.0, "first_token_s": null, "eta_s": null,
        }))
        .unwrap();
        for number in 1..=u64::try_from(DONE).unwrap() + 3 {
            keeper.ended(OperationId(number), Operation { number: Some(number), ..shown.clone() });
        }
        written(keeper.changes(&node), &mut table);
        let former = read(&table, "");
        assert!(former.orders.is_empty());
        // The last ones, in their order, each with its end.
        let numbers: Vec<Option<u64>> = former.done.iter().map(|done| done.number).collect();
        assert_eq!(numbers.len(), DONE);
        assert_eq!((numbers[0], numbers[DONE - 1]), (Some(4), Some(DONE as u64 + 3)));
        assert!(former.done.iter().all(|done| done.state == State::Succeeded));
    }

    #[test]
    fn what_was_not_written_is_written_again_and_what_cannot_be_read_is_named() {
        let mut keeper = Keeper::default();
        let mut node = begun(&mut keeper);
        let first = keeper.changes(&node);
        keeper.lost();
        assert_eq!(keeper.changes(&node), first);
        node.engine_mut(EngineId(1)).cannot_park = true;
        let keys: Vec<String> = keeper.changes(&node).into_iter().map(|keep| keep.key).collect();
        assert_eq!(keys, ["engine/B"], "and nothing that has not changed");
        let mut table = BTreeMap::new();
        written(first, &mut table);
        table.insert("engine/B".to_owned(), "{}".to_owned());
        table.insert("moon/phase".to_owned(), "1".to_owned());
        let former = read(&table, "");
        assert_eq!(former.unreadable, ["engine/B", "moon/phase"]);
        assert_eq!(former.engines["A"].tier, Tier::Stopped);
    }
}
