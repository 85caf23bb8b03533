//! Which calls, in which order, lead into a tier and out of it, for one engine's capabilities (CONTRACT 1.3).
//!
//! ```text
//!            ≤ 0.9.2            0.10.2–0.11         0.12–0.16              0.17+
//! level1 in  reset, sleep 1     sleep 1             pause, sleep 1         sleep 1 mode
//!       out  wake               wake                wake, resume           wake
//! level2 in  never              sleep 2             pause, sleep 2         sleep 2 mode
//!       out                     wake weights, reload, wake kv, reset      (0.12–0.16: then resume)
//! parked in                                                                0.31+: sleep 0 mode, release kv
//!       out                                                                wake kv
//! ```

use crate::call::{Call, Mode, SleepLevel, WakeTags};
use crate::capability::{Capabilities, Version};
use crate::spec::DrainPolicy;
use crate::tier::Tier;
use thiserror::Error;

/// Why an engine cannot go where it was asked to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Error)]
pub enum Cannot {
    /// The routes are missing.
    #[error("it serves no sleep routes; start it with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1")]
    NoSleepRoutes,
    /// Level 2 cannot be woken over HTTP.
    #[error("vLLM {0} cannot reload weights over HTTP, so level 2 would lose them; use level1 or stopped")]
    NoReload(Version),
    /// The KV cache cannot be released alone.
    #[error("vLLM {0} has no /release_kv_cache_memory (0.31 and later have it)")]
    NoParking(Version),
    /// Frozen requests do not survive that tier.
    #[error("vLLM {version} cannot freeze requests into {tier}{hint}")]
    NoFreeze {
        /// Release.
        version: Version,
        /// Wanted tier.
        tier: Tier,
        /// What would work.
        hint: &'static str,
    },
    /// vLLM has no way from the one to the other.
    #[error("vLLM cannot go from {from} to {to} without waking first")]
    NoWay {
        /// Where it is.
        from: Tier,
        /// Wanted.
        to: Tier,
    },
}

/// The calls that take an engine from `from` (awake or parked) down to `to`; empty where no call is needed.
pub fn enter(caps: &Capabilities, from: Tier, to: Tier, drain: DrainPolicy) -> Result<Vec<Call>, Cannot> {
    if from == to || to == Tier::Stopped {
        return Ok(Vec::new());
    }
    if !caps.can_level1() {
        return Err(Cannot::NoSleepRoutes);
    }
    freezable(caps, to, drain)?;
    let level = match to {
        Tier::Level1 => SleepLevel::L1,
        Tier::Level2 if caps.can_level2() => SleepLevel::L2,
        Tier::Level2 => return Err(Cannot::NoReload(caps.version)),
        Tier::Parked if caps.can_park() => SleepLevel::L0,
        Tier::Parked => return Err(Cannot::NoParking(caps.version)),
        Tier::Awake | Tier::Stopped => return Err(Cannot::NoWay { from, to }),
    };
    let mode = match drain {
        DrainPolicy::Wait => Mode::Wait,
        DrainPolicy::Freeze => Mode::Keep,
        DrainPolicy::Abort => Mode::Abort,
    };
    match (from, to) {
        (Tier::Awake, Tier::Parked) => {
            Ok(vec![Call::Sleep { level, mode: Some(mode) }, Call::ReleaseKvCache])
        }
        (Tier::Awake, _) if caps.has_modes() => Ok(vec![Call::Sleep { level, mode: Some(mode) }]),
        (Tier::Awake, _) => {
            let mut calls = Vec::new();
            if !caps.sleep_clears_prefix_cache() {
                calls.push(Call::ResetPrefixCache);
            }
            if pauses_from_outside(caps) {
                calls.push(Call::Pause { mode: Mode::Wait });
            }
            calls.push(Call::Sleep { level, mode: None });
            Ok(calls)
        }
        // A parked engine has nothing running: `keep` leaves what is frozen frozen (CONTRACT 7, third row), and level
        // 2 cannot keep it.
        (Tier::Parked, Tier::Level1 | Tier::Level2) if caps.can_demote() => {
            let mode = if to == Tier::Level1 { Mode::Keep } else { mode };
            Ok(vec![Call::Sleep { level, mode: Some(mode) }])
        }
        _ => Err(Cannot::NoWay { from, to }),
    }
}

/// The calls that take an engine from a sleeping tier to awake; empty for `awake` and `stopped`.
pub fn leave(caps: &Capabilities, from: Tier) -> Vec<Call> {
    let resume = pauses_from_outside(caps).then_some(Call::Resume);
    match from {
        Tier::Awake | Tier::Stopped => Vec::new(),
        Tier::Parked => vec![Call::WakeUp { tags: WakeTags::KvCache }],
        Tier::Level1 => [Some(Call::WakeUp { tags: WakeTags::All }), resume].into_iter().flatten().collect(),
        Tier::Level2 => full_reload().into_iter().chain(resume).collect(),
    }
}

/// The four calls that leave level 2. They also repair an engine that somebody else put to sleep at an unknown level:
/// reloading weights that were restored anyway changes nothing.
pub fn full_reload() -> Vec<Call> {
    vec![
        Call::WakeUp { tags: WakeTags::Weights },
        Call::ReloadWeights,
        Call::WakeUp { tags: WakeTags::KvCache },
        Call::ResetPrefixCache,
    ]
}

/// Between 0.12 and 0.16 the scheduler is paused by `/pause` before a sleep and resumed after the wake.
pub(crate) fn pauses_from_outside(caps: &Capabilities) -> bool {
    caps.routes.pause && caps.version >= Version::new(0, 12, 0) && !caps.has_modes()
}

fn freezable(caps: &Capabilities, to: Tier, drain: DrainPolicy) -> Result<(), Cannot> {
    let version = caps.version;
    match (drain, to) {
        (DrainPolicy::Wait | DrainPolicy::Abort, _) => Ok(()),
        (DrainPolicy::Freeze, Tier::Level1) if caps.can_freeze_into_level1() => Ok(()),
        (DrainPolicy::Freeze, Tier::Parked) if caps.can_park() => Ok(()),
        (DrainPolicy::Freeze, Tier::Level2 | Tier::Stopped) => Err(Cannot::NoFreeze {
            version,
            tier: to,
            hint: ": requests do not survive it; leave it at parked or level1",
        }),
        (DrainPolicy::Freeze, _) => {
            Err(Cannot::NoFreeze { version, tier: to, hint: " (level1 from 0.25, parked from 0.31)" })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capability::Routes;

    fn caps(minor: u16, patch: u16) -> Capabilities {
        let at_least = |m: u16, p: u16| (minor, patch) >= (m, p);
        Capabilities {
            version: Version::new(0, minor, patch),
            routes: Routes {
                sleep: true,
                collective_rpc: at_least(10, 2),
                release_kv_cache: at_least(31, 0),
                reset_prefix_cache: true,
                pause: at_least(12, 0),
                abort_requests: at_least(13, 0),
            },
            workers: 1,
        }
    }

    fn words(calls: &[Call]) -> String {
        let word = |c: &Call| match c {
            Call::Sleep { level, mode } => {
                format!(
                    "sleep{}{}",
                    level.number(),
                    mode.map_or(String::new(), |m| format!(":{}", m.as_str()))
                )
            }
            Call::WakeUp { tags: WakeTags::All } => "wake".into(),
            Call::WakeUp { tags: WakeTags::Weights } => "wake-weights".into(),
            Call::WakeUp { tags: WakeTags::KvCache } => "wake-kv".into(),
            Call::ReleaseKvCache => "release-kv".into(),
            Call::ReloadWeights => "reload".into(),
            Call::ResetPrefixCache => "reset".into(),
            Call::Pause { mode } => format!("pause:{}", mode.as_str()),
            Call::Resume => "resume".into(),
            Call::WorkerWakeUp => "worker-wake".into(),
            Call::WorkerSleep { level } => format!("worker-sleep{}", level.number()),
        };
        calls.iter().map(word).collect::<Vec<_>>().join(" ")
    }

    /// The table of CONTRACT 1.3, row by row.
    #[test]
    fn follows_the_contract_by_version() {
        let rows = [
            ((9, 2), Tier::Level1, "reset sleep1", "wake"),
            ((10, 2), Tier::Level1, "sleep1", "wake"),
            ((10, 2), Tier::Level2, "sleep2", "wake-weights reload wake-kv reset"),
            ((16, 0), Tier::Level1, "pause:wait sleep1", "wake resume"),
            ((16, 0), Tier::Level2, "pause:wait sleep2", "wake-weights reload wake-kv reset resume"),
            ((20, 0), Tier::Level1, "sleep1:wait", "wake"),
            ((20, 0), Tier::Level2, "sleep2:wait", "wake-weights reload wake-kv reset"),
            ((31, 0), Tier::Parked, "sleep0:wait release-kv", "wake-kv"),
            ((32, 0), Tier::Level1, "sleep1:wait", "wake"),
        ];
        for ((minor, patch), tier, down, up) in rows {
            let caps = caps(minor, patch);
            let calls = enter(&caps, Tier::Awake, tier, DrainPolicy::Wait).unwrap();
            assert_eq!(
                (words(&calls).as_str(), words(&leave(&caps, tier)).as_str()),
                (down, up),
                "0.{minor} {tier}"
            );
        }
    }

    #[test]
    fn refuses_what_a_version_cannot_do() {
        let cannot = |minor, patch, from, to, drain| {
            enter(&caps(minor, patch), from, to, drain).unwrap_err().to_string()
        };
        assert!(cannot(9, 2, Tier::Awake, Tier::Level2, DrainPolicy::Wait).contains("reload weights"));
        assert!(
            cannot(30, 0, Tier::Awake, Tier::Parked, DrainPolicy::Wait).contains("release_kv_cache_memory")
        );
        assert!(cannot(24, 0, Tier::Awake, Tier::Level1, DrainPolicy::Freeze).contains("freeze"));
        assert!(cannot(32, 0, Tier::Awake, Tier::Level2, DrainPolicy::Freeze).contains("do not survive"));
        assert!(cannot(32, 0, Tier::Level1, Tier::Level2, DrainPolicy::Wait).contains("without waking"));
        assert!(cannot(30, 0, Tier::Parked, Tier::Level1, DrainPolicy::Wait).contains("without waking"));
        let mut bare = caps(32, 0);
        bare.routes.sleep = false;
        let said = enter(&bare, Tier::Awake, Tier::Level1, DrainPolicy::Wait).unwrap_err().to_string();
        assert!(said.contains("--enable-sleep-mode") && said.contains("VLLM_SERVER_DEV_MODE"));
    }
}
