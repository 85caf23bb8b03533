//! What a check is, and running them in order on one target.

use crate::record;
use crate::server::Server;
use crate::target::{Kind, Target};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Run = Box<dyn Fn(Arc<Server>) -> Pin<Box<dyn Future<Output = ()>>>>;

/// Which server a check needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// One that is awake and idle; the check leaves it so, or so that it can be mended.
    Shared,
    /// One that it may end.
    Own,
    /// One that was started so; the check leaves it alive.
    Started(Start),
    /// One that was started so, and that it may end.
    OwnStarted(Start),
}

/// How a server is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// As one is that is to sleep.
    Usual,
    /// Without `--enable-sleep-mode`, and with `VLLM_KEEP_ALIVE_ON_ENGINE_DEATH=1`: two things that have nothing to do
    /// with each other, in one start.
    AwakeForEver,
    /// Without `VLLM_SERVER_DEV_MODE=1`.
    NoDevMode,
}

impl Needs {
    fn start(self) -> Start {
        match self {
            Needs::Shared | Needs::Own => Start::Usual,
            Needs::Started(start) | Needs::OwnStarted(start) => start,
        }
    }

    fn ends(self) -> bool {
        matches!(self, Needs::Own | Needs::OwnStarted(_))
    }
}

/// A statement about vLLM.
pub(crate) struct Check {
    /// Stable name, `subject.statement`.
    pub(crate) name: &'static str,
    /// The line of the contract, or the observation, that it follows.
    pub(crate) follows: &'static str,
    needs: Needs,
    /// Why it cannot be made on a target.
    skip: Option<(Kind, &'static str)>,
    run: Run,
}

impl Check {
    /// A check on a shared server.
    pub(crate) fn new<F, Fut>(name: &'static str, follows: &'static str, run: F) -> Self
    where
        F: Fn(Arc<Server>) -> Fut + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        let run: Run = Box::new(move |server| Box::pin(run(server)));
        Check { name, follows, needs: Needs::Shared, skip: None, run }
    }

    /// On a server that it may end.
    pub(crate) fn needs(mut self, needs: Needs) -> Self {
        self.needs = needs;
        self
    }

    /// Not on this kind of target, because.
    pub(crate) fn skip(mut self, kind: Kind, why: &'static str) -> Self {
        self.skip = Some((kind, why));
        self
    }
}

/// How a check ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    /// What the panic said.
    Failed(String),
    /// Why it was not run.
    Skipped(&'static str),
}

/// A check that was run, or not.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) name: &'static str,
    pub(crate) follows: &'static str,
    pub(crate) outcome: Outcome,
    /// Wall time, starting a server not included.
    pub(crate) took: Duration,
}

/// Runs them in order.
pub(crate) async fn run(target: &Target, checks: Vec<Check>) -> Vec<Done> {
    let wanted = std::env::var("HOTBUNK_CONTRACT").unwrap_or_default();
    let words: Vec<&str> = wanted.split([',', ' ']).filter(|w| !w.is_empty()).collect();
    let mut at_hand = None;
    let mut done = Vec::new();
    for check in checks.iter().filter(|c| words.is_empty() || words.iter().any(|w| c.name.contains(w))) {
        let (outcome, took) = match check.skip {
            Some((kind, why)) if kind == target.kind() => (Outcome::Skipped(why), Duration::ZERO),
            _ => one(target, check, &mut at_hand).await,
        };
        target.progress(check.name, &outcome, took);
        let result = Done { name: check.name, follows: check.follows, outcome, took };
        // At once: a run takes long, and may be cut short.
        if let Err(error) = record::write(target, &result) {
            panic!("the result cannot be recorded: {error}");
        }
        done.push(result);
    }
    done
}

async fn one(
    target: &Target,
    check: &Check,
    at_hand: &mut Option<(Start, Arc<Server>)>,
) -> (Outcome, Duration) {
    let start = check.needs.start();
    let server = match at_hand.take() {
        Some((started, server)) if started == start => server,
        other => {
            // One server at a time: it goes before the next comes.
            drop(other);
            match caught(target.start(start)).await {
                Ok(server) => Arc::new(server),
                Err(why) => return (Outcome::Failed(format!("no server: {why}")), Duration::ZERO),
            }
        }
    };
    let began = Instant::now();
    let result = caught((check.run)(Arc::clone(&server))).await;
    let took = began.elapsed();
    // What a failed check leaves behind is nobody's to build on, unless starting anew takes minutes.
    let is_kept = !check.needs.ends() && (result.is_ok() || target.kind() == Kind::Real);
    if is_kept && start == Start::Usual {
        let mended = {
            let server = Arc::clone(&server);
            caught(async move { server.mend().await }).await
        };
        match (mended, &result) {
            (Ok(()), _) => *at_hand = Some((start, server)),
            (Err(why), Ok(())) => return (Outcome::Failed(format!("it left a wreck: {why}")), took),
            (Err(_), Err(_)) => {}
        }
    } else if is_kept {
        *at_hand = Some((start, server));
    }
    (result.map_or_else(Outcome::Failed, |()| Outcome::Passed), took)
}

/// Runs to the end or to a panic, whose words it returns.
async fn caught<T: 'static>(work: impl Future<Output = T> + 'static) -> Result<T, String> {
    tokio::task::spawn_local(work).await.map_err(|error| {
        let Ok(panic) = error.try_into_panic() else { return "cancelled".to_owned() };
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default()
    })
}
