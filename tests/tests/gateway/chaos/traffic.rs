//! Clients that ask both models all the time, and hold still when they are told to.

use crate::door::{Door, Ended, HangUp, Report, Wanted, now_ns};
use crate::draw::{Draw, say};
use hotbunk_tests::{PATIENCE, until};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinHandle;

const CLIENTS: usize = 6;
/// How a request ended that could not be answered.
const AWAY: &str = "hung up, or the agent was away";

/// What was asked and what came of it.
pub(crate) type Asked = (Wanted, Report);

/// What the clients share.
#[derive(Debug)]
struct Shared {
    door: Door,
    active: AtomicUsize,
    /// What each client waits for, and since when.
    asking: Mutex<BTreeMap<usize, (Wanted, Instant)>>,
    done: AtomicUsize,
    reports: Mutex<Vec<Asked>>,
    /// When nobody listened, ns of the monotonic clock: the agent was being replaced.
    away: Mutex<Vec<(u64, Option<u64>)>>,
    /// The role that nobody asks for now.
    spared: Mutex<Option<&'static str>>,
}

/// The clients.
#[derive(Debug)]
pub(crate) struct Traffic {
    shared: Arc<Shared>,
    moving: watch::Sender<bool>,
    clients: Vec<JoinHandle<()>>,
}

impl Traffic {
    pub(crate) fn begin(door: &Door, seed: u64) -> Self {
        let shared = Arc::new(Shared {
            door: door.clone(),
            active: AtomicUsize::new(0),
            asking: Mutex::default(),
            done: AtomicUsize::new(0),
            reports: Mutex::default(),
            away: Mutex::default(),
            spared: Mutex::default(),
        });
        let (moving, watched) = watch::channel(true);
        let client = |number| tokio::spawn(client(Arc::clone(&shared), watched.clone(), seed, number));
        let clients = (0..CLIENTS).map(client).collect();
        Traffic { shared, moving, clients }
    }

    /// Waits until so many more requests have ended.
    pub(crate) async fn pass(&self, requests: usize) {
        let until_count = self.shared.done.load(Ordering::SeqCst) + requests;
        until("requests to end", async || self.shared.done.load(Ordering::SeqCst) >= until_count).await;
    }

    /// No new request; returns when the last one has ended.
    pub(crate) async fn hold_still(&self) {
        self.moving.send_replace(false);
        let deadline = Instant::now() + PATIENCE;
        while self.shared.active.load(Ordering::SeqCst) > 0 {
            if Instant::now() > deadline {
                let asking = self.shared.asking.lock().unwrap_or_else(PoisonError::into_inner);
                let since =
                    |(wanted, began): &(Wanted, Instant)| format!("{:?}: {wanted:?}", began.elapsed());
                let waiting: Vec<String> = asking.values().map(since).collect();
                panic!("clients still wait:\n{}", waiting.join("\n"));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) fn go_on(&self) {
        self.moving.send_replace(true);
    }

    /// From now on nobody listens, or again somebody does.
    pub(crate) fn away(&self, away: bool) {
        let mut times = self.shared.away.lock().unwrap_or_else(PoisonError::into_inner);
        match times.last_mut() {
            Some((_, end @ None)) if !away => *end = Some(now_ns()),
            _ if away => times.push((now_ns(), None)),
            _ => {}
        }
    }

    /// Nobody has listened since then, ns of the monotonic clock.
    pub(crate) fn away_since(&self, since: u64) {
        let mut times = self.shared.away.lock().unwrap_or_else(PoisonError::into_inner);
        times.push((since, None));
    }

    /// From now on nobody asks for this role; `None`: both are asked for.
    pub(crate) fn spare(&self, role: Option<&'static str>) {
        *self.shared.spared.lock().unwrap_or_else(PoisonError::into_inner) = role;
    }

    /// The end of all of them: every request and what came of it. What failed because nobody listened is no complaint.
    pub(crate) async fn end(self) -> Vec<Asked> {
        drop(self.moving);
        for client in self.clients {
            client.await.expect("a client");
        }
        let mut reports =
            std::mem::take(&mut *self.shared.reports.lock().unwrap_or_else(PoisonError::into_inner));
        let away = self.shared.away.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (_, report) in &mut reports {
            let (began, ended) = (report.began_ns, report.ended_ns);
            let was_away = |(from, to): &(u64, Option<u64>)| {
                // The one that comes listens a moment before it is known to.
                began <= to.unwrap_or(ended) && ended >= *from
            };
            if report.ended.is_err() && away.iter().any(was_away) {
                report.ended = Ok(Ended::HungUp);
            }
        }
        reports
    }
}

async fn client(shared: Arc<Shared>, mut moving: watch::Receiver<bool>, seed: u64, number: usize) {
    let mut draw = Draw::new(seed.wrapping_mul(1000) + number as u64);
    for count in 0.. {
        // Counted before it looks whether it may: who waits for 0 misses nobody.
        shared.active.fetch_add(1, Ordering::SeqCst);
        while !*moving.borrow_and_update() {
            shared.active.fetch_sub(1, Ordering::SeqCst);
            if moving.changed().await.is_err() {
                return;
            }
            shared.active.fetch_add(1, Ordering::SeqCst);
        }
        let mut wanted = drawn(&mut draw, &format!("{number}-{count}"));
        if *shared.spared.lock().unwrap_or_else(PoisonError::into_inner) == Some(wanted.role) {
            wanted.role = if wanted.role == "A" { "B" } else { "A" };
        }
        let asking = || shared.asking.lock().unwrap_or_else(PoisonError::into_inner);
        asking().insert(number, (wanted.clone(), Instant::now()));
        let report = shared.door.ask(&wanted).await;
        asking().remove(&number);
        let refused = !matches!(report.ended, Ok(Ended::Whole | Ended::HungUp));
        shared.reports.lock().unwrap_or_else(PoisonError::into_inner).push((wanted, report));
        shared.done.fetch_add(1, Ordering::SeqCst);
        shared.active.fetch_sub(1, Ordering::SeqCst);
        if moving.has_changed().is_err() {
            return;
        }
        if refused {
            // As a client would: not at once again.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn drawn(draw: &mut Draw, name: &str) -> Wanted {
    let most = if draw.once_in(6) { 300 } else { 30 };
    let tokens = 1 + u32::try_from(draw.below(most)).unwrap_or(0);
    let stream = !draw.once_in(3);
    let hang_up = match draw.below(15) {
        0 => HangUp::After(Duration::from_millis(draw.below(60))),
        1 if stream => HangUp::AtToken(1 + usize::try_from(draw.below(u64::from(tokens))).unwrap_or(0)),
        _ => HangUp::No,
    };
    let role = if draw.once_in(2) { "A" } else { "B" };
    Wanted { role, prompt: format!("log {name} of the storm"), tokens, stream, hang_up, key: None }
}

/// Every request has ended as one may. A refusal without `Retry-After` is one where an engine is given up.
pub(crate) fn account(reports: &[Asked], seed: u64) {
    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    for (wanted, report) in reports {
        let end = match &report.ended {
            Ok(Ended::Whole) => "whole".to_owned(),
            Ok(Ended::HungUp) => AWAY.to_owned(),
            Ok(Ended::Broken(why)) => format!("error event: {}", why.code),
            Ok(Ended::Refused(status, why)) => format!("{status}: {}", why.code),
            Err(why) if why.contains("without a good Retry-After") && why.contains("engine_failed") => {
                "503: engine_failed, for good".to_owned()
            }
            // vLLM's own answer to a request whose engine core has just died is passed on as it came, in a stream too.
            Err(why) if why.contains("EngineCore encountered an issue") => {
                "500: the engine's own, as its core died".to_owned()
            }
            Err(why) => {
                wrong.push(format!("{wanted:?}: {why}"));
                "WRONG".to_owned()
            }
        };
        *ends.entry(end).or_default() += 1;
    }
    say(&format!("{} requests", reports.len()));
    for (end, count) in &ends {
        say(&format!("  {count:>6} {end}"));
    }
    let whole = ends.get("whole").copied().unwrap_or_default();
    assert!(wrong.is_empty(), "seed {seed}: {} requests ended wrongly:\n{}", wrong.len(), wrong.join("\n"));
    // Those whose client had gone, or whom nobody could hear, had no chance.
    let heard = reports.len() - ends.get(AWAY).copied().unwrap_or_default();
    assert!(2 * whole > heard, "seed {seed}: only {whole} of {heard} were served");
}
