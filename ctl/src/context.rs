//! What every command has: the agent, the output, and what is being waited for.

use crate::args::Cli;
use crate::failure::Failure;
use crate::output::Output;
use crate::place;
use hotbunk_api::client::Client;
use hotbunk_api::error::ExitCode;
use std::cell::RefCell;
use std::path::Path;

/// Handed to each command.
#[derive(Debug)]
pub(crate) struct Context {
    client: Option<Client>,
    pub(crate) out: Output,
    pub(crate) json: bool,
    /// What goes on when the waiting is interrupted.
    awaited: RefCell<Option<Awaited>>,
}

/// Something that has been asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Awaited {
    /// What it is.
    pub(crate) kind: AwaitedKind,
    /// Its id.
    pub(crate) id: String,
    /// Whether the agent has said that it accepts it.
    pub(crate) accepted: bool,
}

/// What can be waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AwaitedKind {
    /// An operation.
    Operation,
    /// A cycle run.
    Run,
}

impl Context {
    pub(crate) fn new(cli: &Cli) -> Result<Self, Failure> {
        let root = rustix::process::geteuid().is_root();
        let socket = place::socket(cli.socket.as_deref(), root, |name| std::env::var_os(name), Path::exists);
        let client = socket.map(Client::new).transpose()?;
        Ok(Context { client, out: Output::new(), json: cli.json, awaited: RefCell::new(None) })
    }

    /// The agent's client.
    ///
    /// # Errors
    /// Where nothing says where the agent is.
    pub(crate) fn client(&self) -> Result<&Client, Failure> {
        self.client.as_ref().ok_or_else(|| {
            Failure::new(ExitCode::Usage, "no_socket", "nothing says where the agent's socket is")
                .help("give --socket, or set HOTBUNK_SOCKET or XDG_RUNTIME_DIR")
        })
    }

    /// From here on an interruption cannot say what became of this: the request is on its way.
    pub(crate) fn ask_for(&self, kind: AwaitedKind, id: &str) {
        *self.awaited.borrow_mut() = Some(Awaited { kind, id: id.to_owned(), accepted: false });
    }

    /// From here on an interruption has to say that this goes on.
    pub(crate) fn wait_for(&self, kind: AwaitedKind, id: &str) {
        *self.awaited.borrow_mut() = Some(Awaited { kind, id: id.to_owned(), accepted: true });
    }

    /// It is over.
    pub(crate) fn waited(&self) {
        *self.awaited.borrow_mut() = None;
    }

    /// What is being waited for.
    pub(crate) fn awaited(&self) -> Option<Awaited> {
        self.awaited.borrow().clone()
    }
}
