//! The gateway's data path: HTTP in, HTTP out, and bytes that nobody touches in between.
//!
//! ```text
//!   thread 0                         thread 1 …
//!   ┌──────────────────────────┐     ┌──────────────────────────┐
//!   │ listener (SO_REUSEPORT)  │     │ listener                 │
//!   │ connection ─► request    │     │ …                        │
//!   │     admit ───────────────┼─────┼───────► hub (one)        │
//!   │ pool of connections ─────┼──┐  │ pool                     │
//!   └──────────────────────────┘  │  └──────────────────────────┘
//!                                 └─► engines
//! ```
//!
//! Each thread has a runtime, a listener and a pool of its own, so a request stays on the core that accepted it and
//! waits for no lock. (Tried before it was built: a multi-threaded runtime and a general HTTP client reached about half
//! of nginx's throughput, this shape four fifths and more.)
//!
//! The way of a request: [`route`] says where it goes, [`body`] reads it, [`peek`] (or [`form`]) finds its model,
//! [`serve`] gets it a lease, [`upstream`] sends it, [`relay`] and [`stream`] bring the answer back. [`wire`] is the
//! client's connection beneath HTTP, [`sse`] the cutting and watching of streams, [`answer`] what the gateway says
//! itself, [`kept`] hands connections to a next gateway.
//!
//! What is passed on: status, headers but for those of one connection, body, trailers. What is added: a request id
//! (`x-request-id`, the client's own where it sent one), comments between the events of a silent stream, and for
//! requests that were held their place and ETA. What is taken away: credentials, which are the gateway's.

mod answer;
mod body;
mod form;
mod head;
mod job;
mod kept;
mod listen;
mod models;
mod peek;
mod relay;
mod route;
mod serve;
mod sse;
mod stream;
#[cfg(test)]
mod tests;
mod upstream;
mod wire;
mod worker;

pub use kept::{Going, Takes};
pub use listen::{Error, Listen, Sockets};

use super::Hub;
use crate::config;
use kept::Way;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, oneshot, watch};
use worker::{Stage, Worker};

/// More threads than this gain nothing: the engines need the cores.
const MOST_THREADS: usize = 4;

/// A running gateway.
#[derive(Debug)]
pub struct Gateway {
    address: SocketAddr,
    /// Somebody else accepts, or will, where this one does not any more.
    are_shared: bool,
    stages: watch::Sender<Stage>,
    way: Way,
    takes: Takes,
    clear: Vec<oneshot::Receiver<()>>,
    ended: Vec<oneshot::Receiver<()>>,
}

impl Gateway {
    /// Starts it: when this returns, connections are accepted.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(sockets: Sockets, hub: Arc<Hub>) -> Result<Self, Error> {
        more_files();
        let Sockets { all, address, are_shared } = sockets;
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let (stages, stage) = watch::channel(Stage::Open);
        let way = Way::default();
        let (mut clear, mut ended, mut threads) = (Vec::new(), Vec::new(), Vec::new());
        for (at, listener) in all.into_iter().enumerate() {
            let (is_clear, told) = oneshot::channel();
            clear.push(told);
            let (give, given) = mpsc::unbounded_channel();
            threads.push(give);
            let worker = Worker {
                hub: Arc::clone(&hub),
                created,
                listener,
                given,
                way: way.clone(),
                stages: stage.clone(),
                clear: is_clear,
            };
            ended.push(spawn(at, worker).map_err(Error::Thread)?);
        }
        Ok(Gateway { address, are_shared, stages, way, takes: Takes::new(threads), clear, ended })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether somebody else has its listeners as well.
    pub fn is_shared(&self) -> bool {
        self.are_shared
    }

    /// Begins to go, and waits until every connection that there was is over: whoever is being answered gets all of
    /// the answer, whoever asks within half a second is answered as well, and each is told that its connection closes.
    ///
    /// Whoever connects from now on waits for the next agent, if the socket was handed over to this one; else it is told
    /// when to come again.
    pub async fn leave(&mut self) {
        let stage = if self.are_shared { Stage::Passing } else { Stage::TurningAway };
        self.stages.send_replace(stage);
        while let Some(told) = self.clear.last_mut() {
            // A thread that has ended has no connections either.
            let _ = told.await;
            self.clear.pop();
        }
    }

    /// Begins to go, with another gateway to follow on the same listeners: from now on it accepts nobody, and connections
    /// on which nothing is under way, now or later, are what this returns. Whoever drops that closes them.
    pub fn pass_on(&mut self) -> Going {
        self.are_shared = true;
        let going = self.way.open();
        self.stages.send_replace(Stage::Passing);
        going
    }

    /// Where it takes connections that another gateway has kept until now.
    pub fn takes(&self) -> Takes {
        self.takes.clone()
    }

    /// Accepts no more, gives what is being answered a moment, and ends.
    pub async fn stop(self) {
        self.stages.send_replace(Stage::Ending);
        for thread in self.ended {
            // A thread that has ended otherwise has ended as well.
            let _ = thread.await;
        }
    }
}

/// A request needs two descriptors, and a shell's usual limit is 1,024. What may be had is taken.
fn more_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open files stays where it is; it bounds how many requests there can be");
    }
}

/// How many threads the configuration asks for; where it says nothing, one for each core, and not too many.
pub fn threads(settings: &config::Gateway) -> usize {
    let usual = || std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
    settings.threads.map_or_else(usual, usize::from).max(1)
}

fn spawn(at: usize, worker: Worker) -> io::Result<oneshot::Receiver<()>> {
    let (end, ended) = oneshot::channel();
    std::thread::Builder::new().name(format!("gateway-{at}")).spawn(move || {
        let served = worker::runtime().and_then(|runtime| runtime.block_on(worker.run()));
        if let Err(error) = served {
            tracing::error!(%error, "a thread of the gateway has ended");
        }
        // Nobody waits where the agent is gone.
        let _ = end.send(());
    })?;
    Ok(ended)
}
