//! Nothing panics, whatever is written; what is written back is read the same.

use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::Strategy;

use super::*;
use crate::config::units::{format_duration, format_size, parse_duration, parse_size};

/// Texts that a configuration may be mutated with.
fn fragments() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[\\[\\]{}=\",.#\n '0-9a-zA-Zé€😀-]{0,12}",
        prop::sample::select(vec![
            "[[engine]]\n",
            "[engine.env]\n",
            "\"\"\"",
            "[[",
            "]]",
            "= [",
            "= {",
            "nan",
            "inf",
            "-9223372036854775808",
            "0xffffffffffffffffffffffff",
            "1e999",
            "1979-05-27",
            "\"4 GB\"",
            "name = \"A\"\n",
            "\u{0}",
            "\u{feff}",
            "[policy]\nawake_at_start = []\n",
            "devices = []\n",
            "device = \"none\"\n",
            "command = []\n",
        ])
        .prop_map(str::to_owned),
    ]
}

fn whole_example() -> String {
    std::fs::read_to_string(root().join("systemd/examples/two-gpus.toml")).unwrap()
}

/// Replaces pieces, each at a place and of a length in characters.
fn mutated(text: &str, cuts: &[(prop::sample::Index, usize, String)]) -> String {
    let mut text: Vec<char> = text.chars().collect();
    for (at, length, fragment) in cuts {
        let start = at.index(text.len() + 1);
        let end = (start + length).min(text.len());
        text.splice(start..end, fragment.chars());
    }
    text.into_iter().collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_answered(text in any::<String>()) {
        answered(&text);
        plan_answered(&text);
    }

    #[test]
    fn any_mutated_configuration_is_answered(
        cuts in prop::collection::vec((any::<prop::sample::Index>(), 0usize..40, fragments()), 1..4),
    ) {
        answered(&mutated(&whole_example(), &cuts));
        for (_, plan) in cycle_plan::BUILT_IN {
            plan_answered(&mutated(plan, &cuts));
        }
    }

    #[test]
    fn sizes_come_back(bytes in any::<u64>()) {
        prop_assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
    }

    #[test]
    fn durations_come_back(nanos in any::<u64>(), seconds in 0u64..1 << 40) {
        for duration in [Duration::from_nanos(nanos), Duration::from_secs(seconds)] {
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }
    }

    #[test]
    fn any_size_and_duration_is_answered(text in prop_oneof![any::<String>(), "[0-9]{0,30}\\.?[0-9]{0,30} ?[A-Za-zµé]{0,5}"]) {
        for error in [parse_size(&text).err(), parse_duration(&text).err()].into_iter().flatten() {
            prop_assert!(!error.to_string().is_empty() && !error.help().is_empty());
        }
    }

    #[test]
    fn a_suggested_unit_is_accepted(number in 1u32..1000, unit in "(gb|GB|Gb|g|G|gib|GIB|mb|MB|kb|KB|tb|T|b|bytes)") {
        let error = parse_size(&format!("{number} {unit}")).unwrap_err();
        let help = error.help();
        let suggested = help.strip_prefix("write \"").and_then(|rest| rest.strip_suffix('"'));
        prop_assert!(parse_size(suggested.unwrap_or("")).is_ok(), "{} {}: {}", number, unit, help);
    }
}

fn answered(text: &str) {
    let facts = Facts { host_memory_total: Some(1 << 36), ..Facts::default() };
    let diagnostics = match parse(text, Path::new("hotbunk.toml"), &facts) {
        Ok((config, warnings)) => {
            for engine in 0..config.engines.len() {
                assert!(config.fingerprint(engine).is_some());
                assert!(config.engines[engine].devices.iter().all(|&d| d < config.devices.len()));
            }
            assert_eq!(warnings.errors(), 0);
            warnings
        }
        Err(refused) => {
            assert!(refused.errors() > 0, "refused without a reason");
            refused
        }
    };
    for problem in diagnostics.problems() {
        assert!(problem.help.as_deref() != Some(""), "{problem:?}");
    }
    diagnostics.render(true);
    diagnostics.render(false);
}

/// A plan is answered whatever it says, and so is its expansion.
fn plan_answered(text: &str) {
    let engines = ["A".to_owned(), "B".to_owned()];
    let answer = CyclePlan::parse(text, Path::new("plan.toml"))
        .and_then(|(plan, _)| plan.expand(&engines, &cycle_plan::Options::default()));
    if let Err(refused) = answer {
        assert!(refused.errors() > 0, "refused without a reason");
        refused.render(true);
    }
}
