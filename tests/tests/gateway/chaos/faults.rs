//! The faults: how each strikes, and how what it broke is mended.

use super::traffic::Traffic;
use crate::draw::Draw;
use fake_nvml::{Code, Device, Library, Scenario};
use hotbunk_api::status::{Condition, DeviceHealth};
use hotbunk_api::words::{Drain, Strategy, Tier};
use hotbunk_sim::ledger::Owner;
use hotbunk_tests::{
    Agent, DeviceSetup, Foreign, GIB, Node, Setup, Sleep, Switch, kill, reset, restart, start, until,
};
use std::time::Duration;

/// Requests that pass while a fault is armed.
const MEANWHILE: usize = 10;

/// One kind of fault.
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    what: What,
    /// Somebody else puts an engine to sleep, so requests may reach one that is not awake.
    pub(crate) asks_asleep: bool,
}

/// What it does.
enum What {
    /// The agent is killed and another one started.
    Agent,
    /// A process of the engine that is awake (or of the other) is killed.
    Kill(Victim, Whose),
    /// The simulated engine misbehaves, with this figure.
    Sim(&'static str, Option<f64>, Whose),
    /// It misbehaves at its next start, which is asked for.
    AtStart(&'static str, Whose),
    /// Somebody calls a control route behind the agent's back.
    Behind(&'static str, Whose),
    /// A process that is not ours takes memory, for a while.
    Foreign,
    /// The driver is in trouble, for a while.
    Driver(fn(&mut Device)),
}

enum Victim {
    ApiServer,
    Core,
    Shim,
}

#[derive(Clone, Copy)]
enum Whose {
    Awake,
    Asleep,
}

const fn fault(name: &'static str, what: What) -> Fault {
    Fault { name, what, asks_asleep: false }
}

use What::{AtStart, Behind, Driver, Kill, Sim};
use Whose::{Asleep, Awake};

/// All kinds.
pub(crate) const FAULTS: &[Fault] = &[
    fault("agent killed", What::Agent),
    fault("API server killed, awake", Kill(Victim::ApiServer, Awake)),
    fault("API server killed, asleep", Kill(Victim::ApiServer, Asleep)),
    fault("engine core killed, awake", Kill(Victim::Core, Awake)),
    fault("engine core killed, asleep", Kill(Victim::Core, Asleep)),
    fault("shim killed", Kill(Victim::Shim, Awake)),
    fault("sleep answers 500", Sim("sleep_500", None, Awake)),
    fault("sleep hangs", Sim("sleep_hang", None, Awake)),
    fault("sleep frees half", Sim("sleep_frees_half", None, Awake)),
    fault("neighbour allocates in sleep", Sim("neighbour_alloc_in_sleep", None, Awake)),
    fault("core dies in sleep", Sim("crash_in_sleep", None, Awake)),
    fault("wake answers 500", Sim("wake_500", None, Asleep)),
    fault("wake hangs", Sim("wake_hang", None, Asleep)),
    fault("wake runs out of memory", Sim("wake_oom", None, Asleep)),
    fault("core dies in wake", Sim("crash_in_wake", None, Asleep)),
    fault("weights wrong after wake", Sim("corrupt_after_wake", None, Asleep)),
    fault("residual creeps", Sim("residual_creep", Some(64.0), Awake)),
    fault("log flood", Sim("flood_stderr", Some(2.0), Awake)),
    fault("SIGTERM ignored", Sim("ignore_sigterm", None, Asleep)),
    fault("core leaves the session", Sim("orphan_worker", None, Awake)),
    fault("exits at its start", AtStart("--fault exit_at_start", Asleep)),
    Fault { name: "slept behind our back", what: Behind("/sleep?level=1", Awake), asks_asleep: true },
    fault("woken behind our back", Behind("/wake_up", Asleep)),
    fault("foreign memory", What::Foreign),
    fault("GPU lost", Driver(|d| d.gpu_lost = true)),
    fault("driver blocks", Driver(|d| d.slow_ms = 3_000)),
    fault("processes not supported", Driver(|d| d.processes_fail = Some(Code::NotSupported))),
    fault("pids of another namespace", Driver(|d| d.pid_offset = 1_000_000)),
];

/// A node, its driver and its agent.
pub(crate) struct Bench {
    pub(crate) node: Node,
    agent: Option<Agent>,
    driver: Library,
    card: Device,
    foreign: Option<Foreign>,
    /// Of each engine, while nothing is wrong.
    pub(crate) processes: usize,
}

impl Bench {
    pub(crate) async fn begin() -> Self {
        let limits =
            r#"timeouts = { sleep = "2s", wake = "2s", is_sleeping = "2s", probe = "3s", memory = "2s" }"#;
        let node = Setup::pair()
            .each(|e| {
                e.line(limits)
                    .line(r#"restart = { budget = 100000, initial = "50ms", max = "100ms" }"#)
                    .line("stop_grace = \"1s\"")
                    .line("min_residency = \"50ms\"")
                    .line("max_wait = \"5s\"")
            })
            .gateway_line("hold_deadline = \"20s\"")
            .devices(vec![DeviceSetup::new("gpu0").source("index = 0")])
            .node_line("nvml_library = \"{dir}/libnvidia-ml.so.1\"")
            .build();
        let card = Device::of_ledger(node.ledger(0).path()).expect("the ledger");
        let scenario = Scenario { devices: vec![card.clone()], ..Scenario::default() };
        let driver = Library::install(node.dir(), &scenario).expect("the library");
        let agent = node.start().await;
        agent.until_up().await;
        let processes = node.tree("A").len();
        Bench { node, agent: Some(agent), driver, card, foreign: None, processes }
    }

    pub(crate) fn agent(&self) -> &Agent {
        self.agent.as_ref().expect("an agent")
    }

    async fn whose(&self, whose: Whose) -> String {
        let engines = self.agent().status().await.engines;
        let awake = engines.iter().find(|e| e.tier == Some(Tier::Awake)).map_or("A", |e| e.name.as_str());
        let other = if awake == "A" { "B" } else { "A" };
        match whose {
            Awake => awake.to_owned(),
            Asleep => other.to_owned(),
        }
    }

    fn say(&self, change: impl Fn(&mut Device)) {
        let mut card = self.card.clone();
        change(&mut card);
        self.driver.set(&Scenario { devices: vec![card], ..Scenario::default() }).expect("the scenario");
    }

    /// Somewhere within a handoff, or near one.
    async fn handoff(&self, draw: &mut Draw) {
        let to = self.whose(Asleep).await;
        let strategies = [Strategy::SleepFirst, Strategy::WakeFirst, Strategy::Park, Strategy::Auto];
        let drains = [Drain::Wait, Drain::Freeze, Drain::Abort];
        let pick = |draw: &mut Draw, of: u64| usize::try_from(draw.below(of)).unwrap_or(0);
        let wish =
            Switch::to(&to).strategy(strategies[pick(draw, 4)]).drain(drains[pick(draw, 3)]).deadline_s(10.0);
        // It may be refused, be done already, or fail: what must hold is asked afterwards.
        drop(self.agent().submit(wish).await);
        tokio::time::sleep(Duration::from_millis(draw.below(60))).await;
    }

    /// Lets a fault strike, while the clients go on.
    pub(crate) async fn strike(&mut self, fault: &Fault, traffic: &Traffic, draw: &mut Draw) {
        match &fault.what {
            What::Agent => {
                self.handoff(draw).await;
                traffic.away(true);
                if let Some(agent) = self.agent.take() {
                    agent.kill().await;
                }
                self.agent = Some(self.node.start().await);
                traffic.away(false);
            }
            Kill(victim, whose) => {
                let engine = self.whose(*whose).await;
                self.handoff(draw).await;
                self.kill(victim, &engine);
            }
            Sim(kind, arg, whose) => {
                let engine = self.whose(*whose).await;
                self.arm(&engine, kind, *arg).await;
                self.handoff(draw).await;
                if matches!(*kind, "ignore_sigterm" | "orphan_worker") {
                    drop(self.agent().submit(restart(&engine)).await);
                }
            }
            AtStart(flags, whose) => {
                let engine = self.whose(*whose).await;
                self.node.start_flags(&engine, flags);
                self.kill(&Victim::ApiServer, &engine);
            }
            Behind(path, whose) => {
                let engine = self.whose(*whose).await;
                // It may be on its way to somewhere else, or gone.
                let _ = self.node.engine(&engine).try_post(path).await;
            }
            What::Foreign => {
                let room = self
                    .node
                    .ledger(0)
                    .header()
                    .map_or(0, |h| h.total_bytes)
                    .saturating_sub(self.node.used());
                self.foreign = self.node.try_foreign((4 * GIB).min(room));
                self.handoff(draw).await;
            }
            Driver(change) => {
                self.say(change);
                self.handoff(draw).await;
            }
        }
        traffic.pass(MEANWHILE).await;
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

    /// What was broken from outside is taken away, what was given up is asked for again, and all comes to rest.
    pub(crate) async fn mend(&mut self) {
        self.foreign = None;
        self.say(|_| {});
        for engine in self.node.engines() {
            self.node.start_flags(engine.name(), "");
            engine.clear_faults().await;
        }
        let neighbour = self.node.used_by("foreign");
        if let (true, Some(owner)) = (neighbour > 0, Owner::of(1)) {
            drop(self.node.ledger(0).free(owner, "foreign", neighbour));
        }
        let agent = self.agent();
        until("the device to be well", async || agent.status().await.devices[0].health == DeviceHealth::Ok)
            .await;
        until("both engines to be there", async || {
            let status = agent.status().await;
            let mut there = status.operation.is_none() && status.queue.is_empty();
            for engine in &status.engines {
                match &engine.condition {
                    Condition::Settled => {}
                    Condition::Failed { .. } => {
                        there = false;
                        drop(agent.submit(reset(&engine.name)).await);
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
            // Where memory could not be seen, both were left serving: nobody's requests are lost, and an operator chooses.
            let awake = status.engines.iter().filter(|e| e.tier == Some(Tier::Awake)).count();
            if there && awake > 1 {
                there = false;
                drop(agent.submit(Sleep::at("B", Tier::Level1)).await);
            }
            if there && !status.engines.iter().any(|e| e.tier == Some(Tier::Awake)) {
                there = false;
                drop(agent.submit(Switch::to("A")).await);
            }
            there
        })
        .await;
    }

    pub(crate) async fn end(mut self) {
        if let Some(agent) = self.agent.take() {
            agent.stop().await;
        }
    }
}
