//! `hotbunk-agent run`: the daemon.

use super::{check, say};
use crate::app::{App, Begin, Engines, Former};
use crate::config::{self, Config, DEFAULT_CONFIG, Facts, LogFormat, OnStop};
use crate::effects::chain;
use crate::inherited::Inherited;
use clap::Args;
use hotbunk_api::error::ExitCode as Code;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Arguments of `run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Configuration file.
    #[arg(long, default_value = DEFAULT_CONFIG)]
    config: PathBuf,
    /// Start no engine; they wait for a command or a cycle.
    #[arg(long)]
    no_start: bool,
}

pub(crate) fn main(args: RunArgs) -> ExitCode {
    // Before anything else: it changes the environment.
    let inherited = Inherited::take();
    let config = match config::load(&args.config, &Facts::of_this_machine()) {
        Ok((config, warnings)) => {
            check::show(&warnings);
            config
        }
        Err(problems) => {
            check::show(&problems);
            say(&format!("{} has errors; nothing was started", args.config.display()));
            return Code::BadFile.into();
        }
    };
    let agreed = inherited.and_then(|inherited| inherited.agrees(&config).map(|()| inherited));
    let inherited = match agreed {
        Ok(inherited) => inherited,
        Err(error) => {
            say(&format!("error: {}; nothing was started", chain(&error)));
            return Code::BadFile.into();
        }
    };
    logging(&config);
    let engines = if args.no_start { Engines::Leave } else { Engines::Start };
    block_on(daemon(config, Begin { engines, former: Former::TakeOver, inherited }))
}

/// Puts another filter into force; false where that is not possible.
type SetFilter = Box<dyn Fn(EnvFilter) -> bool + Send + Sync>;

/// The log is one for the process.
static LOG: OnceLock<SetFilter> = OnceLock::new();

/// Log lines to stderr, as configured; `RUST_LOG` has the last word.
pub(crate) fn logging(config: &Config) {
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(&config.node.log_filter));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second call within one process (tests) changes nothing.
    match config.node.log_format {
        LogFormat::Json => {
            let lines = lines.json().with_filter_reloading();
            let handle = lines.reload_handle();
            if lines.try_init().is_ok() {
                drop(LOG.set(Box::new(move |filter| handle.reload(filter).is_ok())));
            }
        }
        LogFormat::Text => {
            let lines = lines.with_ansi(std::io::stderr().is_terminal()).with_filter_reloading();
            let handle = lines.reload_handle();
            if lines.try_init().is_ok() {
                drop(LOG.set(Box::new(move |filter| handle.reload(filter).is_ok())));
            }
        }
    }
}

/// Another filter, from now on; `RUST_LOG` still has the last word.
pub(crate) fn filter_log(filter: &str) {
    if EnvFilter::try_from_default_env().is_err()
        && let Some(set) = LOG.get()
        && !set(EnvFilter::new(filter))
    {
        tracing::error!("the log filter stays as it was");
    }
}

/// Runs on the agent's own runtime.
pub(crate) fn block_on(work: impl Future<Output = ExitCode>) -> ExitCode {
    match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => {
            let code = runtime.block_on(work);
            // A driver call that hangs must not keep the process.
            runtime.shutdown_timeout(Duration::from_secs(1));
            code
        }
        Err(error) => {
            say(&format!("the runtime cannot be started: {error}"));
            Code::Failed.into()
        }
    }
}

async fn daemon(config: Config, begin: Begin) -> ExitCode {
    // SIGHUP as early as the others: it must not end an agent that is still starting.
    let received = Signals::new().and_then(|signals| Ok((signals, signal(SignalKind::hangup())?)));
    let (mut signals, mut hangups) = match received {
        Ok(received) => received,
        Err(error) => {
            say(&format!("signals cannot be received: {error}"));
            return Code::Failed.into();
        }
    };
    // Told to stop while what cannot be taken over is being stopped: that is hurried up, and then everything ends.
    let mut told = None;
    let app = match App::start(config, begin, async { told = Some(signals.next().await) }).await {
        Ok(app) => app,
        Err(error) => {
            say(&format!("error: {error:#}"));
            return Code::Failed.into();
        }
    };
    drop(sd_notify::notify(&[sd_notify::NotifyState::Ready]));
    let watchdog = tokio::spawn(watchdog(app.switcher.clone()));
    let reason = match told {
        Some(reason) => reason,
        None => loop {
            tokio::select! {
                reason = signals.next() => break reason,
                _ = hangups.recv() => app.reloads.on_signal().await,
            }
        },
    };
    drop(sd_notify::notify(&[sd_notify::NotifyState::Stopping]));
    let engines = if reason == LEAVE { OnStop::Leave } else { app.config.get().node.on_stop };
    match engines {
        OnStop::Stop => say(&format!("{reason}: stopping all engines (again to kill them)")),
        OnStop::Leave => say(&format!("{reason}: going, the engines stay (again to go at once)")),
    }
    app.shutdown(reason, engines, async {
        signals.next().await;
    })
    .await;
    watchdog.abort();
    Code::Ok.into()
}

/// Tells systemd that the switcher still answers, not only that a timer runs.
async fn watchdog(switcher: crate::switcher::Handle) {
    let Some(limit) = sd_notify::watchdog_enabled() else { return };
    let mut ticks = tokio::time::interval(limit / 3);
    loop {
        ticks.tick().await;
        if switcher.answers().await {
            drop(sd_notify::notify(&[sd_notify::NotifyState::Watchdog]));
        }
    }
}

/// The signal to go and leave the engines to the next agent, whatever `on_stop` says.
const LEAVE: &str = "SIGUSR1";

/// SIGINT and SIGTERM, and SIGUSR1.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    leave: Signal,
}

impl Signals {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            leave: signal(SignalKind::user_defined1())?,
        })
    }

    /// The next one's name.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.leave.recv() => LEAVE,
        }
    }
}
