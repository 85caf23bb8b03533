//! Taking over a server that somebody else has started: proofs first, then a hold, and at the end it is ours.
//!
//! In this order, and nothing before has any effect on it: the kernel says whose the port is ([`process::find_server`]); it is
//! of a user that may be signalled, no engine's of this or another agent, in no container; it is healthy, serves the
//! configured model, can be put where the configuration wants engines put, and says that it is awake; its processes are on
//! the configured devices and on no others, where the driver tells. Every refusal says what was wrong and what to do.
//!
//! With other settings than are configured it is taken over all the same: it serves. That is said, and what is measured of it
//! is kept apart, under a fingerprint of its own.

use super::{EngineSlot, Hands, Purpose, chain};
use crate::clock;
use crate::config::settings::{self, Running};
use crate::device::Reading;
use crate::engine::{Client, Detected, Health, Identity};
use crate::events::Incident;
use crate::journal::record::Record;
use crate::process::{
    EngineProcess, Hold, LogPolicy, Ownership, Server, find_server, is_listened, port_belongs_to,
    running_command,
};
use crate::switcher::Input;
use hotbunk_core::call::SleepingAnswer;
use hotbunk_core::capability::Capabilities;
use hotbunk_core::effect::{StepResult, TakenIn};
use hotbunk_core::event::Event;
use hotbunk_core::ids::{DeviceId, EngineId};
use hotbunk_core::sequence;
use hotbunk_core::spec::DrainPolicy;
use hotbunk_core::state::{Condition, Node};
use hotbunk_core::tier::Tier;
use std::sync::Arc;
use std::time::Duration;

impl Hands {
    /// Finds it, proves it, holds it.
    pub(super) async fn hold(
        self: &Arc<Self>,
        engine: EngineId,
        life: u64,
        deadline: Duration,
    ) -> StepResult {
        let slot = self.slot(engine);
        match self.prove_and_hold(&slot, deadline).await {
            Ok(process) => {
                self.refresh_owners();
                self.watch(slot, engine, life, &process);
                StepResult::Held
            }
            Err(why) => StepResult::NotHeld(why),
        }
    }

    async fn prove_and_hold(&self, slot: &EngineSlot, deadline: Duration) -> Result<EngineProcess, String> {
        let c = &slot.config;
        if c.container.is_some() {
            return Err("it is configured to run in a container, and only plain processes can be taken over; end what runs \
                        there and `ctl start` it"
                .to_owned());
        }
        let server = self.server(slot).await?;
        let held = slot.process();
        if let Some(held) = &held
            && held.incarnation().pid != server.leader.pid
        {
            return Err(format!(
                "process {} has taken the place of the one that was found before",
                server.leader.pid
            ));
        }
        let client = Client::new(slot.endpoint()).map_err(|error| chain(&error))?;
        let detected = self.answers(slot, &server, &client, deadline).await?;
        self.is_where_it_should_be(slot, &server).await?;
        let process = match held {
            Some(held) => held,
            None => {
                let hold = Hold {
                    engine: c.name.clone(),
                    leader: server.leader,
                    output: server.output.clone(),
                    log: LogPolicy {
                        max_bytes: c.log.max_bytes,
                        keep: usize::try_from(c.log.keep).unwrap_or(usize::MAX),
                    },
                    grace: c.stop_grace,
                };
                self.shims.hold(hold).await.map_err(|error| chain(&error))?
            }
        };
        slot.hold(process.clone(), client, detected);
        Ok(process)
    }

    /// The server on its port.
    async fn server(&self, slot: &EngineSlot) -> Result<Server, String> {
        let slots = self.engines.all();
        let others = slots.iter().filter(|other| other.config.name != slot.config.name);
        let pids = others.flat_map(|other| {
            let pids = other.process().map(|process| process.pids()).unwrap_or_default();
            pids.into_iter().map(|pid| (pid, other.config.name.clone()))
        });
        let (port, pids) = (slot.config.port, pids.collect::<Vec<_>>());
        let found = tokio::task::spawn_blocking(move || find_server(port, &pids)).await;
        found.map_err(|error| error.to_string())?.map_err(|unfit| unfit.to_string())
    }

    /// What it says for itself.
    async fn answers(
        &self,
        slot: &EngineSlot,
        server: &Server,
        client: &Client,
        deadline: Duration,
    ) -> Result<Detected, String> {
        let (c, pid) = (&slot.config, server.leader.pid);
        match client.health(deadline).await {
            Health::Ok => {}
            Health::Dead => {
                return Err(format!("the engine core of process {pid} is dead; end it and `ctl start` it"));
            }
            Health::Refused { status, message } => {
                return Err(format!("process {pid} answered /health with {status}: {message}"));
            }
            Health::Unknown => return Err(format!("process {pid} does not answer /health")),
            Health::Gone { message } => {
                return Err(format!(
                    "process {pid} does not take connections on {}: {message}",
                    c.base_url()
                ));
            }
        }
        match client.identify(&c.model, deadline).await {
            Identity::Ours { .. } => {}
            Identity::NotReady { message } => {
                return Err(format!("process {pid} is not ready: {message}; try again"));
            }
            Identity::Foreign { models } => {
                let serves = if models.is_empty() {
                    "shows no models (does it want another API key than is configured?)".to_owned()
                } else {
                    format!("serves {}", models.join(", "))
                };
                return Err(format!("process {pid} {serves}, not `{}`", c.model));
            }
        }
        let detected = client.detect(Some(c.workers), deadline).await.map_err(|error| chain(&error))?;
        can_sleep(c.rest_tier, &c.sleep_tiers, &detected.capabilities, &server.command)
            .map_err(|why| format!("process {pid} {why}"))?;
        is_awake(client, &detected.capabilities, deadline).await?;
        Ok(detected)
    }

    /// Whether its device memory is on the devices that are configured for it, and on no others, where that is told.
    async fn is_where_it_should_be(&self, slot: &EngineSlot, server: &Server) -> Result<(), String> {
        let (mut there, mut missing) = (false, Vec::new());
        for device in 0.. {
            let id = DeviceId(device);
            let Some(_) = self.sampler.readings(id) else { break };
            let Ok(reading) = self.sampler.read_now(id).await else { continue };
            let name = self.sampler.info(id).map_or_else(|| format!("device {device}"), |info| info.name);
            let bytes = bytes_of(&server.pids, &reading);
            match (slot.config.devices.contains(&usize::from(device)), bytes) {
                (false, Some(bytes)) if bytes > 0 => {
                    return Err(format!(
                        "process {} holds memory on {name}, which is not among the engine's devices; make the configuration \
                         and its CUDA_VISIBLE_DEVICES agree",
                        server.leader.pid
                    ));
                }
                (true, Some(bytes)) if bytes > 0 => there = true,
                (true, Some(_)) => missing.push(name),
                _ => {}
            }
        }
        match missing.first() {
            // Its pids were seen on one device, so that they are not seen on another means something.
            Some(name) if there => Err(format!(
                "process {} holds no memory on {name}, which is among the engine's devices; make the configuration and its \
                 CUDA_VISIBLE_DEVICES agree",
                server.leader.pid
            )),
            _ => Ok(()),
        }
    }

    /// Measures it, has its shim keep it, and writes that down.
    pub(super) async fn keep(
        &self,
        engine: EngineId,
        deadline: Duration,
        purpose: &Purpose,
    ) -> (StepResult, Option<u64>) {
        match self.measure_and_keep(engine, deadline, purpose).await {
            Ok((taken, pss)) => (StepResult::TakenIn(Box::new(taken)), pss),
            Err(why) => (StepResult::NotHeld(why), None),
        }
    }

    async fn measure_and_keep(
        &self,
        engine: EngineId,
        deadline: Duration,
        purpose: &Purpose,
    ) -> Result<(TakenIn, Option<u64>), String> {
        let slot = self.slot(engine);
        let (Some(process), Some(client)) = (slot.process(), slot.client()) else {
            return Err("it is not held any more".to_owned());
        };
        if let Ownership::Foreign { pid } = process.owns_port(slot.config.port) {
            let holder = pid.map_or("another process".to_owned(), |pid| format!("process {pid}"));
            return Err(format!("{holder} listens on its port by now"));
        }
        let detected = match slot.facts().detected {
            Some(detected) => detected,
            None => {
                client.detect(Some(slot.config.workers), deadline).await.map_err(|error| chain(&error))?
            }
        };
        is_awake(&client, &detected.capabilities, deadline).await?;
        let identity = client.identify(&slot.config.model, deadline).await;
        let Identity::Ours { max_model_len } = identity else {
            return Err(format!("it does not serve `{}` any more", slot.config.model));
        };
        let (measured, pss) = self.measure(engine).await;
        let StepResult::Measured { used, engine: bytes, host } = measured else {
            return Err("it could not be measured".to_owned());
        };
        let pid = process.incarnation().pid;
        let (command, environment) = running_command(pid);
        let differ =
            settings::differences(&slot.config, &Running { command: &command, environment: &environment });
        let fingerprint =
            (!differ.is_empty()).then(|| settings::fingerprint_of_running(&command, &slot.fingerprint));
        process.keep().await?;
        slot.kept(detected, max_model_len);
        self.say_kept(&slot, &process, fingerprint.clone(), &differ, purpose).await;
        let mut remarks = Vec::new();
        if !differ.is_empty() {
            remarks.push(format!(
                "it does not run with the configured settings ({}); its next restart applies those",
                differ.join("; ")
            ));
        }
        let as_configured = fingerprint.is_none();
        let capabilities = detected.capabilities;
        Ok((TakenIn { capabilities, used, bytes, host, as_configured, remarks }, pss))
    }

    async fn say_kept(
        &self,
        slot: &EngineSlot,
        process: &EngineProcess,
        fingerprint: Option<String>,
        differ: &[String],
        purpose: &Purpose,
    ) {
        let engine = slot.config.name.clone();
        let facts = slot.facts();
        let configured = Record::Configured {
            engine: engine.clone(),
            fingerprint: fingerprint.unwrap_or_else(|| slot.fingerprint.clone()),
        };
        let ready = Record::Ready {
            engine: engine.clone(),
            version: facts.version.unwrap_or_else(|| "unknown".to_owned()),
            context_tokens: facts.context_tokens,
        };
        self.tell_of_life(slot, &purpose.context, vec![configured, ready]).await;
        tracing::info!(engine, pid = process.incarnation().pid, at = clock::epoch(), "taken over");
        if !differ.is_empty() {
            let incident = Incident::SettingsChanged { engine, was: differ.join("; ") };
            drop(self.recorder.record_one(&purpose.context, incident).await);
        }
    }

    /// Looks at the ports of engines that wait and have no process; what is new of them comes as events.
    pub fn look_at_ports(self: &Arc<Self>, node: &Node) {
        for id in node.ids() {
            let e = node.engine(id);
            let waits =
                matches!(e.condition, Condition::NoRoom | Condition::Backoff(_) | Condition::PortTaken);
            if e.process || !waits || !node.is_free(&e.spec.devices) {
                continue;
            }
            let slot = self.slot(id);
            let knows = e.condition == Condition::PortTaken;
            // Where it cannot be told, nothing is new.
            let Ok(listened) = is_listened(slot.config.port) else { continue };
            if listened == knows {
                continue;
            }
            let inputs = self.inputs.clone();
            tokio::task::spawn_blocking(move || {
                let taken = match port_belongs_to(slot.config.port, &[]) {
                    Ownership::NobodyListens => None,
                    Ownership::Foreign { pid } => Some(slot.taken_by(pid)),
                    Ownership::Ours | Ownership::Unknown { .. } => return,
                };
                // An error means that the switcher has ended.
                let _ = inputs.send(Input::Event(Event::Port { engine: id, taken }));
            });
        }
    }

    /// Leaves it as it was.
    pub(super) async fn let_go(&self, engine: EngineId) -> StepResult {
        self.slot(engine).let_go().await;
        self.refresh_owners();
        StepResult::LetGo
    }
}

/// Bytes of these processes on a device; `None` where the driver does not tell, or not of them.
fn bytes_of(pids: &[u32], reading: &Reading) -> Option<u64> {
    let processes = reading.processes.as_ref().filter(|_| reading.has_own_processes())?;
    let own = processes.iter().filter(|process| pids.contains(&process.pid));
    own.map(|process| process.bytes).sum()
}

/// Whether it can be put to where it is to rest, as far as its routes and its command line tell.
///
/// # Errors
/// What it lacks.
fn can_sleep(
    rest: Tier,
    tiers: &[Tier],
    capabilities: &Capabilities,
    command: &[String],
) -> Result<(), String> {
    if tiers.is_empty() {
        return Ok(());
    }
    const WANTED: &str =
        "end it and `ctl start` it, or start it with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1";
    if !capabilities.can_level1() {
        return Err(format!("has no sleep routes: {WANTED}"));
    }
    // Without the flag /sleep answers 200 and frees nothing. A file of flags (`--config`) hides it.
    let has = |flag: &str| command.iter().any(|word| word.replace('_', "-").split('=').next() == Some(flag));
    if !command.is_empty() && !has("--enable-sleep-mode") && !has("--config") {
        return Err(format!("was started without --enable-sleep-mode: {WANTED}"));
    }
    if rest.has_process()
        && rest != Tier::Awake
        && let Err(cannot) = sequence::enter(capabilities, Tier::Awake, rest, DrainPolicy::Wait)
    {
        return Err(format!("cannot be put to {rest}, where it is to rest: {cannot}"));
    }
    Ok(())
}

/// Whether it says that it is awake. One that has no such route never sleeps.
///
/// # Errors
/// What it says, and what to do.
async fn is_awake(client: &Client, capabilities: &Capabilities, deadline: Duration) -> Result<(), String> {
    if !capabilities.routes.sleep {
        return Ok(());
    }
    match client.is_sleeping(deadline).await {
        SleepingAnswer::Says { is_sleeping: false } => Ok(()),
        SleepingAnswer::Says { is_sleeping: true } => Err(
            "it sleeps, and at which level nobody has recorded: wake it first (POST /wake_up; after level 2 its weights must \
             be reloaded as well), or end it and `ctl start` it"
                .to_owned(),
        ),
        SleepingAnswer::Refused { status, message } => Err(format!("/is_sleeping answered {status}: {message}")),
        SleepingAnswer::Unknown => Err(format!(
            "/is_sleeping did not answer within {} s: it is busy with an operation, or hangs; try again",
            deadline.as_secs()
        )),
        SleepingAnswer::Gone { message } => Err(format!("/is_sleeping: {message}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Process;
    use hotbunk_core::capability::{Routes, Version};
    use hotbunk_core::time::Moment;

    fn capabilities(sleep: bool, minor: u16) -> Capabilities {
        let routes = Routes {
            sleep,
            collective_rpc: true,
            release_kv_cache: false,
            reset_prefix_cache: true,
            pause: true,
            abort_requests: true,
        };
        Capabilities { version: Version::new(0, minor, 0), routes, workers: 1 }
    }

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn one_that_cannot_be_put_where_it_is_wanted_is_refused() {
        let all = [Tier::Level1, Tier::Level2];
        let with = words("vllm serve m --enable-sleep-mode");
        let can = |caps, rest, command: &[String]| can_sleep(rest, &all, &caps, command);
        assert_eq!(can(capabilities(true, 31), Tier::Level1, &with), Ok(()));
        assert_eq!(
            can(capabilities(true, 31), Tier::Level1, &words("vllm serve m --enable_sleep_mode=true")),
            Ok(())
        );
        assert_eq!(can(capabilities(true, 31), Tier::Level1, &words("vllm serve --config a.yaml")), Ok(()));
        assert_eq!(
            can(capabilities(true, 31), Tier::Level1, &[]),
            Ok(()),
            "a command line that cannot be read"
        );
        let refused = can(capabilities(true, 31), Tier::Level1, &words("vllm serve m")).unwrap_err();
        assert!(refused.contains("without --enable-sleep-mode"), "{refused}");
        let refused = can(capabilities(false, 31), Tier::Level1, &with).unwrap_err();
        assert!(refused.contains("no sleep routes") && refused.contains("VLLM_SERVER_DEV_MODE"), "{refused}");
        assert!(can(capabilities(true, 31), Tier::Parked, &with).unwrap_err().contains("parked"));
        // One that is stopped and started only needs nothing of all that.
        assert_eq!(can_sleep(Tier::Stopped, &[], &capabilities(false, 9), &words("vllm serve m")), Ok(()));
    }

    #[test]
    fn bytes_are_its_own_where_the_driver_tells() {
        let process = |pid, bytes: Option<u64>| Process { pid, bytes };
        let reading = |processes: Option<Vec<Process>>, own: bool| Reading {
            at: Moment(5),
            used: 10,
            free: 0,
            total: 10,
            processes: processes.map(Into::into),
            processes_at: Some(Moment(if own { 5 } else { 4 })),
        };
        let list = || Some(vec![process(1, Some(3)), process(2, Some(4)), process(9, Some(1))]);
        assert_eq!(bytes_of(&[1, 2], &reading(list(), true)), Some(7));
        assert_eq!(bytes_of(&[3], &reading(list(), true)), Some(0));
        assert_eq!(bytes_of(&[1], &reading(list(), false)), None, "carried along");
        assert_eq!(bytes_of(&[1], &reading(None, true)), None);
        assert_eq!(bytes_of(&[1], &reading(Some(vec![process(1, None)]), true)), None);
    }
}
