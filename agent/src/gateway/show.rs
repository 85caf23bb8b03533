//! The gateway as the control API shows it.

use super::hub::Hub;
use super::line::Line;
use crate::clock;
use crate::status;
use hotbunk_api::gateway::{Eta, GatewayStatus, LineStatus, TenantStatus, Turn};
use hotbunk_core::demand;
use hotbunk_core::fairness::Place;
use hotbunk_core::state::{Engine, Node};
use hotbunk_core::time::Moment;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Seconds from now; negative where it has passed.
fn from_now(at: Moment, now: Moment) -> f64 {
    at.since(now).as_secs_f64() - now.since(at).as_secs_f64()
}

impl Hub {
    /// Everything, by this state.
    pub fn show(&self, node: &Node) -> GatewayStatus {
        let now = clock::now();
        let turn = |place: Place| Turn {
            engine: node.engine(place.engine).spec.name.clone(),
            turn_s: from_now(place.turn, now).max(0.0),
            latest_s: from_now(place.latest, now),
        };
        GatewayStatus {
            listen: self.bound().map(|address| address.to_string()),
            held_bytes: self.bytes.load(Ordering::SeqCst),
            held_bytes_limit: self.settings().hold_bytes,
            lines: self.shown(node).map(|line| self.show_line(line, node, now)).collect(),
            turns: demand::turns(node, now).into_iter().map(turn).collect(),
            tenants: self.show_tenants(),
        }
    }

    /// What is not configured any more is shown as long as a process of it is left.
    fn shown(&self, node: &Node) -> impl Iterator<Item = &Line> {
        let shown = |(_, engine): &(&Line, &Engine)| status::is_shown(engine);
        self.lines().zip(&node.engines).filter(shown).map(|(line, _)| line)
    }

    fn show_line(&self, line: &Line, node: &Node, now: Moment) -> LineStatus {
        let eta = if line.gate.is_open() { demand::Eta::Serving } else { demand::eta(node, line.id, now) };
        LineStatus {
            engine: line.name.clone(),
            open: line.gate.is_open(),
            in_flight: line.gate.in_flight(),
            max_in_flight: line.limit(),
            held: line.held(),
            oldest_s: line.oldest().map(|since| now.since(since).as_secs_f64()),
            eta: match eta {
                demand::Eta::Serving => Eta::Serving,
                demand::Eta::In(time) => Eta::In { s: time.as_secs_f64() },
                demand::Eta::Never(why) => Eta::Never { reason: why.to_string() },
            },
            used_at: line.finished_at().map(|at| clock::epoch() - now.since(at).as_secs_f64()),
        }
    }

    fn show_tenants(&self) -> Vec<TenantStatus> {
        let face = self.face();
        let shown = face.tenants.shown();
        shown
            .map(|tenant| {
                let loads = self.lines().map(|line| tenant.load(line.id));
                let (in_flight, held) = loads.fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
                let switch_s = Duration::as_secs_f64(&tenant.switch_time());
                TenantStatus { name: tenant.name().to_owned(), in_flight, held, switch_s }
            })
            .collect()
    }
}
