//! An agent's process: one that this test has started, or one that another agent has.

use crate::processes;
use std::io;
use std::process::{Child, ExitStatus};

/// A process.
#[derive(Debug)]
pub(crate) enum Body {
    /// Ours.
    Child(Child),
    /// Somebody else's, known by its pid alone: how it ends nobody here hears.
    Stranger(u32),
}

impl Body {
    pub(crate) fn pid(&self) -> u32 {
        match self {
            Body::Child(child) => child.id(),
            Body::Stranger(pid) => *pid,
        }
    }

    /// How it ended, once it has. Of a stranger only that it did.
    pub(crate) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        match self {
            Body::Child(child) => child.try_wait(),
            Body::Stranger(pid) => Ok((!processes::lives(*pid)).then(ExitStatus::default)),
        }
    }

    /// Its end, whatever it takes.
    pub(crate) fn end(&mut self) {
        match self {
            Body::Child(child) => {
                drop(child.kill());
                drop(child.wait());
            }
            Body::Stranger(pid) => processes::kill(*pid),
        }
    }
}
