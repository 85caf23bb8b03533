//! The shim: the small process between the agent and one engine.
//!
//! An engine must survive its agent, and an agent that comes back must know what became of it. So the engine's parent
//! is not the agent but a shim, the same program started as `hotbunk-agent shim --spec FILE`, which does nothing but
//! own one process tree:
//!
//! - it leads a session of its own, so no terminal and no agent's end reaches it;
//! - it is the subreaper of its descendants: an orphan becomes its child, so nothing gets out of the tree;
//! - it holds the engine's output ([`super::log`]) and exit status;
//! - it ends the tree ([`stage`] decides, [`super::sweep`] does it);
//! - it answers on a unix socket ([`super::protocol`]), to any number of agents over time;
//! - it leaves a record of all that on disk ([`super::state`]).
//!
//! Of a server that somebody else has started ([`hold`]) it is not the parent: it hears of its end, and ends it only once
//! it has been told that it is ours.
//!
//! It goes when an agent says that it has noted the end, or, after SIGTERM, when the engine has been stopped.

mod clients;
mod contain;
mod hold;
mod setup;
mod stage;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use rustix::process::{Signal, WaitOptions, WaitStatus, wait};
use serde::{Deserialize, Serialize};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};

use clients::{Asked, Clients};
use contain::{Contain, Happened, Order};
use hold::Holding;
pub(super) use setup::SERVICE_VARIABLES;
use stage::{Action, Input, Stage};

use super::cgroup::Cgroup;
use super::container::{ContainerSpec, ContainerState};
use super::log::{Capture, LogPolicy, LossCause, Losses};
use super::protocol::{Answer, Ask, Event, Exit, Greeting, line};
use super::scope::Scope;
use super::state::{STATE_FILE, ShimState, read_json, write_json};
use super::sweep::Sweep;
use super::tree::{Member, ProcStat, boot_id};
use super::{TAIL_LINES, signal as signals};
use crate::clock;

/// How long a container runtime's client may take to tell how its container ended.
const CLIENT: Duration = Duration::from_secs(1);

/// A shim's orders.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ShimSpec {
    pub(super) engine: String,
    pub(super) token: String,
    pub(super) command: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) unset_env: Vec<String>,
    pub(super) cwd: Option<PathBuf>,
    pub(super) log: PathBuf,
    pub(super) log_policy: LogPolicy,
    pub(super) grace_ms: u64,
    pub(super) use_cgroup: bool,
    pub(super) container: Option<ContainerSpec>,
    /// Nothing is started: this is held.
    #[serde(default)]
    pub(super) adopt: Option<AdoptOrder>,
    pub(super) socket: PathBuf,
}

/// The server that a shim is to take hold of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AdoptOrder {
    pub(super) leader: Member,
    pub(super) output: Option<PathBuf>,
}

/// Runs a shim until its engine has ended and an agent has noted it. `spec` is a file that [`super::Shims::spawn`]
/// wrote; it is removed once read, the record is written beside it.
///
/// One line goes to standard output: whether the engine was started, or why not.
pub fn run_shim(spec: &Path) -> ExitCode {
    let outcome = begin(spec);
    let greeting = match &outcome {
        Ok((_, shim)) => Greeting::Ready(Box::new(shim.state.clone())),
        Err(why) => Greeting::Failed { why: why.clone() },
    };
    let mut out = io::stdout();
    // An agent that died meanwhile does not hear it; the next one finds the record.
    let _ = out.write_all(line(&greeting).as_bytes()).and_then(|()| out.flush());
    match outcome {
        Ok((runtime, shim)) => {
            runtime.block_on(shim.serve());
            ExitCode::SUCCESS
        }
        Err(_) => ExitCode::FAILURE,
    }
}

/// Everything up to the running engine.
fn begin(path: &Path) -> Result<(tokio::runtime::Runtime, Shim), String> {
    setup::cut_loose().map_err(|error| format!("the shim cannot lead a session of its own: {error}"))?;
    let spec: ShimSpec =
        read_json(path).map_err(|error| format!("the shim's orders {}: {error}", path.display()))?;
    fs::remove_file(path).map_err(|error| format!("the shim's orders {}: {error}", path.display()))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("the shim has no runtime: {error}"))?;
    let shim = {
        let _guard = runtime.enter();
        Shim::start(spec, path.with_file_name(STATE_FILE))?
    };
    Ok((runtime, shim))
}

struct Shim {
    state: ShimState,
    state_file: PathBuf,
    grace: Duration,
    scope: Scope,
    stage: Stage,
    sweep: Sweep,
    capture: Capture,
    losses: tokio::sync::watch::Receiver<Losses>,
    /// Losses that have been told.
    told: Vec<LossCause>,
    /// The leader's end, between its reaping and its report.
    ended: Option<WaitStatus>,
    /// Where the engine runs in a container.
    contain: Option<Contain>,
    /// Where somebody else has started it.
    holding: Option<Holding>,
    listener: UnixListener,
    deaths: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    /// Signals that would end it and must not: they are caught, not ignored, because an engine would inherit that.
    _deaf: Vec<tokio::signal::unix::Signal>,
    /// SIGTERM came: go without waiting for an agent.
    leaving: bool,
}

impl Shim {
    fn start(spec: ShimSpec, state_file: PathBuf) -> Result<Shim, String> {
        let catch = |kind| signal(kind).map_err(|error| format!("the shim cannot catch signals: {error}"));
        let deaf = [
            SignalKind::hangup(),
            SignalKind::interrupt(),
            SignalKind::quit(),
            SignalKind::user_defined1(),
            SignalKind::user_defined2(),
            SignalKind::alarm(),
        ];
        let deaf = deaf.into_iter().map(catch).collect::<Result<Vec<_>, _>>()?;
        let (deaths, terminate) = (catch(SignalKind::child())?, catch(SignalKind::terminate())?);

        let me = ProcStat::read(std::process::id()).ok_or("the shim's own /proc entry cannot be read")?;
        let boot_id = boot_id().map_err(|error| format!("/proc/sys/kernel/random/boot_id: {error}"))?;
        let (cgroup, cgroup_refused) = match spec.use_cgroup.then(|| Cgroup::create(&spec.engine, me.pid)) {
            None => (None, Some("switched off".to_owned())),
            Some(Ok(cgroup)) => (Some(cgroup), None),
            Some(Err(error)) => (None, Some(error.to_string())),
        };
        let listener = UnixListener::bind(&spec.socket)
            .map_err(|error| format!("the shim's socket {}: {error}", spec.socket.display()))?;
        let mut state = ShimState {
            engine: spec.engine.clone(),
            token: spec.token.clone(),
            boot_id,
            shim: me.member(),
            session: me.session,
            leader: None,
            cgroup: cgroup.as_ref().map(|cgroup| cgroup.path().to_owned()),
            cgroup_refused,
            socket: spec.socket.clone(),
            log: spec.log.clone(),
            grace_ms: spec.grace_ms,
            started: clock::wall(),
            container: spec.container.clone().map(|spec| ContainerState { spec, client: None, found: None }),
            adopted: None,
        };
        let record = |state: &ShimState| {
            write_json(&state_file, state).map_err(|error| format!("{}: {error}", state_file.display()))
        };
        // A runtime refuses to write over an id, and an old one would name another container.
        if let Some(path) = spec.container.as_ref().and_then(|container| container.id_file.as_ref()) {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(format!("the container's id file {}: {error}", path.display()));
                }
                _ => {}
            }
        }
        // From here on a failure leaves files behind; the agent that hears of it removes them, or the next one does.
        record(&state)?;
        let started = (|| {
            let (output, input) =
                io::pipe().map_err(|error| format!("no pipe for the engine's output: {error}"))?;
            let capture = Capture::start(output, spec.log.clone(), spec.log_policy)
                .map_err(|error| format!("the engine's log {}: {error}", spec.log.display()))?;
            let output =
                input.try_clone().map_err(|error| format!("no pipe for the engine's output: {error}"))?;
            match &spec.adopt {
                Some(order) => {
                    let (holding, adopted) = hold::take(order, input)?;
                    let leader = adopted.leader;
                    state.adopted = Some(adopted);
                    Ok((leader, capture, None, Some(holding)))
                }
                None => {
                    let leader = setup::start_engine(&spec, input, cgroup.as_ref())?;
                    Ok((leader, capture, Contain::new(&spec, output), None))
                }
            }
        })();
        let (leader, capture, contain, holding) = match started {
            Ok(started) => started,
            Err(why) => {
                if let Some(cgroup) = &cgroup {
                    cgroup.remove();
                }
                return Err(why);
            }
        };
        state.leader = Some(leader);
        if let Some(container) = &mut state.container {
            container.client = Some(leader);
        }
        let scope = Scope::of(&state);
        if let Err(why) = record(&state) {
            // An engine that no later agent could know must not run.
            Sweep::default().kill(&scope, &scope.look_apart().proven);
            return Err(why);
        }
        Ok(Shim {
            scope,
            state,
            state_file,
            grace: Duration::from_millis(spec.grace_ms),
            stage: Stage::Running,
            sweep: Sweep::default(),
            losses: capture.losses(),
            told: Vec::new(),
            capture,
            ended: None,
            contain,
            holding,
            listener,
            deaths,
            terminate,
            _deaf: deaf,
            leaving: false,
        })
    }

    /// The loop: until the engine is gone and nobody needs to hear of it any more.
    async fn serve(mut self) {
        let (mut clients, mut questions) = Clients::new();
        if let Some(leader) = self.state.leader {
            clients.tell(Event::Spawned { leader });
        }
        loop {
            // The engine may have ended before the first signal could be caught.
            self.advance(&mut clients).await;
            if self.leaving && (self.stage.is_clean() || self.state.is_only_held()) {
                self.remove_files();
                break;
            }
            let now = clock::now();
            let due = self.stage.due(now);
            let time = async {
                match due {
                    Some(due) => tokio::time::sleep(due.since(now)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = self.deaths.recv() => {}
                _ = self.terminate.recv() => {
                    self.leaving = true;
                    if !self.state.is_only_held() {
                        let grace = self.grace;
                        self.step(Input::StopAsked { grace }, &mut clients).await;
                    }
                }
                // A failed accept (descriptor limit) leaves the connection waiting; the loop goes on.
                connection = self.listener.accept() => if let Ok((stream, _)) = connection {
                    clients.add(stream);
                },
                Some(asked) = questions.recv() => if self.answer(&asked, &mut clients).await {
                    break;
                },
                Ok(()) = self.losses.changed() => self.tell_losses(&mut clients),
                happened = Contain::next(self.contain.as_mut()) => {
                    self.container_happened(happened, &mut clients).await;
                }
                ended = Holding::next(self.holding.as_mut()) => self.held_happened(ended, &mut clients).await,
                () = time => {}
            }
        }
        clients.finish().await;
    }

    /// Each kind once: a flood goes on for as long as it likes.
    fn tell_losses(&mut self, clients: &mut Clients) {
        let losses = *self.losses.borrow_and_update();
        for loss in losses.list() {
            if !self.told.contains(&loss.cause) {
                self.told.push(loss.cause);
                clients.tell(Event::LogLost(loss));
            }
        }
    }

    /// Reaps what has died, looks at what lives where that matters, and takes the steps that follow.
    async fn advance(&mut self, clients: &mut Clients) {
        self.reap_and_tell(clients).await;
        let empty = self.stage.wants_look() && self.is_empty();
        // A leader that died between reaping and looking is not running, but has not been told of either.
        self.reap_and_tell(clients).await;
        self.step(if empty { Input::TreeEmpty } else { Input::Tick }, clients).await;
    }

    /// What runs of the engine, the commands that end it left out.
    fn look(&self) -> Vec<ProcStat> {
        let found = self.scope.look();
        self.contain.as_ref().map_or(found.clone(), |contain| contain.without_runner(found))
    }

    /// Whether nothing of the engine runs, and, of one in a container, nobody forwards its port any more.
    fn is_empty(&mut self) -> bool {
        if !self.look().is_empty() {
            return false;
        }
        let port = self.state.container.as_ref().map_or(0, |container| container.spec.port);
        match &mut self.contain {
            None => true,
            Some(contain) => !contain.is_running() && contain.port_is_free(port, clock::now()),
        }
    }

    async fn container_happened(&mut self, happened: Happened, clients: &mut Clients) {
        let Some(contain) = &mut self.contain else { return };
        match happened {
            Happened::LookDue => match contain.look(&self.state) {
                Ok(Some(contained)) => {
                    self.state.leader = Some(contained.leader);
                    self.scope.found(&contained);
                    if let Some(container) = &mut self.state.container {
                        container.found = Some(contained.clone());
                    }
                    // A record that cannot be written leaves the client's name in it: a later agent stops the container.
                    let _ = write_json(&self.state_file, &self.state);
                    clients.tell(Event::Contained(contained));
                }
                Ok(None) => {}
                Err(why) if why.is_empty() => {}
                Err(why) => clients.tell(Event::NotContained { why }),
            },
            Happened::LeaderEnded => {
                contain.end();
                // The client tells how it ended, a moment later.
                let told = async {
                    while self.contain.as_ref().is_some_and(|c| c.client_status().is_none()) {
                        self.deaths.recv().await;
                        self.reap();
                    }
                };
                // Where it does not, nobody knows.
                let _ = tokio::time::timeout(CLIENT, told).await;
                self.ended = self.contain.as_ref().and_then(Contain::client_status);
                self.capture.settle().await;
                self.step(Input::LeaderExited, clients).await;
            }
        }
    }

    /// The client has ended; whether the engine's leader has with it.
    fn client_ended(&mut self, clients: &mut Clients) {
        let leads = self.state.container.as_ref().and_then(|c| c.found.as_ref()).map(|found| found.leader);
        let runs = leads.and_then(ProcStat::read_member).is_some_and(|stat| stat.is_running());
        if runs && self.stage == Stage::Running {
            clients.tell(Event::ClientGone);
        }
    }

    async fn reap_and_tell(&mut self, clients: &mut Clients) {
        let had_client = self.contain.as_ref().is_some_and(|c| c.client_status().is_none());
        let mut exited = self.reap();
        if had_client && self.contain.as_ref().is_some_and(|c| c.client_status().is_some()) {
            self.client_ended(clients);
        }
        let stopping = self.stage != Stage::Running;
        if let Some(contain) = &mut self.contain
            && contain.never_found(stopping)
        {
            self.ended = contain.client_status();
            exited = true;
        }
        if exited {
            self.capture.settle().await;
            self.step(Input::LeaderExited, clients).await;
        }
    }

    /// Reaps every dead child, adopted ones too; whether the leader was among them.
    fn reap(&mut self) -> bool {
        let mut leader = false;
        // Any child is ours to reap: this process starts none but the engine.
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let pid = u32::try_from(pid.as_raw_pid()).ok();
            if let Some(contain) = &mut self.contain {
                // A container's leader is nobody's child here.
                contain.reaped(pid, status, self.state.container.as_ref().and_then(|c| c.client));
            } else if self.ended.is_none() && self.state.leader.is_some_and(|known| Some(known.pid) == pid) {
                self.ended = Some(status);
                leader = true;
            }
        }
        leader
    }

    async fn step(&mut self, input: Input, clients: &mut Clients) {
        let asked = self.stage.is_asked();
        let (stage, actions) = self.stage.step(input, clock::now());
        self.stage = stage;
        for action in actions {
            match action {
                Action::TermLeader => {
                    let mut leader = self.state.leader;
                    if let (Some(contain), Some(container)) = (&mut self.contain, &self.state.container) {
                        contain.order(Order::Stop, clock::now());
                        // Where there is no container yet, its client must not make one any more.
                        leader = container.client.filter(|_| container.found.is_none());
                    }
                    if let Some(leader) = leader {
                        // Gone already: its death is about to be noticed.
                        let _ = signals::send(leader, Signal::TERM);
                    }
                }
                Action::KillTree => {
                    let found = self.scope.look_apart();
                    let mut own = found.proven;
                    if let Some(contain) = &mut self.contain {
                        own = contain.without_runner(own);
                        let unknown = self.state.container.as_ref().is_some_and(|c| c.found.is_none());
                        if unknown || !found.contained.is_empty() {
                            contain.order(Order::Kill, clock::now());
                        }
                    }
                    self.sweep.kill(&self.scope, &own);
                }
                Action::ReportExit => clients.tell(Event::Exited(Exit {
                    asked,
                    code: self.ended.and_then(WaitStatus::exit_status),
                    signal: self.ended.and_then(WaitStatus::terminating_signal),
                    tail: self.capture.last(TAIL_LINES),
                })),
                Action::ReportSwept => {
                    let found = self.look();
                    clients.tell(Event::Swept(self.sweep.end(&found)));
                }
            }
        }
    }

    /// Answers one question; whether the shim is to go.
    async fn answer(&mut self, asked: &Asked, clients: &mut Clients) -> bool {
        match asked.request.ask {
            Ask::Status => asked.answer(Answer::Status(Box::new(self.state.clone()))),
            Ask::Stop { .. } | Ask::Kill if self.state.is_only_held() => {
                asked.answer(Answer::Refused { why: "it is only held, and not ours to end".to_owned() });
            }
            Ask::Keep => asked.answer(self.keep()),
            Ask::LetGo if self.state.adopted.is_some() => {
                self.remove_files();
                asked.answer(Answer::Accepted);
                return true;
            }
            Ask::LetGo => {
                asked.answer(Answer::Refused { why: "it was started by this shim".to_owned() });
            }
            Ask::Stop { grace_ms } => {
                asked.answer(Answer::Accepted);
                self.see_members();
                self.step(Input::StopAsked { grace: Duration::from_millis(grace_ms) }, clients).await;
            }
            Ask::Kill => {
                asked.answer(Answer::Accepted);
                self.see_members();
                self.step(Input::KillAsked, clients).await;
            }
            Ask::TailLog { lines } => asked.answer(Answer::Tail(self.capture.last(lines))),
            Ask::Forget if self.stage.is_clean() => {
                self.remove_files();
                asked.answer(Answer::Accepted);
                return true;
            }
            Ask::Forget => {
                asked.answer(Answer::Refused { why: "processes of the engine are still there".to_owned() });
            }
        }
        false
    }

    /// Nothing is left to be known: the record, the socket and the cgroup go.
    fn remove_files(&self) {
        if let Some(cgroup) = self.scope.cgroup() {
            cgroup.remove();
        }
        super::state::remove_record(&self.state_file, &self.state.socket);
    }
}
