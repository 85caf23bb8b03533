//! `ctl status`: devices, engines and what is going on, once or as it changes.

use crate::context::Context;
use crate::failure::Failure;
use crate::gateway;
use crate::human;
use crate::output::Output;
use crate::progress::{operation_line, run_line};
use futures_util::StreamExt;
use hotbunk_api::status::{
    Canary, Condition, DeviceHealth, DeviceStatus, EngineStatus, Settings, Status, StoppedWhy,
};
use std::pin::pin;
use std::time::Duration;

/// Arguments of `status`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Show it again whenever something changes, until interrupted
    #[arg(long, short)]
    watch: bool,
}

/// Without an event, look again after so long: readings and ages change without one.
const REFRESH: Duration = Duration::from_secs(1);

/// Events in quick succession are shown together.
const SETTLE: Duration = Duration::from_millis(100);

pub(crate) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let client = context.client()?;
    if !args.watch {
        let status = client.status().await?;
        return if context.json { context.out.json(&status) } else { context.out.line(render(&status)) };
    }
    let mut events = pin!(client.events(None).await?);
    let mut streaming = true;
    if !context.json && Output::is_terminal() {
        context.out.bytes(b"\x1b[2J")?;
    }
    while !context.out.is_closed() {
        let status = client.status().await?;
        if context.json {
            context.out.json_line(&status)?;
        } else if Output::is_terminal() {
            // Home, the text, and clear what the last one had more.
            let text = render(&status).replace('\n', "\x1b[K\n");
            context.out.bytes(format!("\x1b[H{text}\x1b[K\n\x1b[J").as_bytes())?;
        } else {
            context.out.line(format!("{}\n", render(&status)))?;
        }
        tokio::select! {
            event = events.next(), if streaming => streaming = matches!(event, Some(Ok(_))),
            () = tokio::time::sleep(REFRESH) => {}
        }
        tokio::time::sleep(SETTLE).await;
    }
    Ok(())
}

/// The status for people.
fn render(status: &Status) -> String {
    let node = &status.node;
    let mut parts = vec![format!(
        "{}: agent {} (pid {}), up {}",
        node.name,
        node.agent_version,
        node.pid,
        human::seconds(node.uptime_s)
    )];
    if let Some(simulated) = &node.simulated {
        parts.push(format!("SIMULATED: profile {}, {}× speed", simulated.profile, simulated.speed));
    }
    if let Some(trouble) = &node.journal_trouble {
        let since = human::seconds(node.started_at + node.uptime_s - trouble.since_at);
        let so = if trouble.refuses_switching { "switching is refused" } else { "events are only logged" };
        parts.push(format!(
            "JOURNAL: cannot be written since {since} ago, {so} ({} so far): {}",
            trouble.lost_events, trouble.reason
        ));
    }
    let host = &node.host;
    parts.push(format!(
        "host memory: {} available of {}, {} planned for engines",
        human::maybe_bytes(host.available_bytes),
        human::maybe_bytes(host.total_bytes),
        human::maybe_bytes(host.reserved_bytes)
    ));
    if !status.devices.is_empty() {
        let header =
            ["DEVICE", "PRODUCT", "USED", "TOTAL", "HELD", "RESERVED", "FOREIGN", "RESERVE", "HEALTH"];
        parts.push(String::new());
        parts.push(human::table(&header, &[2, 3, 4, 5, 6, 7], status.devices.iter().map(device_row)));
    }
    let header =
        ["ENGINE", "MODEL", "TIER", "CONDITION", "GEN", "DEVICE", "HOST", "RUNNING", "CANARY", "VLLM"];
    parts.push(String::new());
    parts.push(human::table(&header, &[4, 5, 6, 7], status.engines.iter().map(engine_row)));
    if let Some(shown) = &status.gateway {
        parts.push(String::new());
        parts.push(gateway::title(shown));
        // Without an endpoint its figures say nothing.
        if shown.listen.is_some() {
            parts.extend(gateway::tables(shown));
        }
    }
    if let Some(paused) = &status.maintenance {
        parts.extend([String::new(), gateway::maintenance(paused)]);
    }
    let mut going_on = Vec::new();
    going_on.extend(status.operation.iter().map(|o| format!("now:   {} [{}]", operation_line(o), o.id)));
    going_on.extend(status.queue.iter().map(|o| format!("next:  {} [{}]", operation_line(o), o.id)));
    going_on.extend(status.cycle.iter().map(|run| format!("cycle: {} [{}]", run_line(run), run.id)));
    if !going_on.is_empty() {
        parts.push(String::new());
        parts.extend(going_on);
    }
    parts.join("\n")
}

fn device_row(device: &DeviceStatus) -> Vec<String> {
    let age = device.reading_age_s.map_or_else(String::new, |s| format!(" ({} ago)", human::seconds(s)));
    let health = match &device.health {
        DeviceHealth::Ok => "ok".to_owned(),
        DeviceHealth::Stale => format!("stale{age}"),
        DeviceHealth::ProcessesUnknown { reason } => format!("ok, but not by process: {reason}"),
        DeviceHealth::Lost { reason } => format!("lost{age}: {reason}"),
        DeviceHealth::None => "not measured".to_owned(),
    };
    vec![
        device.name.clone(),
        human::maybe(device.product.as_ref()),
        human::maybe_bytes(device.used_bytes),
        human::maybe_bytes(device.total_bytes),
        human::maybe_bytes(device.held_bytes),
        human::maybe_bytes(device.reserved_bytes),
        human::maybe_bytes(device.foreign_bytes),
        human::bytes(device.reserve_bytes),
        health,
    ]
}

fn engine_row(engine: &EngineStatus) -> Vec<String> {
    let footprint = engine.footprints.iter().find(|f| Some(f.tier) == engine.tier);
    // An estimate is marked: nobody should take it for a measurement.
    let size = |bytes: Option<u64>| match (bytes, footprint.is_some_and(|f| f.measured)) {
        (Some(n), false) => format!("~{}", human::bytes(n)),
        (n, _) => human::maybe_bytes(n),
    };
    let canary = match engine.canary {
        Canary::None => human::UNKNOWN,
        Canary::Recorded => "recorded",
        Canary::Matched { .. } => "ok",
        Canary::Mismatched { .. } => "MISMATCH",
    };
    vec![
        engine.name.clone(),
        engine.model.clone(),
        human::maybe(engine.tier),
        condition(engine),
        engine.generation.to_string(),
        size(footprint.and_then(|f| f.device_bytes)),
        size(footprint.and_then(|f| f.host_bytes)),
        human::maybe(engine.in_flight),
        canary.to_owned(),
        human::maybe(engine.version.as_ref()),
    ]
}

/// What it is doing, and what it is about to.
fn condition(engine: &EngineStatus) -> String {
    let mut text = doing(&engine.condition);
    if engine.retiring {
        text.push_str(", retiring");
    }
    match engine.settings {
        Settings::InForce => {}
        Settings::Pending => text.push_str(", settings: pending"),
        Settings::PendingRestart => text.push_str(", settings: pending restart"),
    }
    text
}

fn doing(condition: &Condition) -> String {
    match condition {
        Condition::Settled => "settled".to_owned(),
        Condition::Moving { .. } => "moving".to_owned(),
        Condition::Starting { for_s } => {
            format!("starting{}", for_s.map_or_else(String::new, |s| format!(" ({})", human::seconds(s))))
        }
        Condition::Backoff { until_at, failures, reason } => {
            format!("back-off until {} (failed {failures}×): {reason}", human::date(*until_at))
        }
        Condition::Failed { reason } => format!("failed: {reason}"),
        Condition::Stopped { why } => {
            let why = match why {
                StoppedWhy::NotStarted => "not started",
                StoppedWhy::Operator => "by an operator",
                StoppedWhy::NoRoom => "no room",
                StoppedWhy::PortTaken => "its port is taken; see `ctl doctor`",
                StoppedWhy::Handoff => "by a handoff",
                StoppedWhy::CannotSleep => "it cannot sleep",
                StoppedWhy::Idle => "unused for long",
                StoppedWhy::Maintenance => "for maintenance",
                StoppedWhy::Shutdown => "the agent stops",
            };
            format!("stopped ({why})")
        }
        Condition::Drifted { reason } => format!("drifted: {reason}"),
        Condition::Stalled { reason } => format!("stalled: {reason}"),
    }
}
