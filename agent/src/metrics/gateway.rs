//! The gateway's series.

use super::{Metrics, Name, device_label, engine_label, value};
use metrics::Label;
use std::time::Duration;

fn tenant_label(tenant: &str) -> Label {
    Label::new("tenant", tenant.to_owned())
}

impl Metrics {
    /// Requests running on an engine and waiting for it, by the gateway's own count.
    pub fn gateway_load(&self, engine: &str, in_flight: u32, held: u32) {
        let of = |name| self.gauge(name, vec![engine_label(engine)]);
        of(Name::GatewayInFlight).set(value(Some(in_flight.into())));
        of(Name::GatewayHeld).set(value(Some(held.into())));
    }

    /// A request that had to wait for an engine was let in.
    pub fn gateway_waited(&self, engine: &str, waited: Duration) {
        self.histogram(Name::GatewayHold, vec![engine_label(engine)]).record(waited.as_secs_f64());
    }

    /// A request was refused. `code` is one of [`crate::gateway::Refusal`]'s.
    pub fn gateway_refused(&self, engine: &str, code: &'static str) {
        let labels = vec![Label::from_static_parts("code", code), engine_label(engine)];
        self.counter(Name::GatewayRefusals, labels).increment(1);
    }

    /// So much of a device's time went into switching since the agent began.
    pub fn switching(&self, device: &str, total: Duration) {
        self.gauge(Name::Switching, vec![device_label(device)]).set(total.as_secs_f64());
    }

    /// So much time went into switches that a tenant's requests caused since the agent began.
    pub fn tenant_switching(&self, tenant: &str, total: Duration) {
        self.gauge(Name::TenantSwitching, vec![tenant_label(tenant)]).set(total.as_secs_f64());
    }
}
