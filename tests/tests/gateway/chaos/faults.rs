//! The kinds of faults.

use super::revised::{Change, Told};
use super::strangers::Fate;
use fake_nvml::{Code, Device};

/// One kind of fault.
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    pub(super) what: What,
    /// Somebody else puts an engine to sleep, so requests may reach one that is not awake.
    pub(crate) asks_asleep: bool,
}

/// What it does.
pub(super) enum What {
    /// The agent goes in this way, this is done to what it has left, and another one is started.
    Agent(Ends, Meanwhile),
    /// A process of the engine that is awake (or of the other) is killed.
    Kill(Victim, Whose),
    /// The simulated engine misbehaves, with this figure.
    Sim(&'static str, Option<f64>, Whose),
    /// It misbehaves at its next start, which is asked for.
    AtStart(&'static str, Whose),
    /// Somebody calls a control route behind the agent's back.
    Behind(&'static str, Whose),
    /// A process that is not ours takes memory, for a while: before a handoff, or in the middle of one.
    Foreign(When),
    /// What an engine gives back is there two seconds after it has said so.
    LateMemory,
    /// The kernel kills the process that copies weights into host memory.
    OutOfHostMemory,
    /// The driver is in trouble, for a while.
    Driver(fn(&mut Device)),
    /// There is no driver any more, for a while.
    NoDriver,
    /// No byte is left on the journal's disk, for a while.
    FullDisk,
    /// The agent gets no further descriptors, for a while.
    NoDescriptors,
    /// The wall clock jumps by hours, to and fro.
    Clock,
    /// The configuration file changes, and this agent or the next one goes by it.
    Revised(Change, Told),
    /// Somebody else's server is on the port of an engine.
    Stranger(Fate, Whose),
}

/// How an agent ends.
#[derive(Clone, Copy)]
pub(super) enum Ends {
    /// `kill -9`.
    Killed,
    /// By the signal that leaves the engines to the next one.
    Leaves,
    /// By a plain stop: its engines go with it.
    Stops,
    /// It starts the next one itself, which takes its place.
    HandsOver,
    /// The same, and it is killed at some instant of that.
    HandsOverKilled,
}

/// What happens while there is no agent.
#[derive(Clone, Copy)]
pub(super) enum Meanwhile {
    Nothing,
    /// The driver goes; it comes back when the next agent has been there for a while.
    DriverGoes,
    /// The journal's write-ahead log is cut at a random byte.
    LogIsCut,
    /// A page or two of the journal are overwritten.
    JournalIsDamaged,
    /// The configuration says that a copy of the weights takes more host memory than any machine has.
    HostIsTooSmall,
}

#[derive(Clone, Copy)]
pub(super) enum When {
    Before,
    Amid,
}

pub(super) enum Victim {
    ApiServer,
    Core,
    Shim,
}

#[derive(Clone, Copy)]
pub(super) enum Whose {
    Awake,
    Asleep,
}

const fn fault(name: &'static str, what: What) -> Fault {
    Fault { name, what, asks_asleep: false }
}

use Ends::{HandsOver, HandsOverKilled, Killed, Leaves, Stops};
use Meanwhile::{DriverGoes, HostIsTooSmall, JournalIsDamaged, LogIsCut, Nothing};
use What::{Agent, AtStart, Behind, Driver, Foreign, Kill, Revised, Sim, Stranger};
use Whose::{Asleep, Awake};

/// All kinds.
pub(crate) const FAULTS: &[Fault] = &[
    fault("agent killed", Agent(Killed, Nothing)),
    fault("agent leaves, engines stay", Agent(Leaves, Nothing)),
    fault("agent stopped with its engines", Agent(Stops, Nothing)),
    fault("agent starts the next one", Agent(HandsOver, Nothing)),
    fault("agent starts the next one, is killed", Agent(HandsOverKilled, Nothing)),
    fault("no driver at the agent's start", Agent(Killed, DriverGoes)),
    fault("journal's WAL cut, agent dead", Agent(Killed, LogIsCut)),
    fault("journal damaged, agent dead", Agent(Killed, JournalIsDamaged)),
    fault("host too small for level 1", Agent(Killed, HostIsTooSmall)),
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
    fault("host out of memory in sleep", What::OutOfHostMemory),
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
    Fault {
        name: "slept at level 2 behind our back",
        what: Behind("/sleep?level=2", Awake),
        asks_asleep: true,
    },
    Fault { name: "paused behind our back", what: Behind("/pause", Awake), asks_asleep: true },
    fault("woken behind our back", Behind("/wake_up", Asleep)),
    fault("foreign memory", Foreign(When::Before)),
    fault("foreign memory amid a handoff", Foreign(When::Amid)),
    fault("memory comes back 2 s late", What::LateMemory),
    fault("GPU lost", Driver(|d| d.gpu_lost = true)),
    fault("driver blocks", Driver(|d| d.slow_ms = 3_000)),
    fault("driver gone", What::NoDriver),
    fault("processes not supported", Driver(|d| d.processes_fail = Some(Code::NotSupported))),
    fault("pids of another namespace", Driver(|d| d.pid_offset = 1_000_000)),
    fault("journal's disk full", What::FullDisk),
    fault("no file descriptors", What::NoDescriptors),
    fault("clock stepped by hours", What::Clock),
    fault("file changed, engine awake", Revised(Change::Process(Awake), Told::Reload)),
    fault("file changed, engine asleep", Revised(Change::Process(Asleep), Told::Reload)),
    fault("file changed, applied at once", Revised(Change::Process(Awake), Told::Now)),
    fault("file changed and taken back", Revised(Change::Process(Asleep), Told::TakenBack)),
    fault("file changed, agent killed in reload", Revised(Change::Process(Awake), Told::Killed)),
    fault("file changed, next agent started", Revised(Change::Process(Asleep), Told::HandsOver)),
    fault("file changed, agent's own part", Revised(Change::Own, Told::Signal)),
    fault("file has errors", Revised(Change::Errors, Told::Reload)),
    fault("file has errors, no next agent", Revised(Change::Errors, Told::HandsOver)),
    fault("file without an engine, and with it", Revised(Change::Removed(Awake), Told::Reload)),
    fault("file without an engine, agent killed", Revised(Change::Removed(Asleep), Told::Killed)),
    fault("stranger taken over", Stranger(Fate::Adopted, Awake)),
    fault("stranger taken over, agent killed", Stranger(Fate::AgentKilled, Asleep)),
    fault("stranger taken over, next agent started", Stranger(Fate::HandsOver, Awake)),
    fault("stranger there at the agent's start", Stranger(Fate::Waits, Asleep)),
    fault("stranger of another model refused", Stranger(Fate::Refused, Awake)),
    fault("stranger ends while taken over", Stranger(Fate::Killed, Asleep)),
];
