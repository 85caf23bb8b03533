//! A node that faults strike: how each does, and how what it broke from outside is taken away again.

use super::configuration::Configuration;
use super::faults::{Ends, Fault, Meanwhile, Victim, What, When, Whose};
use super::host::{self, Descriptors, Disk};
use super::strangers::Stranger;
use super::traffic::Traffic;
use crate::door::now_ns;
use crate::draw::Draw;
use fake_nvml::{Code, Device, Library, Scenario};
use hotbunk_api::reload::ReloadOutcome;
use hotbunk_api::status::{Condition, DeviceHealth, Settings, StoppedWhy};
use hotbunk_api::words::{Drain, State, Strategy, Tier};
use hotbunk_sim::ledger::Owner;
use hotbunk_tests::{
    Agent, DeviceSetup, Foreign, GIB, Node, Setup, Switch, adopt, kill, reset, restart, signal, start, until,
};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Requests that pass while a fault is armed.
pub(super) const MEANWHILE: usize = 10;
/// Handoffs more, at most, until an armed fault has struck.
const TURNS: usize = 6;
/// Those that are armed until they are cleared.
const STICKY: [&str; 5] =
    ["sleep_frees_half", "residual_creep", "flood_stderr", "ignore_sigterm", "orphan_worker"];
/// How often something is asked for that may be refused because something else is under way.
pub(super) const TRIES: usize = 8;
/// Between two looks.
pub(super) const LOOK: Duration = Duration::from_millis(10);
/// How long what is short stays short.
const SHORTAGE: Duration = Duration::from_secs(1);
/// How long memory is late that is given back late.
const LATE: Duration = Duration::from_secs(2);
/// Within this an agent that starts the next one is killed, ms.
const HANDING_OVER_MS: u64 = 1200;

/// A node, its driver and its agent.
pub(crate) struct Bench {
    pub(crate) node: Node,
    pub(super) agent: Option<Agent>,
    driver: Library,
    card: Device,
    foreign: Option<Foreign>,
    disk: Option<Disk>,
    pub(super) configuration: Configuration,
    /// Those that are engines or were: they live as long as they may.
    pub(super) strangers: Vec<Stranger>,
    /// Of each engine, while nothing is wrong.
    pub(crate) processes: usize,
}

impl Bench {
    pub(crate) async fn begin() -> Self {
        let limits =
            r#"timeouts = { sleep = "2s", wake = "2s", is_sleeping = "2s", probe = "3s", memory = "3s" }"#;
        let node = Setup::pair()
            .each(|e| {
                e.line(limits)
                    .line(r#"restart = { budget = 100000, initial = "50ms", max = "100ms" }"#)
                    .line("stop_grace = \"1s\"")
                    .line("min_residency = \"50ms\"")
                    .line("max_wait = \"5s\"")
            })
            .gateway_line("hold_deadline = \"6s\"")
            .gateway_line("hold_stream_deadline = \"6s\"")
            .devices(vec![DeviceSetup::new("gpu0").source("index = 0")])
            .node_line("nvml_library = \"{dir}/libnvidia-ml.so.1\"")
            .env("LD_PRELOAD", &host::clock_library().display().to_string())
            .env("HOTBUNK_CLOCK_OFFSET", &format!("{{dir}}/{}", host::CLOCK))
            .build();
        let card = Device::of_ledger(node.ledger(0).path()).expect("the ledger");
        let scenario = Scenario { devices: vec![card.clone()], ..Scenario::default() };
        let driver = Library::install(node.dir(), &scenario).expect("the library");
        let disk = Disk::mount(&node);
        let configuration = Configuration::of(&node);
        configuration.write();
        let agent = node.start().await;
        agent.until_up().await;
        let processes = node.tree("A").len();
        Bench {
            node,
            agent: Some(agent),
            driver,
            card,
            foreign: None,
            disk,
            configuration,
            strangers: Vec::new(),
            processes,
        }
    }

    pub(crate) fn agent(&self) -> &Agent {
        self.agent.as_ref().expect("an agent")
    }

    /// Why a kind cannot strike here.
    pub(crate) fn cannot(&self, fault: &Fault) -> Option<&'static str> {
        (matches!(fault.what, What::FullDisk) && self.disk.is_none())
            .then_some("a small file system cannot be mounted here")
    }

    pub(super) async fn whose(&self, whose: Whose) -> String {
        let engines = self.agent().status().await.engines;
        let awake = engines.iter().find(|e| e.tier == Some(Tier::Awake)).map_or("A", |e| e.name.as_str());
        let other = if awake == "A" { "B" } else { "A" };
        match whose {
            Whose::Awake => awake.to_owned(),
            Whose::Asleep => other.to_owned(),
        }
    }

    fn driver_says(&self, init_fails: Option<Code>, change: impl Fn(&mut Device)) {
        let mut card = self.card.clone();
        change(&mut card);
        let scenario = Scenario { devices: vec![card], init_fails, ..Scenario::default() };
        self.driver.set(&scenario).expect("the scenario");
    }

    fn no_driver(&self) {
        self.driver_says(Some(Code::DriverNotLoaded), |d| d.memory_fails = Some(Code::Uninitialized));
    }

    /// Somewhere within a handoff, or near one.
    pub(super) async fn handoff(&self, draw: &mut Draw) {
        let strategies = [Strategy::SleepFirst, Strategy::WakeFirst, Strategy::Park, Strategy::Auto];
        let drains = [Drain::Wait, Drain::Freeze, Drain::Abort];
        let pick = |draw: &mut Draw, of: u64| usize::try_from(draw.below(of)).unwrap_or(0);
        let (strategy, drain) = (strategies[pick(draw, 4)], drains[pick(draw, 3)]);
        for _ in 0..TRIES {
            let to = self.whose(Whose::Asleep).await;
            let wish = Switch::to(&to).strategy(strategy).drain(drain).deadline_s(10.0);
            // It may be refused for good, or fail: what must hold is asked afterwards.
            if self.agent().submit(wish).await.is_ok() {
                break;
            }
            tokio::time::sleep(LOOK).await;
        }
        tokio::time::sleep(Duration::from_millis(draw.below(60))).await;
    }

    /// Waits until an engine is inside its sleep to level 1, and says which; none where it does not come to that.
    async fn inside_a_sleep(&self) -> Option<String> {
        for _ in 0..TRIES {
            let engine = self.whose(Whose::Awake).await;
            if self.is_put_to_sleep(&engine).await {
                return Some(engine);
            }
        }
        None
    }

    async fn is_put_to_sleep(&self, engine: &str) -> bool {
        // 200 simulated seconds at 200-fold speed.
        self.arm(engine, "sleep_hang", Some(200.0)).await;
        let to = if engine == "A" { "B" } else { "A" };
        let wish = Switch::to(to).strategy(Strategy::SleepFirst).leave(Tier::Level1).drain(Drain::Abort);
        let Ok(begun) = self.agent().submit(wish.deadline_s(10.0)).await else {
            tokio::time::sleep(LOOK).await;
            return false;
        };
        let deadline = Instant::now() + LATE;
        while Instant::now() < deadline {
            let operation = self.agent().api.operation(&begun.id).await;
            let sleeps = operation
                .iter()
                .flat_map(|op| &op.steps)
                .any(|step| step.phase == "sleep" && step.state == State::Running);
            let over = operation.as_ref().is_ok_and(|op| op.state.is_over());
            if sleeps || over {
                return sleeps;
            }
            tokio::time::sleep(LOOK).await;
        }
        false
    }

    /// Takes what is free on the device but for so much, for somebody who is not ours.
    fn occupy(&mut self, most: u64, but: u64) {
        let total = self.node.ledger(0).header().map_or(0, |h| h.total_bytes);
        let room = total.saturating_sub(self.node.used()).saturating_sub(but);
        self.foreign = self.node.try_foreign(most.min(room));
    }

    /// Lets a fault strike, while the clients go on.
    pub(crate) async fn strike(&mut self, fault: &Fault, traffic: &Traffic, draw: &mut Draw) {
        match &fault.what {
            What::Agent(ends, meanwhile) => {
                self.handoff(draw).await;
                self.replace(*ends, *meanwhile, traffic, draw).await;
            }
            What::Kill(victim, whose) => {
                let engine = self.whose(*whose).await;
                self.handoff(draw).await;
                self.kill(victim, &engine);
            }
            What::Sim(kind, arg, whose) => {
                let engine = self.whose(*whose).await;
                self.arm(&engine, kind, *arg).await;
                self.handoff(draw).await;
                // Clients may have turned the handoff round before it reached the engine.
                for _ in 0..TURNS {
                    if STICKY.contains(kind) || !self.node.engine(&engine).is_armed(kind).await {
                        break;
                    }
                    traffic.pass(1).await;
                    self.handoff(draw).await;
                }
                // What strikes when its process ends.
                if matches!(*kind, "ignore_sigterm" | "orphan_worker") {
                    for _ in 0..TRIES {
                        if self.agent().submit(restart(&engine)).await.is_ok() {
                            break;
                        }
                        tokio::time::sleep(LOOK).await;
                    }
                }
            }
            What::AtStart(flags, whose) => {
                let engine = self.whose(*whose).await;
                self.node.start_flags(&engine, flags);
                self.kill(&Victim::ApiServer, &engine);
            }
            What::Behind(path, whose) => {
                let engine = self.whose(*whose).await;
                // It may be on its way to somewhere else, or gone.
                let _ = self.node.engine(&engine).try_post(path).await;
            }
            What::Foreign(When::Before) => {
                self.occupy(4 * GIB, 0);
                self.handoff(draw).await;
            }
            What::Foreign(When::Amid) => {
                self.handoff(draw).await;
                self.occupy(u64::MAX, GIB);
            }
            What::LateMemory => {
                if self.inside_a_sleep().await.is_some() {
                    // To whoever looks, bytes that are still there are bytes that are still there, whosever they are.
                    self.occupy(2 * GIB, 0);
                    tokio::time::sleep(LATE).await;
                    self.foreign = None;
                }
            }
            What::OutOfHostMemory => {
                if let Some(engine) = self.inside_a_sleep().await {
                    self.kill(&Victim::Core, &engine);
                }
            }
            What::Driver(change) => {
                self.driver_says(None, change);
                self.handoff(draw).await;
            }
            What::NoDriver => {
                self.handoff(draw).await;
                self.no_driver();
            }
            What::FullDisk => {
                self.disk.iter().for_each(Disk::fill);
                self.handoff(draw).await;
            }
            What::NoDescriptors => {
                self.handoff(draw).await;
                host::limit_descriptors(self.agent().pid(), &Descriptors::Few);
                tokio::time::sleep(SHORTAGE).await;
                host::limit_descriptors(self.agent().pid(), &Descriptors::Plenty);
            }
            What::Clock => {
                self.handoff(draw).await;
                host::step_clock(&self.node, draw);
            }
            What::Revised(change, told) => self.revise(*change, *told, traffic, draw).await,
            What::Stranger(fate, whose) => self.meet(*fate, *whose, traffic, draw).await,
        }
        traffic.pass(MEANWHILE).await;
    }

    /// One agent goes, another one comes.
    pub(super) async fn replace(
        &mut self,
        ends: Ends,
        meanwhile: Meanwhile,
        traffic: &Traffic,
        draw: &mut Draw,
    ) {
        let Some(mut agent) = self.agent.take() else { return };
        if let Ends::HandsOver = ends {
            // Somebody listens all the time, where nothing began at the last moment.
            let told = now_ns();
            self.agent = agent.succeeded().await;
            if self.agent.is_none() {
                traffic.away_since(told);
                self.agent = Some(self.node.start().await);
                traffic.away(false);
            }
            return;
        }
        traffic.away(true);
        match ends {
            Ends::Killed | Ends::HandsOver => agent.kill().await,
            Ends::Stops => agent.stop().await,
            Ends::Leaves => {
                signal(agent.pid(), Signal::USR1);
                let status = agent.ended().await;
                assert!(status.success(), "{status}");
            }
            Ends::HandsOverKilled => {
                signal(agent.pid(), Signal::USR2);
                tokio::time::sleep(Duration::from_millis(draw.below(HANDING_OVER_MS))).await;
                agent.kill().await;
            }
        }
        match meanwhile {
            Meanwhile::Nothing => {}
            Meanwhile::DriverGoes => self.no_driver(),
            Meanwhile::LogIsCut => host::cut_log(&self.node, draw),
            Meanwhile::JournalIsDamaged => host::damage_journal(&self.node, draw),
            Meanwhile::HostIsTooSmall => self.configuration.host_is_too_small(),
        }
        // The next one may have been on its way already.
        self.agent = match Agent::found(&self.node).await {
            Some(next) => Some(next),
            None => Some(self.node.start().await),
        };
        traffic.away(false);
        if let Meanwhile::HostIsTooSmall = meanwhile {
            self.handoff(draw).await;
        }
    }

    /// The agent is killed, and no other one comes yet.
    pub(super) async fn end_agent(&mut self) {
        if let Some(agent) = self.agent.take() {
            agent.kill().await;
        }
    }

    /// An engine that is not there at this instant takes no fault, and strikes none.
    async fn arm(&self, engine: &str, kind: &str, arg: Option<f64>) {
        let _ = self.node.engine(engine).try_fault(kind, arg).await;
    }

    fn kill(&self, victim: &Victim, engine: &str) {
        let tree = self.node.tree(engine);
        let pid = match victim {
            Victim::ApiServer => tree.iter().find(|p| !p.comm.starts_with("VLLM::")).map(|p| p.pid),
            Victim::Core => tree.iter().find(|p| p.comm.starts_with("VLLM::EngineCor")).map(|p| p.pid),
            Victim::Shim => {
                let word = format!("/{engine}-");
                let living = self.node.living();
                living
                    .iter()
                    .find(|p| p.command.contains(" shim ") && p.command.contains(&word))
                    .map(|p| p.pid)
            }
        };
        pid.into_iter().for_each(kill);
    }

    /// What was broken from outside is taken away.
    pub(crate) async fn heal(&mut self, traffic: &Traffic, draw: &mut Draw) {
        self.foreign = None;
        self.driver_says(None, |_| {});
        self.disk.iter().for_each(Disk::relieve);
        host::set_clock(&self.node, 0);
        if self.configuration.takes_an_agent {
            self.configuration.restore();
            self.replace(Ends::Killed, Meanwhile::Nothing, traffic, draw).await;
        } else if !self.configuration.is_wanted {
            self.configuration.restore();
            self.reload(ReloadOutcome::Applied).await;
        }
        for engine in self.node.engines() {
            self.node.start_flags(engine.name(), "");
            engine.clear_faults().await;
        }
        let neighbour = self.node.used_by("foreign");
        if let (true, Some(owner)) = (neighbour > 0, Owner::of(1)) {
            drop(self.node.ledger(0).free(owner, "foreign", neighbour));
        }
    }

    /// What was given up is asked for again, as an operator would, and all comes to rest.
    pub(crate) async fn mend(&self) {
        let agent = self.agent();
        until("the device to be well", async || agent.status().await.devices[0].health == DeviceHealth::Ok)
            .await;
        until("the journal to be written", async || agent.status().await.node.journal_trouble.is_none())
            .await;
        until("both engines to be there, and one at most to be awake", async || {
            let status = agent.status().await;
            let mut there = status.operation.is_none() && status.queue.is_empty();
            there &= status.engines.len() == self.node.engines().len();
            // What is configured is what runs.
            there &= status.engines.iter().all(|e| e.settings == Settings::InForce);
            for engine in &status.engines {
                match &engine.condition {
                    Condition::Settled => {}
                    Condition::Failed { .. } => {
                        there = false;
                        drop(agent.submit(reset(&engine.name)).await);
                    }
                    // Somebody's server is there: it is the engine.
                    Condition::Stopped { why: StoppedWhy::PortTaken } => {
                        there = false;
                        drop(agent.submit(adopt(&engine.name)).await);
                    }
                    // Its rehearsal may have failed in the storm: then it is left stopped until that is forgotten.
                    Condition::Stopped { .. } => {
                        there = false;
                        drop(agent.submit(reset(&engine.name)).await);
                        drop(agent.submit(start(&engine.name)).await);
                    }
                    _ => there = false,
                }
            }
            // Where memory could not be seen both were left serving: one goes by itself, now that it can be seen.
            let awake = status.engines.iter().filter(|e| e.tier == Some(Tier::Awake)).count();
            if there && awake == 0 {
                drop(agent.submit(Switch::to("A")).await);
            }
            there && awake == 1
        })
        .await;
    }

    /// The agent stops; nothing of all that is left.
    pub(crate) async fn end(mut self) {
        if let Some(agent) = self.agent.take() {
            agent.stop().await;
        }
        let left = self.node.living();
        assert!(left.is_empty(), "processes are left: {left:#?}");
        assert_eq!(self.node.used(), 0, "bytes are left on the device");
    }
}
