//! `hotbunk-agent demo`: the whole agent on two simulated engines and a simulated L20.
//!
//! Nothing in it is special: a configuration is written and read like any other, the engines are real child processes
//! under their shims, the cycle goes the way of every cycle. Only the folder is its own.

mod setup;
mod show;

use crate::app::{App, Begin, Engines, Former};
use crate::cli::{out, run, say};
use crate::clock;
use crate::config::{Facts, OnStop, Strategy, cycle_plan};
use crate::cycle::By;
use crate::effects::chain;
use crate::inherited::Inherited;
use crate::report;
use crate::reports;
use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use hotbunk_api::cycle::PlanSource;
use hotbunk_api::error::ExitCode as Code;
use hotbunk_api::report::Status;
use hotbunk_api::words::State;
use hotbunk_core::tier::Tier;
use hotbunk_sim::profile::Profile;
use hotbunk_sim::version::Version;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// What to run: `reference` (the reference report's cycle), `handoffs` (19 handoffs), `quick` (a short look).
    #[arg(long, value_enum, default_value_t = Plan::Reference)]
    plan: Plan,
    /// How many times faster than real time; with `handoffs`, from the first handoff on.
    #[arg(long, default_value_t = 20.0, value_parser = speed)]
    speed: f64,
    /// What is simulated: `l20`, or a TOML file of the same form.
    #[arg(long, default_value = "l20", value_parser = profile)]
    profile: String,
    /// Strategy of the handoffs: auto, sleep-first, wake-first or park.
    #[arg(long, value_parser = strategy)]
    strategy: Option<Strategy>,
    /// Tier that handoffs leave the outgoing engine in: parked, level1, level2 or stopped.
    #[arg(long, value_name = "TIER", value_parser = leave)]
    leave: Option<Tier>,
    /// Release of vLLM that is simulated.
    #[arg(long, default_value = "0.31", value_name = "X.Y")]
    vllm: Version,
    /// Folder for the report, the journal and the logs [default: ./hotbunk-demo-TIMESTAMP].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Keep the agent up afterwards, for ctl, curl and scraping.
    #[arg(long)]
    stay: bool,
}

/// The plans that come with the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Plan {
    Reference,
    Handoffs,
    Quick,
}

impl Plan {
    fn name(self) -> &'static str {
        match self {
            Plan::Reference => "reference",
            Plan::Handoffs => "handoffs",
            Plan::Quick => "quick",
        }
    }
}

/// Starts and rehearsals of the `handoffs` plan run at this speed, whatever its handoffs run at.
const START_SPEED: f64 = 20.0;

fn speed(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(speed) if (0.01..=1000.0).contains(&speed) => Ok(speed),
        _ => Err("a number from 0.01 to 1000; 1 is real time, 20 is twenty times faster".to_owned()),
    }
}

/// A profile is read here as well, so that a wrong one is wrong usage and nothing has been made yet.
fn profile(text: &str) -> Result<String, String> {
    Profile::load(text).map(|_| text.to_owned()).map_err(|error| chain(&error))
}

fn leave(text: &str) -> Result<Tier, String> {
    match text.parse() {
        Ok(Tier::Awake) | Err(_) => Err("one of parked, level1, level2, stopped".to_owned()),
        Ok(tier) => Ok(tier),
    }
}

fn strategy(text: &str) -> Result<Strategy, String> {
    Strategy::ALL.into_iter().find(|s| s.as_str() == text).ok_or_else(|| {
        let known: Vec<&str> = Strategy::ALL.iter().map(|s| s.as_str()).collect();
        format!("one of {}", known.join(", "))
    })
}

/// Runs the demo.
pub fn main(args: DemoArgs) -> ExitCode {
    run::block_on(async {
        match demo(args).await {
            Ok(code) => code.into(),
            Err(error) => {
                say(&format!("error: {error:#}"));
                Code::Failed.into()
            }
        }
    })
}

async fn demo(args: DemoArgs) -> anyhow::Result<Code> {
    let mut signals = run::Signals::of_a_terminal().context("signals cannot be received")?;
    let engine_speed = if args.plan == Plan::Handoffs { START_SPEED } else { args.speed };
    let setup = setup::Setup::make(&args, engine_speed)?;
    let facts = Facts::of_this_machine();
    let config = match crate::config::load(&setup.config_file, &facts) {
        Ok((config, _)) => config,
        Err(problems) => bail!("the demo's own configuration is refused\n{}", problems.render(false)),
    };
    run::logging(&config);
    say(&format!(
        "two simulated vLLM servers on a simulated L20, {} times faster than real time",
        args.speed
    ));
    say(&format!("folder: {}", setup.dir.display()));
    let begin = Begin { engines: Engines::Leave, former: Former::Stop, inherited: Inherited::default() };
    let app = App::start(config, begin, std::future::pending()).await?;
    // The journal's lock is ours, and what was left running has been stopped.
    setup.clear_former();
    say(&format!("control socket: {}", app.control_socket.display()));
    if let Some(address) = app.metrics_address {
        say(&format!("metrics: http://{address}/metrics"));
    }
    if let Some(address) = app.gateway_address {
        say(&format!("gateway: http://{address}/v1"));
    }
    let source = PlanSource::Named { name: args.plan.name().to_owned() };
    let options = cycle_plan::Options { strategy: args.strategy, leave: args.leave };
    let (plan, steps) = app.cycles.read(&source, &options)?;
    let run = format!("demo-{}", clock::wall().strftime("%Y%m%dT%H%M%S.%3f"));
    let shown = app.cycles.begin(run.clone(), plan, steps, By::Demo)?;
    let progress = show::Progress::follow(shown.watch());
    let ended = tokio::select! {
        ended = shown.over() => Some(ended),
        _ = signals.next() => None,
    };
    progress.finish();
    let Some(ended) = ended else {
        say("interrupted: stopping the engines");
        app.shutdown("interrupted", OnStop::Stop, async {
            signals.next().await;
        })
        .await;
        return Ok(Code::Interrupted);
    };
    let code = conclude(&app, &setup, &run, ended.state).await;
    if args.stay && code.is_ok() {
        stay(&app, &mut signals).await;
    }
    app.shutdown("the demo is over", OnStop::Stop, async {
        signals.next().await;
    })
    .await;
    code
}

/// Report, table, verdict.
async fn conclude(app: &App, setup: &setup::Setup, run: &str, state: State) -> anyhow::Result<Code> {
    let report = reports::of_run(app.hands.recorder.journal(), run).await?;
    let path = setup.dir.join("switch-report.json");
    let json = serde_json::to_string_pretty(&report).context("the report cannot be written as JSON")?;
    std::fs::write(&path, json + "\n").with_context(|| format!("{} cannot be written", path.display()))?;
    out(&report::table(&report));
    let passed = report.status == Status::Pass && state == State::Succeeded;
    out(&format!("report: {}\n", path.display()));
    let socket = app.control_socket.display();
    if passed {
        // Whoever came by cargo has no `hotbunk-agent` on the path.
        let by_cargo = std::env::var_os("CARGO").is_some();
        let me = if by_cargo { "cargo run --release --" } else { "hotbunk-agent" };
        out(&format!("next: {me} demo --plan handoffs --speed 1 --strategy auto\n"));
    } else {
        out(&format!("next: look at the engines' logs and the journal under {}\n", setup.dir.display()));
        tracing::debug!(%socket, "failed");
    }
    Ok(if passed { Code::Ok } else { Code::Failed })
}

async fn stay(app: &App, signals: &mut run::Signals) {
    let socket = app.control_socket.display();
    say("the agent stays up; in another terminal:");
    say(&format!("  export HOTBUNK_SOCKET={socket}"));
    say("  cargo run --release -p hotbunk-ctl -- status");
    say("  cargo run --release -p hotbunk-ctl -- switch B");
    say(&format!("  curl --unix-socket {socket} http://localhost/v1/status"));
    if let Some(address) = app.metrics_address {
        say(&format!("  curl http://{address}/metrics"));
    }
    if let Some(address) = app.gateway_address {
        say("one endpoint serves every model, and switches to the one that is asked for:");
        for slot in app.hands.engines.all().iter() {
            say(&format!(
                "  curl -N http://{address}/v1/completions -H 'content-type: application/json' -d '{{\"model\": \"{}\", \"prompt\": \"hello\", \"max_tokens\": 8}}'",
                slot.config.model
            ));
        }
    }
    say("Ctrl-C ends it.");
    signals.next().await;
}
