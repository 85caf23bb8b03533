//! Every input of the corpora once more, findings of earlier fuzzing among them.

use hotbunk_fuzz_entry::Target;
use std::fs;
use std::path::PathBuf;

/// A corpus that has gone missing must not pass for one without findings.
const AT_LEAST: usize = 5;

fn replay(target: Target) {
    let corpora = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    let mut count = 0;
    for folder in [target.name().to_owned(), format!("{}.found", target.name())] {
        let Ok(files) = fs::read_dir(corpora.join(&folder)) else { continue };
        let mut files: Vec<PathBuf> = files.filter_map(Result::ok).map(|file| file.path()).collect();
        files.sort();
        for file in files {
            let bytes = fs::read(&file).expect("reads");
            // A finding panics; which input it was stands above its message.
            std::panic::catch_unwind(|| target.run(&bytes))
                .unwrap_or_else(|_| panic!("{} is a finding of target {}", file.display(), target.name()));
            count += 1;
        }
    }
    assert!(count >= AT_LEAST, "{} inputs for {} are too few to be its corpus", count, target.name());
}

#[test]
fn config() {
    replay(Target::Config);
}

#[test]
fn sse() {
    replay(Target::Sse);
}

#[test]
fn control() {
    replay(Target::Control);
}

#[test]
fn head() {
    replay(Target::Head);
}

#[test]
fn body() {
    replay(Target::Body);
}

#[test]
fn journal() {
    replay(Target::Journal);
}

#[test]
fn records() {
    replay(Target::Records);
}

#[test]
fn every_target_is_in_the_workspace_of_the_fuzzer() {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/Cargo.toml");
    let manifest = fs::read_to_string(manifest).expect("reads");
    for target in Target::ALL {
        assert!(manifest.contains(&format!("name = \"{}\"", target.name())), "{target:?} has no fuzz target");
    }
}

/// Inputs that nothing decodes would be accepted by every target.
#[test]
fn the_seeds_are_what_they_are_taken_for() {
    use hotbunk_agent::journal::record::Entry;
    use hotbunk_agent::report::switch_report;
    let corpora = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    let run = fs::read_to_string(corpora.join("records/a_run")).expect("reads");
    let entries: Vec<Entry> =
        run.lines().map(|line| serde_json::from_str(line).expect("a line is an entry")).collect();
    let report = switch_report(&entries, &[], &[]).expect("a whole run has a report");
    assert!(!hotbunk_agent::report::table(&report).is_empty());
}
