//! README and ARCHITECTURE say what is so: blocks parse, names exist, lists are complete, design figures add up.

use hotbunk_agent::config::{self, CyclePlan, Facts};
use hotbunk_agent::metrics::{Kind, Name};
use hotbunk_api::error::ExitCode;
use hotbunk_sim::model::{MIB, Model};
use hotbunk_sim::profile::Profile;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the agent lies in the workspace").to_owned()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The text under a heading, up to the next heading of the same or a higher rank.
fn section(text: &str, heading: &str) -> String {
    let rank = |line: &str| line.chars().take_while(|c| *c == '#').count();
    let mut lines = text.lines().skip_while(|line| *line != heading);
    let first = lines.next().unwrap_or_else(|| panic!("no heading `{heading}`"));
    let mut fenced = false;
    lines
        .take_while(|line| {
            fenced ^= line.starts_with("```");
            fenced || rank(line) == 0 || rank(line) > rank(first)
        })
        .map(|line| format!("{line}\n"))
        .collect()
}

/// The fenced blocks of a language.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(fence) = line.strip_prefix("```") {
            let body: String = lines.by_ref().take_while(|l| *l != "```").map(|l| format!("{l}\n")).collect();
            if fence == language {
                found.push(body);
            }
        }
    }
    found
}

/// The cells of every table row, the header and the line under it left out.
fn rows(text: &str) -> Vec<Vec<String>> {
    let lines: Vec<&str> = text.lines().collect();
    let is_row = |line: &str| line.starts_with('|');
    let is_head = |at: usize| lines.get(at + 1).is_some_and(|next| next.starts_with("|--"));
    let rows = lines.iter().enumerate().filter(|(at, l)| is_row(l) && !l.starts_with("|--") && !is_head(*at));
    rows.map(|(_, l)| l.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

/// Everything between backticks on one line, fenced blocks left out.
fn spans(text: &str) -> Vec<String> {
    let mut fenced = false;
    let mut found = Vec::new();
    for line in text.lines() {
        fenced ^= line.starts_with("```");
        if !fenced {
            found.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    found
}

/// The targets of links, anchors and other sites left out.
fn links(text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let targets = targets.map(|(target, _)| target.split('#').next().unwrap_or_default().to_owned());
    targets.filter(|target| !target.is_empty() && !target.contains("://")).collect()
}

fn agent_help(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_hotbunk-agent"))
        .args(arguments)
        .arg("--help")
        .output()
        .expect("the agent's program runs");
    assert!(output.status.success(), "hotbunk-agent {arguments:?} --help");
    String::from_utf8(output.stdout).expect("help is text")
}

/// Words of a list of subcommands as clap prints it.
fn listed_commands(help: &str) -> BTreeSet<String> {
    let list = help.lines().skip_while(|l| *l != "Commands:").skip(1).take_while(|l| !l.is_empty());
    list.filter_map(|l| Some(l.strip_prefix("  ")?.split_whitespace().next()?.to_owned())).collect()
}

#[test]
fn it_begins_with_what_it_is_and_the_two_commands() {
    let readme = read("README.md");
    let begin: String = readme.lines().take(16).collect::<Vec<_>>().join("\n");
    assert!(begin.starts_with("# Hotbunk\n\nHotbunk lets several vLLM servers share one GPU"), "{begin}");
    assert!(begin.contains("    cargo run --release -- demo"), "{begin}");
    assert!(begin.contains("    cargo test --workspace"), "{begin}");
    assert!(read(".ci/run").contains("cargo test --workspace\n"), "the test command is what decides");
}

#[test]
fn every_configuration_and_every_plan_in_it_is_accepted_without_a_warning() {
    let file = Path::new("/etc/hotbunk/hotbunk.toml");
    let (mut configurations, mut plans) = (Vec::new(), 0);
    for text in blocks(&read("README.md"), "toml") {
        if text.contains("[[engine]]") {
            let (config, warnings) =
                config::parse(&text, file, &Facts::default()).unwrap_or_else(|e| panic!("{text}\n{e}"));
            assert!(warnings.is_empty(), "{warnings}");
            configurations.push(config);
        } else {
            let (plan, warnings) =
                CyclePlan::parse(&text, Path::new("mine.toml")).unwrap_or_else(|e| panic!("{text}\n{e}"));
            assert!(warnings.is_empty(), "{warnings}");
            let engines = ["A".to_owned(), "B".to_owned()];
            plan.expand(&engines, &config::cycle_plan::Options::default()).unwrap_or_else(|e| panic!("{e}"));
            plans += 1;
        }
    }
    assert_eq!(plans, 1);
    // What it calls the installed file is the installed file.
    let [shown, ..] = configurations.as_slice() else { panic!("no configuration") };
    let (installed, _) = config::parse(&read("systemd/hotbunk.toml"), file, &Facts::default()).unwrap();
    assert_eq!(shown.devices, installed.devices);
    assert_eq!(shown.engines, installed.engines);
    assert_eq!(shown.policy, installed.policy);
    assert_eq!(shown.schedules.len(), 1);
}

#[test]
fn every_subcommand_and_flag_of_ctl_exists() {
    let block = section(&read("README.md"), "## ctl by example");
    let mut seen = BTreeSet::new();
    for line in blocks(&block, "sh").concat().lines().filter_map(|l| l.strip_prefix("ctl ")) {
        let line = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().collect();
        let command = words[0];
        let source = root().join("ctl/src/commands").join(format!("{command}.rs"));
        assert!(source.is_file(), "`ctl {line}`: there is no such subcommand");
        let snapshot = format!("ctl/tests/snapshots/cli__help_{command}.snap");
        let mut help = read(&snapshot);
        if command == "cycle" {
            assert!(listed_commands(&help).contains(words[1]), "`ctl {line}`");
            help += &std::fs::read_to_string(root().join("ctl/tests/snapshots/cli__help_cycle_run.snap"))
                .unwrap();
        }
        for flag in words.iter().filter(|w| w.starts_with('-')) {
            assert!(
                help.split([' ', ',', '=']).any(|w| w == *flag || w.trim_end() == *flag),
                "`ctl {line}`: {flag} is not in {snapshot}"
            );
        }
        seen.insert(command.to_owned());
    }
    let mut all = listed_commands(&read("ctl/tests/snapshots/cli__help.snap"));
    all.remove("help");
    assert_eq!(seen, all, "each subcommand is shown by an example");
}

#[test]
fn every_subcommand_and_flag_of_the_agent_exists() {
    let readme = read("README.md");
    let known = listed_commands(&agent_help(&[]));
    let mut named = 0;
    for after in readme.split("hotbunk-agent ").skip(1) {
        let word: String = after.chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect();
        let is_command = readme.contains(&format!("`hotbunk-agent {word}"));
        if is_command && !word.is_empty() && !word.starts_with('-') {
            assert!(known.contains(&word), "`hotbunk-agent {word}`: known are {known:?}");
            named += 1;
        }
    }
    assert!(named >= known.len() - 1, "{named} of {known:?}");
    let demo = agent_help(&["demo"]);
    for row in rows(&section(&readme, "## The demo")) {
        for flag in row[0].split(['`', ' ']).filter(|w| w.starts_with("--")) {
            assert!(demo.contains(&format!("{flag} ")) || demo.contains(&format!("{flag}\n")), "demo {flag}");
        }
    }
    assert!(agent_help(&["run"]).contains("--no-start"));
}

#[test]
fn exit_codes_are_those_of_ctl() {
    let found: Vec<(String, String)> = rows(&section(&read("README.md"), "## ctl by example"))
        .into_iter()
        .map(|row| (row[0].clone(), row[1].clone()))
        .collect();
    let meant: Vec<(String, String)> = ExitCode::MEANINGS
        .iter()
        .map(|(code, meaning)| (code.number().to_string(), (*meaning).to_owned()))
        .collect();
    assert_eq!(found, meant);
}

#[test]
fn metrics_are_those_of_the_agent() {
    let found: Vec<Vec<String>> = rows(&section(&read("README.md"), "## Metrics"));
    let kind = |name: Name| match name.kind() {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    };
    let meant: Vec<Vec<String>> = Name::ALL
        .into_iter()
        .map(|name| vec![format!("`{}`", name.as_str()), kind(name).to_owned(), name.help().to_owned()])
        .collect();
    assert_eq!(found, meant);
}

#[test]
fn incidents_are_those_of_core_and_shell() {
    let core = hotbunk_core::effect::Incident::ALL.into_iter().map(|incident| incident.code());
    let meant: BTreeSet<&str> = core.chain(hotbunk_agent::events::Incident::CODES).collect();
    let failing = section(&read("README.md"), "## When something fails");
    let (_, list) = failing.split_once("Each fault leaves").expect("the list of incidents");
    let named: BTreeSet<String> = spans(list).into_iter().filter(|s| !s.contains(' ')).collect();
    assert_eq!(named.iter().map(String::as_str).collect::<BTreeSet<_>>(), meant);
}

#[test]
fn what_no_real_vllm_has_shown_is_listed_as_the_simulator_lists_it() {
    let simulated = section(&read("README.md"), "## What is simulated");
    let mut found: Vec<String> = Vec::new();
    for line in simulated.lines() {
        match (line.strip_prefix("- "), line.strip_prefix("  "), found.last_mut()) {
            (Some(item), _, _) => found.push(item.to_owned()),
            (None, Some(more), Some(item)) => *item += &format!(" {more}"),
            _ => {}
        }
    }
    assert_eq!(found, hotbunk_sim::UNVERIFIED);
}

#[test]
fn the_queries_of_the_journal_run_on_its_schema() {
    let journal = rusqlite::Connection::open_in_memory().unwrap();
    journal.execute_batch(&read("agent/src/journal/schema_v1.sql")).unwrap();
    let block = blocks(&section(&read("README.md"), "## The journal"), "sh").concat();
    let queries: Vec<&str> = block.split('"').skip(1).step_by(2).collect();
    assert!(!queries.is_empty());
    for query in queries {
        journal.prepare(query).unwrap_or_else(|error| panic!("{query}: {error}"));
    }
}

#[test]
fn design_figures_are_sums_of_the_profile() {
    let profile = Profile::load("l20").unwrap();
    let model = |role: &str| {
        let engine = profile.engine(role).unwrap().clone();
        let kv = engine.kv_mib * MIB;
        Model::new(profile.device.clone(), engine, kv)
    };
    let first_token = |out: &Model, incoming: &Model| {
        let probe = incoming.engine().first_after_wake_s;
        let wake = incoming.wake_s(false) + probe;
        let wake_kv = incoming.wake_kv_s() + probe;
        [out.sleep_s(1, false) + wake, wake, out.release_kv_s() + wake_kv, wake_kv]
    };
    let (a, b) = (model("A"), model("B"));
    let (to_b, to_a) = (first_token(&a, &b), first_token(&b, &a));
    let strategies = section(&read("README.md"), "## Strategies");
    let rows = rows(&strategies);
    for (at, strategy) in
        ["`sleep-first`", "`wake-first`", "`park`", "`auto`, incoming engine parked"].into_iter().enumerate()
    {
        let row = rows.iter().rev().find(|row| row[0] == strategy && row[1].ends_with(" s"));
        let row = row.unwrap_or_else(|| panic!("no figures of {strategy}"));
        assert_eq!(row[1..], [format!("{:.2} s", to_b[at]), format!("{:.2} s", to_a[at])], "{strategy}");
    }
    // The figure: one column is 50 ms, and nothing is shorter than one.
    let columns = |seconds: f64| ((seconds / 0.05).round() as usize).max(1);
    let drawn = |word: &str| {
        let line =
            strategies.lines().find(|l| l.starts_with(word) && l[15..].starts_with(['S', 'W', 'r', 'w']));
        line.and_then(|l| l[15..].split_whitespace().next()).unwrap_or_default().to_owned()
    };
    let sleep = "S".repeat(columns(a.sleep_s(1, false)));
    let wake = "W".repeat(columns(b.wake_s(false)));
    assert_eq!(drawn("sleep-first "), format!("{sleep}{wake}p"));
    assert_eq!(drawn("wake-first "), format!("{wake}p{sleep}"));
    assert_eq!(columns(a.release_kv_s()), 1);
    assert_eq!(columns(b.wake_kv_s()), 1);
    assert_eq!((drawn("park ").as_str(), drawn("auto ").as_str()), ("rwp", "wpr"));
}

#[test]
fn the_map_is_complete_and_everything_named_exists() {
    let readme = read("README.md");
    let map: BTreeSet<String> = rows(&section(&readme, "## Map"))
        .into_iter()
        .flat_map(|row| spans(&row[0]))
        .map(|folder| folder.trim_matches('/').to_owned())
        .collect();
    for folder in &map {
        assert!(root().join(folder).is_dir(), "{folder} is in the map and nowhere else");
    }
    let modules = std::fs::read_dir(root().join("agent/src")).unwrap();
    let modules = modules.filter_map(|e| e.ok()).filter(|e| e.path().join("mod.rs").is_file());
    for folder in modules {
        let folder = format!("agent/src/{}", folder.file_name().to_string_lossy());
        assert!(map.contains(&folder), "{folder} is not in the map");
    }
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    for member in manifest["workspace"]["members"].as_array().unwrap() {
        assert!(map.contains(member.as_str().unwrap()), "{member} is not in the map");
    }
    for page in ["README.md", "ARCHITECTURE.md"] {
        let text = read(page);
        for target in links(&text) {
            assert!(root().join(&target).exists(), "{page} links to {target}");
        }
        let ours = ["agent/", "ctl/", "systemd/", "tests/", "benches/"];
        for span in spans(&text).into_iter().filter(|s| ours.iter().any(|begin| s.starts_with(begin))) {
            let path = span.split([' ', ':', '(']).next().unwrap_or_default();
            assert!(root().join(path).exists(), "{page} names {path}");
        }
    }
}

/// README's table of options that do not go with sleeping is the code's table.
#[test]
fn the_table_of_known_bad_options_is_the_code_s() {
    let readme = read("README.md");
    let written = rows(&section(&readme, "### Options that are known bad"));
    let code: Vec<Vec<String>> = config::known_bad_table()
        .iter()
        .map(|row| {
            vec![
                row.when.to_owned(),
                row.releases.to_string(),
                row.spoils.as_str().to_owned(),
                row.cites.to_owned(),
            ]
        })
        .collect();
    assert_eq!(written, code);
}
