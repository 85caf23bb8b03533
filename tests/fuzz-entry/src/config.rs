//! Configurations and cycle plans: any text is taken, or refused with reasons.

use hotbunk_agent::config::{self, CyclePlan, Facts, cycle_plan};
use std::path::Path;

/// Steps that a plan may come to for two engines; what is more must be refused, not expanded.
const MAX_STEPS: usize = 100_000;

/// Text is read both ways: what is one of the two is a good beginning for the other's errors.
pub(crate) fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let facts = Facts { host_memory_total: Some(1 << 36), ..Facts::default() };
    match config::parse(text, Path::new("hotbunk.toml"), &facts) {
        Ok((config, warnings)) => {
            assert_eq!(warnings.errors(), 0, "accepted with errors");
            for (at, engine) in config.engines.iter().enumerate() {
                assert!(config.fingerprint(at).is_some(), "{} has no fingerprint", engine.name);
                assert!(
                    engine.devices.iter().all(|&d| d < config.devices.len()),
                    "a device that is not there"
                );
            }
            shown(&warnings);
        }
        Err(refused) => {
            assert!(refused.errors() > 0, "refused without a reason");
            shown(&refused);
        }
    }
    plan(text);
}

/// A plan is answered, and so is its expansion.
pub(crate) fn plan(text: &str) {
    let engines = ["A".to_owned(), "B".to_owned()];
    let answer = CyclePlan::parse(text, Path::new("plan.toml"))
        .and_then(|(plan, _)| plan.expand(&engines, &cycle_plan::Options::default()));
    match answer {
        Ok(steps) => assert!(steps.len() <= MAX_STEPS, "a plan of {} steps", steps.len()),
        Err(refused) => {
            assert!(refused.errors() > 0, "refused without a reason");
            shown(&refused);
        }
    }
}

fn shown(diagnostics: &config::Diagnostics) {
    for problem in diagnostics.problems() {
        assert!(!problem.message.is_empty() && problem.help.as_deref() != Some(""), "{problem:?}");
    }
    diagnostics.render(true);
    diagnostics.render(false);
}
