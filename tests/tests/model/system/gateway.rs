//! A gateway beside the core: requests that are held, let through, or gone, and engines in use.
//!
//! What is held is kept here as well, so that the core's own idea of it is held against something.

use super::{Config, Sys, id};
use hotbunk_core::demand::{self, Demand, Eta};
use hotbunk_core::event::{By, Event, Use};
use hotbunk_core::ids::EngineId;
use hotbunk_core::spec::Rung;
use hotbunk_core::state::Stage;
use hotbunk_core::tier::Tier;
use hotbunk_core::time::Moment;
use std::time::Duration;

/// What the gateway may do, and what the engines do where it does nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gateway {
    /// How often a request may come for an engine, or begin with it.
    pub(crate) asks: u8,
    /// Seconds without use until an engine goes to a tier, by engine.
    pub(crate) ladders: Vec<Vec<(u64, Tier)>>,
    /// Engines that only an operator puts to sleep.
    pub(crate) pinned: Vec<u16>,
}

impl Gateway {
    pub(crate) fn ladder(&self, at: usize) -> Vec<Rung> {
        let rungs = self.ladders.get(at).into_iter().flatten();
        rungs.map(|(after, tier)| Rung { after: Duration::from_secs(*after), tier: *tier }).collect()
    }
}

/// What the gateway does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Does {
    /// A request comes for an engine that does not serve, and is held.
    Hold,
    /// Nothing is held for it any more.
    LetGo,
    /// A request begins with it.
    Begin,
    /// None is with it any more.
    End,
}

impl Sys {
    /// What the gateway may do next.
    pub(crate) fn may_do(&self) -> Vec<(u16, Does)> {
        let mut all = Vec::new();
        for at in 0..self.held.len() {
            let e = &self.node.engines[at];
            if self.held[at] {
                all.push((id(at).0, Does::LetGo));
            } else if self.asks > 0 && !e.admission && self.file.engines[at].listed {
                all.push((id(at).0, Does::Hold));
            }
            if e.in_flight > 0 {
                all.push((id(at).0, Does::End));
            } else if self.asks > 0 && e.admission {
                all.push((id(at).0, Does::Begin));
            }
        }
        all
    }

    pub(crate) fn does(&mut self, config: &Config, at: u16, does: Does, now: Moment) {
        let engine = EngineId(at);
        self.since = 0;
        if matches!(does, Does::Begin | Does::End) {
            self.in_use[usize::from(at)] = does == Does::Begin;
        }
        if matches!(does, Does::Hold | Does::Begin) {
            self.asks = self.asks.saturating_sub(1);
        }
        let event = match does {
            Does::Hold | Does::LetGo => {
                let holds = does == Does::Hold;
                self.held[usize::from(at)] = holds;
                let oldest = holds.then_some(now);
                Event::Demand { engine, demand: Demand { held: u32::from(holds), oldest } }
            }
            Does::Begin => Event::Uses(vec![Use { engine, in_flight: 1, at: now }]),
            Does::End => Event::Uses(vec![Use { engine, in_flight: 0, at: now }]),
        };
        self.feed(config, event, now);
    }

    /// A switch that nobody wants any more does not go on, if it has not begun to move memory.
    pub(crate) fn nobody_switches_in_vain(&mut self) {
        let in_vain = self.node.operations.iter().any(|op| {
            let wanted = op.incoming.is_none_or(|to| self.held[usize::from(to.0)]);
            op.by == By::Gateway && op.stage == Stage::Forward && !wanted && !op.moved
        });
        if in_vain {
            self.fail("a switch goes on that nobody wants");
        }
    }

    /// Where nothing is under way: whoever waits has been told that it is in vain, or something is due.
    pub(crate) fn nobody_is_forgotten(&mut self, now: Moment) {
        for at in 0..self.held.len() {
            let e = id(at);
            let told = matches!(demand::eta(&self.node, e, now), Eta::Never(_) | Eta::Serving);
            if self.held[at] && !told && self.node.next_deadline(now).is_none() {
                let name = self.node.engine(e).spec.name.clone();
                return self.fail(format!("requests for {name} wait and nothing is due"));
            }
        }
    }
}
