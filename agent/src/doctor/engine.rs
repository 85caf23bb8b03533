//! One engine under the doctor's eye: what was detected, what it will be asked, which of its options are known bad.

use super::check;
use crate::config::{self, KnownBad};
use crate::engine::{Detected, RoutesFrom, WorkersFrom, described};
use hotbunk_api::doctor::{DoctorCheck, DoctorVerdict};
use hotbunk_core::call::Call;
use hotbunk_core::capability::Version;
use hotbunk_core::recover::{FailedSleep, failed_sleep};
use hotbunk_core::sequence;
use hotbunk_core::spec::DrainPolicy;
use hotbunk_core::state::Engine;
use hotbunk_core::tier::Tier;

/// What was detected: release, workers, and how each was learned; what it can do and what not.
pub(super) fn detected(e: &Engine, version: Option<&str>, how: Option<Detected>) -> DoctorCheck {
    let name = format!("engine {}: vLLM", e.spec.name);
    let Some(caps) = e.capabilities else {
        return check(name, DoctorVerdict::Skipped, format!("not running ({})", e.condition_word()));
    };
    let version = version.map_or_else(|| caps.version.to_string(), str::to_owned);
    let can = [
        ("level 1", caps.can_level1()),
        ("level 2", caps.can_level2()),
        ("parking", caps.can_park() && !e.cannot_park),
        ("freezing requests", caps.can_freeze_into_level1()),
        ("retry after a failed sleep", caps.is_retry_safe()),
    ];
    let list = |wanted: bool| {
        let words: Vec<&str> = can.iter().filter(|(_, can)| *can == wanted).map(|(word, _)| *word).collect();
        if words.is_empty() { "nothing".to_owned() } else { words.join(", ") }
    };
    let routes = match how.map(|d| d.routes_from) {
        Some(RoutesFrom::OpenApi) => "; routes from /openapi.json",
        Some(RoutesFrom::Probing) => "; routes found by asking for each",
        None => "",
    };
    let workers = match how.map(|d| d.workers_from) {
        Some(WorkersFrom::Configured) => " (configured)",
        Some(WorkersFrom::WorldSize) => " (by /get_world_size)",
        Some(WorkersFrom::ServerInfo) => " (by /server_info)",
        Some(WorkersFrom::Assumed) => " (assumed: nobody told)",
        None => "",
    };
    let found = format!(
        "{version}, {} workers{workers}{routes}; can: {}; cannot: {}",
        caps.workers,
        list(true),
        list(false)
    );
    let found = DoctorCheck { help: None, ..check(name, DoctorVerdict::Ok, found) };
    if e.restart_only {
        return DoctorCheck {
            verdict: DoctorVerdict::Error,
            found: format!("{}; switched by restart only", found.found),
            help: Some(
                "its rehearsal failed; see the journal, mend the cause, then `ctl reset` and restart it"
                    .to_owned(),
            ),
            ..found
        };
    }
    if !caps.can_level1() {
        return DoctorCheck {
            verdict: DoctorVerdict::Error,
            found: format!("{}; no sleep routes", found.found),
            help: Some("start it with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1".to_owned()),
            ..found
        };
    }
    found
}

/// The calls into each tier that it may be left in, out of it, and what follows a sleep that failed.
pub(super) fn calls(e: &Engine) -> Vec<DoctorCheck> {
    let Some(caps) = e.capabilities.filter(|caps| caps.can_level1()) else { return Vec::new() };
    let engine = &e.spec.name;
    let levels = &e.spec.levels;
    let tiers = [
        (Tier::Parked, levels.parked && !e.cannot_park),
        (Tier::Level1, levels.level1),
        (Tier::Level2, levels.level2 && !e.level2_unsafe),
    ];
    let way = |(tier, allowed): (Tier, bool)| {
        let name = format!("engine {engine}: {tier}");
        match sequence::enter(&caps, Tier::Awake, tier, DrainPolicy::Wait) {
            Err(cannot) => check(name, DoctorVerdict::Skipped, cannot.to_string()),
            Ok(_) if !allowed => {
                check(name, DoctorVerdict::Skipped, "not used, by configuration or by what was learned")
            }
            Ok(down) => {
                let up = sequence::leave(&caps, tier);
                check(name, DoctorVerdict::Ok, format!("in: {}; out: {}", list(&down), list(&up)))
            }
        }
    };
    let mut checks: Vec<DoctorCheck> = tiers.into_iter().map(way).collect();
    let repair = match failed_sleep(&caps) {
        FailedSleep::AskAgain => "the same call once more".to_owned(),
        FailedSleep::WakeBehind(calls) => format!("it is woken behind its engine: {}", list(&calls)),
        FailedSleep::Restart if caps.workers > 1 => {
            "a restart: with several workers their replies are out of step after any failed call".to_owned()
        }
        FailedSleep::Restart => "a restart: this release cannot be repaired over HTTP".to_owned(),
    };
    checks.push(check(format!("engine {engine}: after a failed sleep"), DoctorVerdict::Ok, repair));
    checks
}

fn list(calls: &[Call]) -> String {
    calls.iter().map(|call| described(*call)).collect::<Vec<_>>().join(", then ")
}

/// Its options against the table of known-bad ones, by its release where that is known.
pub(super) fn options(config: &config::Engine, release: Option<Version>) -> Vec<DoctorCheck> {
    let name = format!("engine {}: options", config.name);
    let concerns = |row: &&KnownBad| {
        row.concerns(&config.sleep_tiers) && release.is_none_or(|release| row.releases.contain(release))
    };
    let found: Vec<DoctorCheck> = config::known_bad(config)
        .into_iter()
        .filter(concerns)
        .map(|row| DoctorCheck {
            help: Some(row.help.to_owned()),
            ..check(
                name.clone(),
                DoctorVerdict::Warning,
                format!(
                    "{} spoils {} ({}): {} [contract {}]",
                    row.when,
                    row.spoils.as_str(),
                    row.releases,
                    row.why,
                    row.cites
                ),
            )
        })
        .collect();
    if found.is_empty() {
        let of = release.map_or_else(|| "any release".to_owned(), |release| format!("vLLM {release}"));
        return vec![check(name, DoctorVerdict::Ok, format!("none that is known to be bad with {of}"))];
    }
    found
}
