//! A simulated vLLM server, as strict as the real one.
//!
//! The agent's whole trade is what happens between vLLM and the device when models are put to sleep and woken, and
//! none of that needs a GPU to be *wrong about*. So this crate is a program that behaves as vLLM does, seen from
//! outside: the same HTTP routes with the same lies, the same process tree with the same orphans, device memory that
//! other processes see move, host memory that is really resident, tokens that change when the weights are not what
//! they should be. It shares no type and no arithmetic with the agent's core: it is an independent witness.
//!
//! # How it runs
//!
//! ```text
//! sim-engine …                 API server: HTTP, metrics, what vLLM's front end believes        (server/)
//!  ├─ resource tracker         holds nothing, leaves when the last holder of its pipe has left  (process)
//!  └─ VLLM::EngineCore         scheduler, worker, device and host memory, one thread            (core/)
//!        │ stdin/stdout: JSON lines, one line a decode step                                     (ipc)
//!        ├─ VLLM::Worker…     owns device memory, where workers are processes of their own     (core/workers)
//!        └─ device ledger      a file per device, shared by all engines of the node             (ledger)
//! ```
//!
//! The children are the same program started again with the same arguments and `HOTBUNK_SIM_ROLE` set. As in vLLM the
//! engine core does not watch its parent: kill the API server with -9 and the core stays, with its memory.
//!
//! Time is a matter of [`model`]: every operation is a sum of copy, map and fixed parts that come from a
//! [`profile`] and hit the reference's medians. The engine core waits for absolute deadlines on `CLOCK_MONOTONIC`, so
//! nothing drifts at high speed, and writes each operation's true interval to the [`oplog`].
//!
//! Behaviour that depends on the release is asked of [`version`], which names the lines of the contract. What nobody
//! has yet seen on a real vLLM is listed in [`UNVERIFIED`].

pub mod args;
pub mod clock;
mod core;
pub mod faults;
mod ipc;
pub mod ledger;
pub mod model;
pub mod oplog;
mod process;
pub mod profile;
mod server;
pub mod tokens;
mod unverified;
pub mod version;

pub use args::SimArgs;
pub use server::RequestRecord;
pub use unverified::UNVERIFIED;

use std::io::Write;
use std::process::ExitCode;

/// Runs one process of a simulated engine: the API server, or the child role that `HOTBUNK_SIM_ROLE` names.
///
/// Builds its own runtimes; call it before any other exists. Errors in the arguments are written to stderr and end in
/// exit code 2, a start that fails in 1. As with vLLM, 0 proves nothing: it is also the code after the engine died.
pub fn run(args: SimArgs) -> ExitCode {
    let role = match process::Role::from_env() {
        Ok(role) => role,
        Err(error) => return complain(&error.to_string()),
    };
    if role == process::Role::ResourceTracker {
        return process::run_tracker();
    }
    let settings = match args.check() {
        Ok(settings) => settings,
        Err(error) => return complain(&error.to_string()),
    };
    match role {
        process::Role::EngineCore => core::run(settings),
        process::Role::Worker => core::run_worker(&settings),
        process::Role::ApiServer | process::Role::ResourceTracker => server::run(settings),
    }
}

fn complain(message: &str) -> ExitCode {
    // A closed stderr leaves nobody to tell.
    drop(writeln!(std::io::stderr(), "sim-engine: error: {message}"));
    ExitCode::from(2)
}
