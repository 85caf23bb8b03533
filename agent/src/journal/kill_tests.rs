//! `kill -9` of the agent loses nothing that was committed. The victim is this test program, run again.

use super::tests::{note, open, step};
use super::*;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

const JOURNAL: &str = "HOTBUNK_TEST_JOURNAL";
const SAID: &str = "committed ";

#[tokio::test]
#[ignore = "the victim of the test below, which runs it in a process of its own"]
async fn victim() {
    let Some(path) = std::env::var_os(JOURNAL) else { return };
    let (journal, _) = open(Path::new(&path));
    for index in 0..1_000_000 {
        let seq = journal.commit(vec![note(None, None, step(index))]).await.expect("commits");
        let mut out = std::io::stdout();
        writeln!(out, "{SAID}{seq}").and_then(|()| out.flush()).expect("the killer listens");
    }
}

#[tokio::test]
async fn kill_9_loses_nothing_that_was_committed() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let path = dir.path().join("journal.db");
    let mut last = 0;
    // Twice, so that the second begins with what the first has left.
    for _ in 0..2 {
        let mut victim = Command::new(std::env::current_exe().expect("knows itself"))
            .args(["--ignored", "--exact", "--nocapture", "journal::kill_tests::victim"])
            .env(JOURNAL, &path)
            .stdout(Stdio::piped())
            .spawn()
            .expect("spawns");
        let lines = BufReader::new(victim.stdout.take().expect("is piped")).lines().map_while(Result::ok);
        let mut seen = 0;
        for line in lines {
            // The harness may write its own words before the first.
            if let Some((_, seq)) = line.split_once(SAID) {
                last = seq.parse().expect("a number");
                seen += 1;
            }
            if seen == 100 {
                victim.kill().expect("kills");
            }
        }
        assert!(seen >= 100, "the victim ended by itself");
        victim.wait().expect("ends");
        let (journal, report) = open(&path);
        assert!(report.last_seq >= last, "{} there, {last} had been promised", report.last_seq);
        assert!(report.last_seq <= last + 1, "at most one more was on its way");
        let page = journal.reader().and_then(|reader| reader.entries(&Query::all())).expect("reads");
        let seqs: Vec<_> = page.entries.iter().map(|entry| entry.seq).collect();
        assert_eq!(seqs, (1..=report.last_seq).collect::<Vec<_>>());
    }
}
