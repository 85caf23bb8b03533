//! The published schema of the switch report is what the types say, and the reference report satisfies both.

use hotbunk_api::report::{Status, SwitchReport};
use serde_json::Value;
use std::path::PathBuf;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn json(path: &str) -> Value {
    let path = root().join(path);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

const SCHEMA: &str = "schemas/switch-report.schema.json";
const REFERENCE: &str = "../../tests/fixtures/reference/switch-report.json";

/// With `HOTBUNK_BLESS=1` the checked-in schema is written anew instead of compared.
#[test]
fn checked_in_schema_is_that_of_the_types() {
    let generated = serde_json::to_value(schemars::schema_for!(SwitchReport)).expect("a schema is JSON");
    if std::env::var_os("HOTBUNK_BLESS").is_some_and(|v| v == "1") {
        let text = serde_json::to_string_pretty(&generated).expect("a schema is JSON") + "\n";
        std::fs::write(root().join(SCHEMA), text).expect("the schema can be written");
    }
    assert_eq!(
        json(SCHEMA),
        generated,
        "agent/api/{SCHEMA} is not what the types say; HOTBUNK_BLESS=1 cargo test -p hotbunk-api writes it anew"
    );
}

#[test]
fn reference_reads_as_our_type_and_comes_back_whole() {
    let reference = json(REFERENCE);
    let report: SwitchReport =
        serde_json::from_value(reference.clone()).expect("the reference reads as ours");
    assert_eq!(report.status, Status::Pass);
    assert_eq!(report.requests.executed, 170);
    assert_eq!(report.switch.directions["A→B"].n, 10);
    assert!(report.simulated.is_none() && report.handoffs.is_empty() && report.switch_auto.is_none());
    let ours = serde_json::to_value(&report).expect("a report is JSON");
    assert_contains(&ours, &reference, "$");
}

#[test]
fn reference_satisfies_the_schema_and_a_broken_one_does_not() {
    let validator = jsonschema::validator_for(&json(SCHEMA)).expect("the schema is a schema");
    let mut reference = json(REFERENCE);
    if let Err(e) = validator.validate(&reference) {
        panic!("{}: {e}", e.instance_path());
    }
    let report: SwitchReport =
        serde_json::from_value(reference.clone()).expect("the reference reads as ours");
    validator
        .validate(&serde_json::to_value(report).expect("a report is JSON"))
        .expect("so does what we write");
    reference["models"]["A"]["restart_warm"]["p95"] = Value::from("fast");
    assert!(!validator.is_valid(&reference));
}

/// Every path of `part` is in `whole`, with the same value.
fn assert_contains(whole: &Value, part: &Value, path: &str) {
    match part {
        Value::Object(fields) => {
            for (name, value) in fields {
                let inner = whole.get(name).unwrap_or_else(|| panic!("{path}.{name} is missing"));
                assert_contains(inner, value, &format!("{path}.{name}"));
            }
        }
        Value::Array(items) => {
            for (i, value) in items.iter().enumerate() {
                let inner = whole.get(i).unwrap_or_else(|| panic!("{path}[{i}] is missing"));
                assert_contains(inner, value, &format!("{path}[{i}]"));
            }
        }
        Value::Number(number) => assert_eq!(whole.as_f64(), number.as_f64(), "{path}"),
        other => assert_eq!(whole, other, "{path}"),
    }
}
