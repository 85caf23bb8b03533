//! Engines that are not configured any more and still serve somebody when an agent begins: they end their requests, then
//! they are stopped.
//!
//! A living agent keeps such an engine as a retired one until its own idle moment. For a later agent it has no entry in the
//! configuration: no port, no model, no limits, and no id to have a place in the ledger under. It needs none of that for what
//! is left to be done. Requests that the former agent had passed on ended with its connections (or are still passed on by it,
//! where it hands over), so whoever is left is known to the engine alone, and its own count is asked until it is 0. The port is
//! the one that its processes listen on. To the ledger its bytes are foreign meanwhile, so nothing is put in their place.
//!
//! What it does not end within the drain deadline is cut off, as everywhere; one that sleeps, or that nobody can ask, is
//! stopped at once.

use crate::effects::chain;
use crate::engine::{Client, Endpoint, Error};
use crate::events::{Context, Incident, Recorder};
use crate::process::{self, Predecessor};
use hotbunk_core::call::SleepingAnswer;
use std::future::pending;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// For one answer. The agent waits for the first before it begins to serve.
const ANSWER: Duration = Duration::from_millis(500);
/// Between two questions.
const AGAIN: Duration = Duration::from_millis(250);
/// So often in a row nothing must be in flight: a client may ask for one thing after another.
const IDLE: u32 = 2;

/// How soon they must be gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
enum Patience {
    /// Once their requests have ended.
    #[default]
    Requests,
    /// Now, with the grace of a stop.
    Grace,
    /// Now.
    None,
}

/// One that still serves somebody.
#[derive(Debug)]
pub(super) struct Serving {
    predecessor: Predecessor,
    client: Client,
}

impl Serving {
    /// Takes it if it serves anybody; gives it back where it does not, or nobody can tell.
    pub(super) async fn of(predecessor: Predecessor) -> Result<Self, Box<Predecessor>> {
        let Some(client) = client(&predecessor) else { return Err(Box::new(predecessor)) };
        let serves = matches!(client.in_flight(ANSWER).await, Ok(now) if now.is_idle() == Some(false))
            && client.is_sleeping(ANSWER).await != (SleepingAnswer::Says { is_sleeping: true });
        if serves { Ok(Serving { predecessor, client }) } else { Err(Box::new(predecessor)) }
    }

    /// Until nothing is in flight, or it cannot be asked any more.
    async fn requests_end(&self) {
        let mut idle = 0;
        while idle < IDLE {
            sleep(AGAIN).await;
            match self.client.in_flight(ANSWER).await.map(|now| now.is_idle()) {
                Ok(Some(true)) => idle += 1,
                Ok(Some(false)) => idle = 0,
                Ok(None) => return,
                Err(Error::Unknown { .. }) => {}
                Err(_) => return,
            }
        }
    }
}

/// Whoever listens among its processes, where that is one.
fn client(predecessor: &Predecessor) -> Option<Client> {
    let ports = process::ports_of(&predecessor.pids);
    let (Some(port), 1) = (ports.first(), ports.len()) else { return None };
    let (words, _) =
        predecessor.state.leader.map(|leader| process::running_command(leader.pid)).unwrap_or_default();
    let endpoint = Endpoint {
        base: format!("http://127.0.0.1:{port}"),
        model: String::new(),
        api_key: None,
        load_tracking: words.iter().any(|word| word == "--enable-server-load-tracking"),
    };
    Client::new(endpoint).ok()
}

/// Those that are on their way out. Dropped, it leaves them to the next agent.
#[derive(Debug, Default)]
pub struct Finishing {
    patience: watch::Sender<Patience>,
    tasks: JoinSet<()>,
}

impl Finishing {
    /// Lets them end their requests, for so long at most, and then stops them.
    pub(super) fn begin(serving: Vec<Serving>, recorder: &Recorder, deadline: Duration) -> Self {
        let (patience, watched) = watch::channel(Patience::Requests);
        let mut tasks = JoinSet::new();
        for one in serving {
            tasks.spawn(finish(one, recorder.clone(), deadline, watched.clone()));
        }
        Finishing { patience, tasks }
    }

    /// They are stopped now; waits until they are gone.
    pub async fn stop(&mut self) {
        self.end(Patience::Grace).await;
    }

    /// They are killed; waits until they are gone.
    pub async fn kill(&mut self) {
        self.end(Patience::None).await;
    }

    async fn end(&mut self, patience: Patience) {
        self.patience.send_replace(patience);
        while self.tasks.join_next().await.is_some() {}
    }
}

async fn finish(
    one: Serving,
    recorder: Recorder,
    deadline: Duration,
    mut patience: watch::Receiver<Patience>,
) {
    let of = &one.predecessor;
    let (engine, pid) = (of.engine().to_owned(), of.incarnation().map_or(of.state.shim.pid, |i| i.pid));
    tracing::info!(engine, pid, "it is not configured any more: stopped once its requests have ended");
    let began = Instant::now();
    let hurried = |patience: &mut watch::Receiver<Patience>, least| {
        let mut patience = patience.clone();
        async move {
            if patience.wait_for(|now| *now >= least).await.is_err() {
                // The agent goes and leaves it to the next one.
                pending::<()>().await;
            }
        }
    };
    tokio::select! {
        () = one.requests_end() => {}
        () = sleep(deadline) => tracing::warn!(engine, pid, "its requests have not ended in time: they are cut off"),
        () = hurried(&mut patience, Patience::Grace) => {}
    }
    let report = tokio::select! {
        report = process::stop_tree(of, Duration::from_millis(of.state.grace_ms)) => report,
        () = hurried(&mut patience, Patience::None) => process::stop_tree(of, Duration::ZERO).await,
    };
    match report {
        Ok(report) if report.left.is_empty() => {
            tracing::info!(engine, pid, took_s = began.elapsed().as_secs_f64(), "it has ended");
            drop(recorder.record_one(&Context::none(), Incident::PredecessorStopped { engine, pid }).await);
        }
        Ok(report) => {
            tracing::error!(engine, pid, left = report.left.len(), "it cannot be ended; end it by hand")
        }
        Err(error) => {
            tracing::error!(engine, pid, error = chain(&error), "it cannot be ended; end it by hand")
        }
    }
}
