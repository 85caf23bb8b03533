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
//! | `life/NAME` | one process life: incarnation, settings, canary | the hands, with the records of start and warm-up |
//!
//! It is state, not history: why anything is as it is stands in the journal's entries.

use crate::engine::Canary;
use crate::journal::Keep;
use crate::switcher::{Client, Order};
use hotbunk_api::operation::{Initiator, Operation, OperationRequest};
use hotbunk_api::words::State;
use hotbunk_core::adopt::{self, Kept, KeptDevice, KeptEngine, KeptWork};
use hotbunk_core::event::{By, Request};
use hotbunk_core::ids::{Incarnation, OperationId};
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
        let now = adopt::keep(node);
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

    /// What was to be written was not: all of it is due again.
    pub fn lost(&mut self) {
        self.written = None;
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
}

fn value<T: DeserializeOwned>(body: &str) -> Option<T> {
    serde_json::from_str(body).ok()
}
