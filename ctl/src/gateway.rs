//! The gateway's figures in words: what `status` and `top` share.

use crate::human;
use hotbunk_api::gateway::{Eta, GatewayStatus, LineStatus, Maintenance, MaintenanceStage, TenantStatus};

/// Columns of the table of engines.
pub(crate) const LINES: [&str; 7] = ["ENGINE", "GATE", "RUNNING", "HELD", "OLDEST", "READY IN", "TURN"];
/// Those of them that hold figures.
pub(crate) const LINES_RIGHT: [usize; 4] = [2, 3, 4, 5];
/// Columns of the table of tenants.
pub(crate) const TENANTS: [&str; 4] = ["TENANT", "RUNNING", "HELD", "SWITCHING"];
/// Those of them that hold figures.
pub(crate) const TENANTS_RIGHT: [usize; 3] = [1, 2, 3];

/// One engine.
pub(crate) fn line_row(gateway: &GatewayStatus, line: &LineStatus) -> Vec<String> {
    let running = match line.max_in_flight {
        Some(most) => format!("{}/{most}", line.in_flight),
        None => line.in_flight.to_string(),
    };
    let ready = match &line.eta {
        Eta::Serving => "now".to_owned(),
        Eta::In { s } => human::seconds(*s),
        Eta::Never { .. } => "never".to_owned(),
    };
    let turn = match (gateway.turns.iter().position(|turn| turn.engine == line.engine), &line.eta) {
        (Some(at), _) => {
            let turn = &gateway.turns[at];
            let late = if turn.latest_s < 0.0 { ", late" } else { "" };
            let when = if turn.turn_s > 0.0 {
                format!(", in {}", human::seconds(turn.turn_s))
            } else {
                String::new()
            };
            format!("{}{when}{late}", at + 1)
        }
        (None, Eta::Never { reason }) => reason.clone(),
        (None, _) => human::UNKNOWN.to_owned(),
    };
    vec![
        line.engine.clone(),
        if line.open { "open" } else { "closed" }.to_owned(),
        running,
        line.held.to_string(),
        human::maybe_seconds(line.oldest_s),
        ready,
        turn,
    ]
}

/// One tenant.
pub(crate) fn tenant_row(tenant: &TenantStatus) -> Vec<String> {
    vec![
        tenant.name.clone(),
        tenant.in_flight.to_string(),
        tenant.held.to_string(),
        human::seconds(tenant.switch_s),
    ]
}

/// Where it listens, and what waits in it.
pub(crate) fn title(gateway: &GatewayStatus) -> String {
    let Some(listen) = &gateway.listen else { return "gateway: off".to_owned() };
    let held: u32 = gateway.lines.iter().map(|line| line.held).sum();
    let running: u32 = gateway.lines.iter().map(|line| line.in_flight).sum();
    format!(
        "gateway: http://{listen}, {running} running, {held} held ({} of {})",
        human::bytes(gateway.held_bytes),
        human::bytes(gateway.held_bytes_limit)
    )
}

/// Maintenance, a sentence.
pub(crate) fn maintenance(paused: &Maintenance) -> String {
    let served = paused.served.join(", ");
    let after = if served.is_empty() {
        "nothing served before".to_owned()
    } else {
        format!("{served} served before")
    };
    let how = match paused.stage {
        MaintenanceStage::Begins => "PAUSING",
        MaintenanceStage::Lasts => "PAUSED",
        MaintenanceStage::Ends => "RESUMING",
    };
    format!("{how} for maintenance since {}; {after}; `ctl resume` ends it", human::seconds(paused.for_s))
}

/// The tables as text. Tenants are shown where there are any beside whoever is not known.
pub(crate) fn tables(gateway: &GatewayStatus) -> Vec<String> {
    let rows = gateway.lines.iter().map(|line| line_row(gateway, line));
    let mut parts = vec![human::table(&LINES, &LINES_RIGHT, rows)];
    if gateway.tenants.len() > 1 {
        parts.push(String::new());
        parts.push(human::table(&TENANTS, &TENANTS_RIGHT, gateway.tenants.iter().map(tenant_row)));
    }
    parts
}
