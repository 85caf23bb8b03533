//! Records of a run, as lines of JSON: whatever they say, there is a report or a reason.

use hotbunk_agent::journal::record::{Entry, HostSample, Record, Sample};
use hotbunk_agent::report;

/// Each line is an entry, a device sample or a host sample; others are skipped, as reading the journal skips them.
pub(crate) fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (mut entries, mut samples, mut host) = (Vec::new(), Vec::new(), Vec::new());
    for line in text.lines() {
        if let Ok(entry) = serde_json::from_str::<Entry>(line) {
            comes_back(&entry.record);
            entries.push(entry);
        } else if let Ok(sample) = serde_json::from_str::<Sample>(line) {
            samples.push(sample);
        } else if let Ok(sample) = serde_json::from_str::<HostSample>(line) {
            host.push(sample);
        }
    }
    match report::switch_report(&entries, &samples, &host) {
        Ok(made) => {
            report::table(&made);
            let again = report::switch_report(&entries, &samples, &host).expect("the same records");
            let (one, two) = (serde_json::to_string(&made), serde_json::to_string(&again));
            assert_eq!(one.expect("a report is JSON"), two.expect("a report is JSON"), "not a pure function");
        }
        Err(reason) => assert!(!reason.to_string().is_empty()),
    }
}

/// What was read is written the same, and under its kind.
fn comes_back(record: &Record) {
    let json = serde_json::to_value(record).expect("a record is JSON");
    assert_eq!(json.get("kind").and_then(|kind| kind.as_str()), Some(record.kind()));
}
