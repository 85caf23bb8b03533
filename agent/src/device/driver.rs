//! The thread that calls the driver, and may block in it.
//!
//! It does one job after the other and knows nothing of schedules: open everything, read what is asked for, open
//! everything again when told so. It ends when nobody can send it a job any more; if it is blocked just then, it is
//! left behind.

use super::error::Error;
use super::nvml;
use super::reading::{DeviceInfo, Process};
use super::source::{DeviceSpec, LedgerLook, Look, Selector, Source};
use crate::clock;
use hotbunk_core::time::Moment;
use nvml_wrapper::Nvml;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use tokio::sync::mpsc as async_mpsc;

/// What the thread is asked to do.
#[derive(Debug)]
pub(super) enum Job {
    /// Read these devices (by their place in the configuration), with their processes or without.
    Read { devices: Vec<usize>, processes: bool },
    /// Shut the library down, begin it again and open all devices.
    Reopen,
}

/// What it answers.
#[derive(Debug)]
pub(super) enum Reply {
    /// After the start and after `Reopen`.
    Opened(Vec<(usize, Result<DeviceInfo, Arc<Error>>)>),
    /// One device was read, or could not be.
    Read(usize, Result<Raw, Error>),
    /// A `Read` job is done.
    Done,
}

/// What was read of a device.
#[derive(Debug)]
pub(super) struct Raw {
    /// Just before the driver was asked.
    pub(super) at: Moment,
    pub(super) used: u64,
    pub(super) free: u64,
    pub(super) total: u64,
    /// `None` where the job did not ask for it.
    pub(super) processes: Option<Result<Arc<[Process]>, String>>,
}

/// Starts the thread.
pub(super) fn spawn(
    devices: Vec<(usize, DeviceSpec)>,
    library: Option<PathBuf>,
) -> Result<(mpsc::Sender<Job>, async_mpsc::UnboundedReceiver<Reply>), Error> {
    let (jobs, job_queue) = mpsc::channel();
    let (replies, reply_queue) = async_mpsc::unbounded_channel();
    std::thread::Builder::new()
        .name("device-driver".into())
        .spawn(move || run(&devices, library.as_deref(), &job_queue, &replies))
        .map_err(Error::Thread)?;
    Ok((jobs, reply_queue))
}

/// An opened device.
enum Handle<'a> {
    Nvml(nvml_wrapper::Device<'a>),
    Ledger(&'a Look),
}

fn run(
    devices: &[(usize, DeviceSpec)],
    library: Option<&Path>,
    jobs: &mpsc::Receiver<Job>,
    replies: &async_mpsc::UnboundedSender<Reply>,
) {
    let uses_nvml = devices.iter().any(|(_, spec)| matches!(spec.source, Source::Nvml(_)));
    let mut uuids = HashMap::new();
    loop {
        let library = uses_nvml.then(|| nvml::begin(library).map_err(Arc::new));
        let mut handles = HashMap::new();
        let mut opened = Vec::new();
        for (index, spec) in devices {
            let outcome = open(spec, library.as_ref(), uuids.get(index))
                .and_then(|found| not_twice(found, spec, devices, &handles, &uuids));
            opened.push((
                *index,
                outcome.map(|(handle, info)| {
                    uuids.insert(*index, info.uuid.clone());
                    handles.insert(*index, (spec.name.as_str(), handle));
                    info
                }),
            ));
        }
        if replies.send(Reply::Opened(opened)).is_err() || !serve(&mut handles, jobs, replies) {
            return;
        }
    }
}

/// Reads until it is told to open everything again (`true`) or nobody is left to ask (`false`).
fn serve(
    handles: &mut HashMap<usize, (&str, Handle<'_>)>,
    jobs: &mpsc::Receiver<Job>,
    replies: &async_mpsc::UnboundedSender<Reply>,
) -> bool {
    while let Ok(job) = jobs.recv() {
        let Job::Read { devices, processes } = job else { return true };
        for index in devices {
            let Some((name, handle)) = handles.get_mut(&index) else { continue };
            if replies.send(Reply::Read(index, read(name, handle, processes))).is_err() {
                return false;
            }
        }
        if replies.send(Reply::Done).is_err() {
            return false;
        }
    }
    false
}

fn open<'a>(
    spec: &'a DeviceSpec,
    library: Option<&'a Result<Nvml, Arc<Error>>>,
    uuid: Option<&String>,
) -> Result<(Handle<'a>, DeviceInfo), Arc<Error>> {
    match (&spec.source, library) {
        (Source::Nvml(selector), Some(library)) => {
            let library = library.as_ref().map_err(Arc::clone)?;
            let known = uuid.map(|uuid| Selector::Uuid(uuid.clone()));
            let (device, info) = nvml::open(library, &spec.name, known.as_ref().unwrap_or(selector))?;
            Ok((Handle::Nvml(device), info))
        }
        (Source::Ledger { look, .. }, _) => Ok(open_ledger(&spec.name, look)?),
        (Source::Nvml(_) | Source::None, _) => Err(Arc::new(Error::Ended)),
    }
}

/// A GPU that is open under another name already would have two ledgers for one memory.
fn not_twice<'a>(
    found: (Handle<'a>, DeviceInfo),
    spec: &DeviceSpec,
    devices: &[(usize, DeviceSpec)],
    open: &HashMap<usize, (&str, Handle<'_>)>,
    uuids: &HashMap<usize, String>,
) -> Result<(Handle<'a>, DeviceInfo), Arc<Error>> {
    let uuid = &found.1.uuid;
    let is_gpu = |spec: &DeviceSpec| matches!(spec.source, Source::Nvml(_));
    let is_same = |(index, other): &&(usize, DeviceSpec)| {
        is_gpu(other) && other.name != spec.name && open.contains_key(index) && uuids.get(index) == Some(uuid)
    };
    match devices.iter().find(is_same).filter(|_| is_gpu(spec)) {
        None => Ok(found),
        Some((_, other)) => Err(Arc::new(Error::Twice {
            device: spec.name.clone(),
            other: other.name.clone(),
            uuid: uuid.clone(),
        })),
    }
}

fn open_ledger<'a>(name: &str, look: &'a Look) -> Result<(Handle<'a>, DeviceInfo), Error> {
    let seen = look_into(name, look)?;
    let info = DeviceInfo {
        name: name.to_owned(),
        uuid: seen.uuid,
        model: seen.model,
        total_bytes: seen.total_bytes,
        reserved_bytes: 0,
        driver: None,
        cuda: None,
        simulated: true,
    };
    Ok((Handle::Ledger(look), info))
}

fn look_into(name: &str, look: &Look) -> Result<LedgerLook, Error> {
    look().map_err(|message| Error::Ledger { device: name.to_owned(), message })
}

fn read(name: &str, handle: &mut Handle<'_>, with_processes: bool) -> Result<Raw, Error> {
    let at = clock::now();
    match handle {
        Handle::Nvml(device) => {
            let (used, free, total) = nvml::memory(device).map_err(|source| Error::Driver {
                device: name.to_owned(),
                call: "read its memory",
                source,
            })?;
            let list = || nvml::processes(device).map(Arc::from).map_err(|e| e.to_string());
            Ok(Raw { at, used, free, total, processes: with_processes.then(list) })
        }
        Handle::Ledger(look) => {
            let LedgerLook { total_bytes: total, used_bytes: used, processes, .. } = look_into(name, look)?;
            let list = processes.into_iter().map(|(pid, bytes)| Process { pid, bytes: Some(bytes) });
            let processes = with_processes.then(|| Ok(list.collect()));
            Ok(Raw { at, used, free: total.saturating_sub(used), total, processes })
        }
    }
}
