//! `doctor`: what the agent finds when it looks around, and what to do about it.
//!
//! Findings come in this order: the configuration; devices and host memory; of each engine its program, its port, what
//! was detected of its vLLM, the calls that follow from that, and its options against the table of known-bad ones; at
//! last each switch that could be asked for, with its way back. Nothing is changed by looking.

mod engine;
mod handoffs;

use crate::config::{Config, Facts, Severity};
use crate::device::Health;
use crate::effects::Hands;
use crate::process::{EngineProcess, LeftAlone, Ownership, port_belongs_to};
use crate::switcher::Handle;
use hotbunk_api::doctor::{DoctorCheck, DoctorReport, DoctorVerdict};
use hotbunk_core::ids::{DeviceId, EngineId};
use hotbunk_core::ledger::{self, human};
use hotbunk_core::state::Node;
use hotbunk_core::tier::Tier;
use std::path::{Path, PathBuf};

/// Everything that can be looked at without changing anything.
pub async fn examine(config: &Config, switcher: &Handle, hands: &Hands) -> DoctorReport {
    let node = switcher.node();
    let mut checks = vec![configuration(config)];
    for at in 0..node.devices.len() {
        checks.push(device(&node, hands, at));
        checks.extend(processes(&node, hands, at).await);
    }
    checks.push(host_memory(&node, hands));
    checks.extend(hands.left_alone.iter().map(left_alone));
    for id in node.ids().filter(|id| crate::status::is_shown(node.engine(*id))) {
        let slot = hands.slot(id);
        checks.push(program(&slot.config.name, &slot.config.command));
        checks.push(port(&slot.config.name, slot.config.port, slot.process()));
        let facts = slot.facts();
        let e = node.engine(id);
        checks.push(engine::detected(e, facts.version.as_deref(), facts.detected));
        checks.extend(engine::calls(e));
        checks.extend(engine::options(&slot.config, e.capabilities.map(|caps| caps.version)));
    }
    checks.extend(handoffs::all(&node));
    DoctorReport { checks }
}

fn check(name: impl Into<String>, verdict: DoctorVerdict, found: impl Into<String>) -> DoctorCheck {
    DoctorCheck { name: name.into(), verdict, found: found.into(), help: None }
}

fn configuration(config: &Config) -> DoctorCheck {
    let name = "configuration";
    match crate::config::load(&config.file, &Facts::of_this_machine()) {
        Ok((_, warnings)) if warnings.is_empty() => {
            check(name, DoctorVerdict::Ok, format!("{} has no problems", config.file.display()))
        }
        Ok((_, warnings)) => check(name, DoctorVerdict::Warning, warnings.render(false)),
        Err(problems) if problems.problems().iter().all(|p| p.severity == Severity::Warning) => {
            check(name, DoctorVerdict::Warning, problems.render(false))
        }
        Err(problems) => DoctorCheck {
            help: Some("the agent still runs with the file as it was when it was read last; `ctl reload` refuses this one".to_owned()),
            ..check(name, DoctorVerdict::Error, problems.render(false))
        },
    }
}

fn device(node: &Node, hands: &Hands, at: usize) -> DoctorCheck {
    let id = device_id(at);
    let name = format!("device {}", node.device(id).spec.name);
    let model = hands.sampler.info(id).map_or("unknown".to_owned(), |i| format!("{} {}", i.model, i.uuid));
    let used = hands.sampler.latest(id).map_or("unknown".to_owned(), |r| human(r.used));
    match hands.sampler.health(id) {
        Health::Ok => {
            let foreign = node.device(id).foreign;
            let verdict = if foreign > 0 { DoctorVerdict::Warning } else { DoctorVerdict::Ok };
            check(name, verdict, format!("{model}, {used} used, {} of it by nobody of ours", human(foreign)))
        }
        Health::NotWatched => check(
            name,
            DoctorVerdict::Skipped,
            "not watched: switches are verified by probes alone, as configured",
        ),
        health @ Health::Degraded { .. } => check(name, DoctorVerdict::Warning, health.to_string()),
        health @ Health::Lost { .. } => DoctorCheck {
            help: Some("handoffs are refused until it can be read again".to_owned()),
            ..check(name, DoctorVerdict::Error, health.to_string())
        },
    }
}

/// What a former agent left and nobody may touch.
fn left_alone(left: &LeftAlone) -> DoctorCheck {
    let pids: Vec<String> = left.pids.iter().map(u32::to_string).collect();
    let found = match pids.as_slice() {
        [] => left.path.display().to_string(),
        pids => format!("{}: pids {}", left.path.display(), pids.join(", ")),
    };
    DoctorCheck {
        help: Some(left.why.clone()),
        ..check("left by a former agent", DoctorVerdict::Warning, found)
    }
}

/// The processes on a device as the driver lists them, in pid order: `4711 (A) 597 MiB, 4712 (nobody of ours) 12 MiB`.
async fn processes(node: &Node, hands: &Hands, at: usize) -> Option<DoctorCheck> {
    let id = device_id(at);
    if hands.sampler.health(id) == Health::NotWatched {
        return None;
    }
    let name = format!("device {}: processes", node.device(id).spec.name);
    let listed = hands.sampler.read_now(id).await.ok().and_then(|reading| reading.processes);
    let Some(listed) = listed else {
        return Some(DoctorCheck {
            help: Some("handoffs are verified by device-wide bytes alone".to_owned()),
            ..check(name, DoctorVerdict::Skipped, "the driver does not list them")
        });
    };
    let owner = |pid: u32| {
        let owns = |id: &EngineId| hands.slot(*id).process().is_some_and(|p| p.pids().contains(&pid));
        node.ids().find(owns).map_or("nobody of ours", |id| node.engine(id).spec.name.as_str())
    };
    let mut listed: Vec<_> = listed.iter().collect();
    listed.sort_by_key(|process| process.pid);
    let words: Vec<String> = listed
        .iter()
        .map(|process| {
            let bytes = process.bytes.map_or("unknown".to_owned(), |b| format!("{} MiB", b >> 20));
            format!("{} ({}) {bytes}", process.pid, owner(process.pid))
        })
        .collect();
    let ours = node.ids().any(|id| hands.slot(id).process().is_some());
    let known = listed.iter().any(|process| owner(process.pid) != "nobody of ours");
    let found = if words.is_empty() { "none".to_owned() } else { words.join(", ") };
    if ours && !known {
        // A container with process ids of its own sees the host's numbers, or none.
        return Some(DoctorCheck {
            help: Some(
                "no listed process is an engine's: in a container run the agent with the host's process ids (--pid \
                 host); until then engines' own bytes are unknown"
                    .to_owned(),
            ),
            ..check(name, DoctorVerdict::Warning, found)
        });
    }
    Some(check(name, DoctorVerdict::Ok, found))
}

fn device_id(at: usize) -> DeviceId {
    DeviceId(u16::try_from(at).unwrap_or(u16::MAX))
}

fn host_memory(node: &Node, hands: &Hands) -> DoctorCheck {
    let need: u64 =
        node.engines.iter().filter(|e| e.may_rest_in(Tier::Level1)).filter_map(ledger::host_need).sum();
    let Some(budget) = node.policy.host_budget else {
        return check("host memory", DoctorVerdict::Skipped, "the machine's memory is not known");
    };
    let available = hands.host.memory().map_or("unknown".to_owned(), |m| human(m.available));
    let found = format!(
        "level 1 of all engines pins {}, {} may be used, {available} are available now",
        human(need),
        human(budget)
    );
    if need <= budget {
        check("host memory", DoctorVerdict::Ok, found)
    } else {
        DoctorCheck {
            help: Some("engines that do not fit are put to sleep at level 2 or stopped".to_owned()),
            ..check("host memory", DoctorVerdict::Warning, found)
        }
    }
}

fn program(engine: &str, command: &[String]) -> DoctorCheck {
    let name = format!("engine {engine}: program");
    let Some(program) = command.first() else {
        return check(name, DoctorVerdict::Error, "its command is empty");
    };
    match find_program(program) {
        Some(path) => check(name, DoctorVerdict::Ok, path.display().to_string()),
        None => DoctorCheck {
            help: Some("name it by its whole path".to_owned()),
            ..check(name, DoctorVerdict::Error, format!("`{program}` is not found"))
        },
    }
}

fn find_program(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(Path::new(program).to_owned()).filter(|p| p.is_file());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|p| p.is_file())
}

fn port(engine: &str, port: u16, process: Option<EngineProcess>) -> DoctorCheck {
    let name = format!("engine {engine}: port {port}");
    if let Some(why) = process.as_ref().and_then(EngineProcess::not_contained) {
        return check(name, DoctorVerdict::Warning, format!("its container was not found: {why}"));
    }
    let owner = process.as_ref().map_or_else(|| port_belongs_to(port, &[]), |p| p.owns_port(port));
    match (owner, process.is_some()) {
        (Ownership::Ours, _) => check(name, DoctorVerdict::Ok, "its own process listens"),
        (Ownership::NobodyListens, false) => check(name, DoctorVerdict::Ok, "free"),
        (Ownership::NobodyListens, true) => {
            check(name, DoctorVerdict::Warning, "its process runs and does not listen")
        }
        (Ownership::Foreign { pid }, has_process) => DoctorCheck {
            help: Some(match has_process {
                true => "end it, or give the engine another port".to_owned(),
                false => format!(
                    "if that is a server of its model, `ctl adopt {engine}` takes it over as it runs; else end it, or give the \
                     engine another port"
                ),
            }),
            ..check(
                name,
                DoctorVerdict::Error,
                format!("somebody else listens{}", pid.map_or(String::new(), |p| format!(": pid {p}"))),
            )
        },
        (Ownership::Unknown { why }, _) => check(name, DoctorVerdict::Skipped, why),
    }
}
