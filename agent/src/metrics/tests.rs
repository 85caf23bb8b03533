//! The page as Prometheus sees it: a golden one, and the rules of `promtool check metrics` that can be broken here.

use super::*;
use std::collections::{BTreeMap, BTreeSet};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const HANDOFF: HandoffLabels<'_> = HandoffLabels { from: Some("A"), to: "B", strategy: Some("auto") };

/// Every series at least once.
fn filled() -> Metrics {
    let metrics = Metrics::new();
    for engine in ["A", "B"] {
        metrics.engine(engine);
    }
    metrics.up("A", true);
    metrics.tier("A", Some(Tier::Awake));
    metrics.generation("A", 3);
    metrics.in_flight("A", Some(2));
    metrics.in_flight("B", None);
    metrics.engine_device_bytes("A", Tier::Awake, Some(34_359_738_368));
    metrics.engine_device_bytes("B", Tier::Parked, None);
    metrics.engine_residual_bytes("A", Some(626_003_968));
    metrics.engine_host_bytes("A", Some(54_760_833_024));
    metrics.restarted("A");
    metrics.canary_mismatch("B");
    metrics.operation_ended(OperationKind::Handoff, &Outcome::Ok);
    metrics.operation_ended(OperationKind::Start, &Outcome::Cancelled);
    metrics.incident("crashed", Some("A"));
    metrics.incident("device_lost", None);
    metrics.handoff(HANDOFF, Duration::from_millis(105));
    metrics.handoff_overhead(HANDOFF, Duration::from_millis(5));
    metrics.handoff_phase(HANDOFF, Phase::WakeKv, Duration::from_millis(75));
    metrics.handoff_phase(HANDOFF, Phase::Sleep, Duration::from_millis(25));
    metrics.gateway_load("A", 2, 0);
    metrics.gateway_load("B", 0, 3);
    metrics.gateway_waited("B", Duration::from_millis(240));
    metrics.gateway_refused("B", "queue_full");
    metrics.switching("gpu0", Duration::from_millis(12_340));
    metrics.tenant_switching("default", Duration::from_millis(2_500));
    metrics.device_total("gpu0", 48_305_799_168);
    metrics.device_used("gpu0", Moment(1_000_000_000), Some(34_985_742_336));
    metrics.device_used("gpu1", Moment(1_000_000_000), None);
    metrics.journal_commit(Duration::from_micros(150));
    metrics.journal_dropped_samples(4);
    metrics
}

fn page() -> String {
    filled().render(Moment(1_500_000_000))
}

#[test]
fn golden_page() {
    let page = page().replace(concat!("version=\"", env!("CARGO_PKG_VERSION"), "\""), "version=\"VERSION\"");
    insta::assert_snapshot!("page", page);
}

#[test]
fn the_page_does_not_change_from_scrape_to_scrape() {
    let first = page();
    for _ in 0..5 {
        assert_eq!(page(), first);
    }
}

#[test]
fn every_name_is_on_the_page_with_its_type_and_help() {
    let page = page();
    for name in Name::ALL {
        let kind = match name.kind() {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let name_text = name.as_str();
        assert!(page.contains(&format!("# TYPE {name_text} {kind}\n")), "{name_text} is no {kind}");
        assert!(page.contains(&format!("# HELP {name_text} {}\n", name.help())), "{name_text} has no help");
    }
    let families = page.lines().filter(|line| line.starts_with("# TYPE ")).count();
    assert_eq!(families, Name::ALL.len(), "a series that has no name in the enum");
}

#[test]
fn the_page_breaks_no_rule() {
    assert_eq!(lint(&page()), Vec::<String>::new());
    for name in Name::ALL {
        let text = name.as_str();
        let stem = text.strip_suffix("_total").unwrap_or(text);
        match name.unit() {
            metrics::Unit::Bytes => assert!(stem.ends_with("_bytes"), "{text} has no unit"),
            metrics::Unit::Seconds => assert!(stem.ends_with("_seconds"), "{text} has no unit"),
            _ => assert!(!stem.ends_with("_bytes") && !stem.ends_with("_seconds"), "{text} has a wrong unit"),
        }
        assert!(name.help().ends_with('.'), "{text}: help is a sentence");
    }
}

#[test]
fn the_rules_find_what_breaks_them() {
    let cases = [
        ("# TYPE x_total counter\nx_total 1\n", "no help"),
        ("# HELP x X.\nx 1\n", "no type"),
        ("# HELP x X.\n# TYPE x counter\nx 1\n", "_total"),
        ("# HELP x_total X.\n# TYPE x_total gauge\nx_total 1\n", "_total"),
        ("# HELP x_milliseconds X.\n# TYPE x_milliseconds gauge\nx_milliseconds 1\n", "base unit"),
        ("# HELP xY X.\n# TYPE xY gauge\nxY 1\n", "snake_case"),
        ("# HELP x X.\n# TYPE x gauge\nx{aB=\"1\"} 1\n", "label"),
        ("# HELP x X.\n# TYPE x gauge\nx{le=\"1\"} 1\n", "label"),
        ("# HELP x X.\n# TYPE x gauge\nx 1\nx 2\n", "twice"),
        ("# HELP x_count X.\n# TYPE x_count gauge\nx_count 1\n", "reserved"),
        ("# HELP x X.\n# TYPE x histogram\nx_bucket{le=\"1\"} 1\nx_sum 1\nx_count 1\n", "+Inf"),
        (
            "# HELP x X.\n# TYPE x histogram\nx_bucket{le=\"1\"} 2\nx_bucket{le=\"+Inf\"} 1\nx_sum 1\nx_count 1\n",
            "ascend",
        ),
        ("# HELP x X.\n# TYPE x gauge\nx NaN\n", "unknown"),
    ];
    for (page, expected) in cases {
        let found = lint(page);
        assert!(found.iter().any(|finding| finding.contains(expected)), "{expected}: {found:?}");
    }
}

#[test]
fn what_becomes_unknown_disappears() {
    let metrics = Metrics::new();
    metrics.in_flight("A", Some(2));
    assert!(metrics.render(Moment(0)).contains("hotbunk_engine_in_flight{engine=\"A\"} 2\n"));
    metrics.in_flight("A", None);
    assert!(!metrics.render(Moment(0)).contains("hotbunk_engine_in_flight"));
    metrics.in_flight("A", Some(0));
    assert!(
        metrics.render(Moment(0)).contains("hotbunk_engine_in_flight{engine=\"A\"} 0\n"),
        "0 is not unknown"
    );
}

#[test]
fn the_age_of_a_reading_grows_until_the_next_one_that_succeeds() {
    let metrics = Metrics::new();
    let at = |seconds: u64| Moment(seconds * 1_000_000_000);
    let age = |now| {
        let page = metrics.render(at(now));
        let line = page.lines().find(|line| line.starts_with("hotbunk_device_reading_age_seconds{"));
        line.and_then(|line| line.rsplit(' ').next()).map(str::to_owned)
    };
    assert_eq!(age(1), None);
    metrics.device_used("gpu0", at(1), Some(5));
    metrics.device_used("gpu0", at(4), None);
    assert_eq!(age(6).as_deref(), Some("5"));
    metrics.device_used("gpu0", at(6), Some(5));
    assert_eq!(age(6).as_deref(), Some("0"));
}

#[test]
fn a_strangers_word_is_no_label() {
    let metrics = Metrics::new();
    for strategy in [Some("x\"} 1\nhacked"), Some("park"), None] {
        metrics.handoff(HandoffLabels { from: None, to: "A", strategy }, Duration::from_millis(1));
    }
    let page = metrics.render(Moment(0));
    let words: Vec<_> = page
        .lines()
        .filter_map(|line| line.strip_prefix("hotbunk_handoff_seconds_count{from=\"\",to=\"A\",strategy=\""))
        .collect();
    assert_eq!(words, ["none\"} 1", "other\"} 1", "park\"} 1"]);
}

#[test]
fn two_agents_in_one_process_do_not_share_series() {
    let (one, other) = (Metrics::new(), Metrics::new());
    one.restarted("A");
    assert!(one.render(Moment(0)).contains("restarts_total{engine=\"A\"} 1"));
    assert!(!other.render(Moment(0)).contains("restarts_total"));
}

#[tokio::test]
async fn the_listener_serves_the_page_and_ends_when_told() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("has an address");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let shutdown = async move { drop(stopped.await) };
    let server = tokio::spawn(serve(listener, filled(), shutdown));
    let get = async |path: &str| {
        let mut stream = TcpStream::connect(address).await.expect("connects");
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("writes");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("reads");
        answer
    };
    let answer = get("/metrics").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.to_lowercase().contains("content-type: text/plain; version=0.0.4"));
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    assert!(body.contains("hotbunk_build_info{"));
    assert!(get("/other").await.starts_with("HTTP/1.1 404 "));
    stop.send(()).expect("the server waits for it");
    let ended =
        tokio::time::timeout(Duration::from_secs(20), server).await.expect("ends").expect("does not panic");
    assert!(ended.is_ok());
}

/// What `promtool check metrics` would say, and a little more.
fn lint(page: &str) -> Vec<String> {
    let mut findings = Vec::new();
    let (mut helps, mut types) = (BTreeSet::new(), BTreeMap::new());
    let mut series = BTreeSet::new();
    let mut buckets: BTreeMap<String, Vec<(String, f64)>> = BTreeMap::new();
    let is_snake = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_lowercase())
            && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            helps.extend(rest.split_once(' ').map(|(name, _)| name));
            continue;
        }
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            types.insert(name, kind);
            continue;
        }
        let Some((key, number)) = line.rsplit_once(' ') else {
            findings.push(format!("`{line}` is no series"));
            continue;
        };
        if !series.insert(key) {
            findings.push(format!("{key} stands there twice"));
        }
        if number == "NaN" {
            findings.push(format!("{key} is unknown and stands there all the same"));
        }
        let (full, labels) = key.split_once('{').unwrap_or((key, ""));
        let family = ["_bucket", "_sum", "_count"]
            .iter()
            .filter_map(|suffix| full.strip_suffix(suffix))
            .find(|stem| types.get(stem) == Some(&"histogram"))
            .unwrap_or(full);
        if !helps.contains(family) {
            findings.push(format!("{family} has no help"));
        }
        let Some(kind) = types.get(family).copied() else {
            findings.push(format!("{family} has no type"));
            continue;
        };
        if !is_snake(family) {
            findings.push(format!("{family} is not snake_case"));
        }
        if (kind == "counter") != family.ends_with("_total") {
            findings.push(format!("{family}: _total is for counters, and for all of them"));
        }
        let reserved = ["_bucket", "_sum", "_count"].iter().any(|suffix| family.ends_with(suffix));
        if reserved || ["counter", "gauge", "histogram"].iter().any(|word| family.contains(word)) {
            findings.push(format!("{family} uses a reserved word"));
        }
        let words: Vec<_> = family.split('_').collect();
        let wrong = [
            "milliseconds",
            "ms",
            "microseconds",
            "us",
            "minutes",
            "hours",
            "kib",
            "mib",
            "gib",
            "gb",
            "mb",
            "percent",
            "sec",
            "s",
        ];
        if words.iter().any(|word| wrong.contains(word)) {
            findings.push(format!("{family} is not in a base unit"));
        }
        let mut rest = Vec::new();
        let mut bound = None;
        for label in labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty()) {
            let (name, text) = label.split_once('=').unwrap_or((label, ""));
            if name == "le" && kind == "histogram" {
                bound = Some(text.trim_matches('"').to_owned());
            } else if !is_snake(name) || name == "le" || name == "quantile" {
                findings.push(format!("{key}: {name} is no good label"));
            } else {
                rest.push(label);
            }
        }
        if let (Some(bound), Ok(count)) = (bound, number.parse::<f64>()) {
            buckets.entry(format!("{family}{{{}}}", rest.join(","))).or_default().push((bound, count));
        }
    }
    for (key, buckets) in buckets {
        if buckets.last().is_none_or(|(bound, _)| bound != "+Inf") {
            findings.push(format!("{key} has no bucket +Inf at its end"));
        }
        if !buckets.is_sorted_by(|a, b| a.1 <= b.1) {
            findings.push(format!("{key}: buckets do not ascend"));
        }
    }
    findings
}
