//! What README and ARCHITECTURE say of recovery is what the code does: its own tables, and tests that exist.

use hotbunk_core::adopt;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the agent lies in the workspace").to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The lines of a section, up to the next heading of its rank.
fn section<'a>(text: &'a str, heading: &str) -> Vec<&'a str> {
    let lines: Vec<&str> = text.lines().skip_while(|line| *line != heading).skip(1).collect();
    assert!(!lines.is_empty(), "no heading `{heading}`");
    lines.into_iter().take_while(|line| !line.starts_with("## ")).collect()
}

#[test]
fn architecture_has_the_codes_own_tables() {
    let text = read("ARCHITECTURE.md");
    let rows = |lines: &[&str]| {
        lines.iter().filter(|line| line.starts_with("| ")).map(|line| (*line).to_owned()).collect::<Vec<_>>()
    };
    let code = adopt::markdown();
    let code = rows(&code.lines().collect::<Vec<_>>());
    let page = rows(&section(&text, "## 10. When the agent ends"));
    assert!(page == code, "the tables are now:\n{}", adopt::markdown());
}

/// Every Rust file below a folder.
fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn every_test_that_readme_names_as_proof_exists() {
    let mut files = Vec::new();
    sources(&root().join("tests"), &mut files);
    sources(&root().join("agent"), &mut files);
    let code: String = files.iter().filter_map(|path| fs::read_to_string(path).ok()).collect();
    let text = read("README.md");
    let rows = section(&text, "## What survives what");
    // What a part of the section tells in a table of its own is no such row.
    let rows = rows.into_iter().take_while(|l| !l.starts_with("### "));
    let rows: Vec<&str> = rows.filter(|l| l.starts_with("| ") && !l.contains("| proved by |")).collect();
    assert!(rows.len() >= 10, "{}", rows.len());
    for row in rows {
        let proofs = row.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        let names: Vec<&str> = proofs.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "no proof: {row}");
        for name in names {
            assert!(code.contains(&format!("fn {name}(")), "no test `{name}`: {row}");
        }
    }
}
