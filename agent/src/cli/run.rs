//! `hotbunk-agent run`: the daemon.

use super::syslog::{self, Prioritised};
use super::{check, say};
use crate::app::{App, Begin, Engines, Former};
use crate::config::{self, Config, DEFAULT_CONFIG, Facts, LogFormat, OnStop};
use crate::effects::chain;
use crate::inherited::{self, Inherited};
use crate::successor::{self, Plan};
use clap::Args;
use hotbunk_api::error::ExitCode as Code;
use std::io::{IsTerminal, Stderr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::fmt::{FormatEvent, FormatFields, SubscriberBuilder};
use tracing_subscriber::{EnvFilter, Registry};

/// Arguments of `run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Configuration file.
    #[arg(long, default_value = DEFAULT_CONFIG)]
    config: PathBuf,
    /// Start no engine; they wait for a command or a cycle.
    #[arg(long)]
    no_start: bool,
    /// A former agent has sent its listeners to the standard input; this is where the program lies.
    #[arg(long, hide = true, value_name = "PROGRAM")]
    succeed: Option<PathBuf>,
}

pub(crate) fn main(args: RunArgs) -> ExitCode {
    // Before anything else: it changes the environment.
    let given = match &args.succeed {
        None => Inherited::take().map(|inherited| (inherited, None)),
        Some(_) => successor::Former::take()
            .map(|(inherited, former)| (inherited, Some(former)))
            .map_err(inherited::Error::Protocol),
    };
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
    let agreed = given.and_then(|(inherited, former)| Ok((inherited.agreed(&config)?, former)));
    let (inherited, former) = match agreed {
        Ok(agreed) => agreed,
        Err(error) => {
            say(&format!("error: {}; nothing was started", chain(&error)));
            return Code::BadFile.into();
        }
    };
    logging(&config);
    let engines = if args.no_start { Engines::Leave } else { Engines::Start };
    let begin = Begin { engines, former: Former::TakeOver, inherited };
    let plan = plan(args);
    block_on(daemon(config, begin, former, plan))
}

/// How the next agent would be started: as this one was, from where its program lies.
fn plan(args: RunArgs) -> std::io::Result<Plan> {
    let program = args.succeed.map_or_else(std::env::current_exe, Ok)?;
    let flags = if args.no_start { vec!["--no-start".to_owned()] } else { Vec::new() };
    Ok(Plan { program, config: args.config, args: flags })
}

/// Puts another filter into force; false where that is not possible.
type SetFilter = Box<dyn Fn(EnvFilter) -> bool + Send + Sync>;

/// The log is one for the process.
static LOG: OnceLock<SetFilter> = OnceLock::new();

/// Log lines to stderr, as configured; `RUST_LOG` has the last word.
pub(crate) fn logging(config: &Config) {
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(&config.node.log_filter));
    let stderr: fn() -> Stderr = std::io::stderr;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr);
    match (config.node.log_format, syslog::is_stderr()) {
        (LogFormat::Json, false) => install(lines.json()),
        (LogFormat::Json, true) => install(lines.json().map_event_format(Prioritised)),
        (LogFormat::Text, false) => install(lines.with_ansi(std::io::stderr().is_terminal())),
        (LogFormat::Text, true) => {
            install(lines.with_ansi(false).without_time().map_event_format(Prioritised));
        }
    }
}

fn install<N, E>(lines: SubscriberBuilder<N, E, EnvFilter, fn() -> Stderr>)
where
    N: for<'a> FormatFields<'a> + Send + Sync + 'static,
    E: FormatEvent<Registry, N> + Send + Sync + 'static,
{
    let lines = lines.with_filter_reloading();
    let handle = lines.reload_handle();
    // A second call within one process (tests) changes nothing.
    if lines.try_init().is_ok() {
        drop(LOG.set(Box::new(move |filter| handle.reload(filter).is_ok())));
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

async fn daemon(
    config: Config,
    begin: Begin,
    former: Option<successor::Former>,
    plan: std::io::Result<Plan>,
) -> ExitCode {
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
    let mut app = match App::start(config, begin, async { told = Some(signals.next().await) }).await {
        Ok(app) => app,
        Err(error) => {
            say(&format!("error: {error:#}"));
            return Code::Failed.into();
        }
    };
    match former.map(successor::Former::is_up) {
        None => drop(sd_notify::notify(&[sd_notify::NotifyState::Ready])),
        // The service is up already, and systemd listens to nobody but its main process: the former one, until that has
        // said who is next.
        Some(Ok(connections)) => app.take(connections),
        Some(Err(_)) if std::env::var_os("NOTIFY_SOCKET").is_some() => {
            say("the former agent was lost, and systemd starts another one: leaving the engines to that");
            told = Some(LEAVE);
        }
        Some(Err(_)) => {}
    }
    let watchdog = tokio::spawn(watchdog(app.switcher.clone()));
    let mut reason = match told {
        Some(reason) => reason,
        None => next_reason(&mut signals, &mut hangups, &app).await,
    };
    while reason == UPGRADE {
        let refused = tokio::select! {
            refused = may_hand_over(&app, &plan) => refused,
            // It is told something else meanwhile.
            other = signals.next() => {
                reason = other;
                continue;
            }
        };
        match refused {
            Ok(plan) => {
                say(&format!("{reason}: starting the next agent (again to cut off what still runs)"));
                let hurry = async {
                    signals.next().await;
                };
                // The owner of the state ends before the next agent is up, and the wait for that has limits of its own.
                watchdog.abort();
                let fed = tokio::spawn(feed());
                let served = |pid| {
                    fed.abort();
                    is_main(pid);
                };
                let handed = app.hand_over(reason, plan, served, hurry).await;
                fed.abort();
                return match handed {
                    Ok(()) => Code::Ok.into(),
                    Err(error) => {
                        say(&format!("error: {}", chain(&error)));
                        Code::Failed.into()
                    }
                };
            }
            Err(why) => {
                say(&format!("{reason}: not now, this agent goes on: {why}"));
                reason = next_reason(&mut signals, &mut hangups, &app).await;
            }
        }
    }
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

/// What it is told next; a new configuration is applied meanwhile.
async fn next_reason(signals: &mut Signals, hangups: &mut Signal, app: &App) -> &'static str {
    loop {
        tokio::select! {
            reason = signals.next() => return reason,
            _ = hangups.recv() => app.reloads.on_signal().await,
        }
    }
}

/// Whether the next agent can be started in this one's place: nothing is given up before that is known.
async fn may_hand_over<'p>(app: &App, plan: &'p std::io::Result<Plan>) -> Result<&'p Plan, String> {
    let plan = plan.as_ref().map_err(|error| format!("it is not known where its program lies: {error}"))?;
    if std::process::id() == 1 {
        return Err(
            "it is the first process here, and everything ends with that: restart it instead".to_owned()
        );
    }
    plan.check().await.map_err(|error| chain(&error))?;
    if app.comes_to_rest().await {
        Ok(plan)
    } else {
        Err("operations have been under way for longer than `shutdown_grace`; try again later".to_owned())
    }
}

/// Tells systemd which process is the service from now on, and that it is well: it says so itself from its next turn on.
fn is_main(pid: u32) {
    drop(sd_notify::notify(&[sd_notify::NotifyState::MainPid(pid), sd_notify::NotifyState::Watchdog]));
}

/// Tells systemd that the switcher still answers, not only that a timer runs.
async fn watchdog(switcher: crate::switcher::Handle) {
    let Some(mut turns) = turns() else { return };
    loop {
        turns.tick().await;
        if switcher.answers().await {
            drop(sd_notify::notify(&[sd_notify::NotifyState::Watchdog]));
        }
    }
}

/// Tells systemd that this process is well, for as long as whoever waits for this one has a limit of its own.
async fn feed() {
    let Some(mut turns) = turns() else { return };
    loop {
        drop(sd_notify::notify(&[sd_notify::NotifyState::Watchdog]));
        turns.tick().await;
    }
}

/// When the unit's watchdog, where there is one, is fed: three times within its limit, and not at once, when the agent may
/// not be the service's main process yet.
fn turns() -> Option<tokio::time::Interval> {
    let every = sd_notify::watchdog_enabled()? / 3;
    Some(tokio::time::interval_at(tokio::time::Instant::now() + every, every))
}

/// The signal to go and leave the engines to the next agent, whatever `on_stop` says.
const LEAVE: &str = "SIGUSR1";

/// The signal to start the program that lies there now as the next agent, and to pass on what runs meanwhile.
const UPGRADE: &str = "SIGUSR2";

/// SIGINT and SIGTERM, SIGUSR1 and SIGUSR2.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    leave: Signal,
    upgrade: Signal,
    hangup: Option<Signal>,
}

impl Signals {
    /// SIGHUP is left to the caller.
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            leave: signal(SignalKind::user_defined1())?,
            upgrade: signal(SignalKind::user_defined2())?,
            hangup: None,
        })
    }

    /// SIGHUP among them: what belongs to a terminal ends with it.
    pub(crate) fn of_a_terminal() -> std::io::Result<Self> {
        Ok(Signals { hangup: Some(signal(SignalKind::hangup())?), ..Signals::new()? })
    }

    /// The next one's name.
    pub(crate) async fn next(&mut self) -> &'static str {
        let hung_up = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = hung_up => "SIGHUP",
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.leave.recv() => LEAVE,
            _ = self.upgrade.recv() => UPGRADE,
        }
    }
}
