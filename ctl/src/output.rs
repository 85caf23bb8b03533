//! Data to stdout, everything else to stderr.
//!
//! A reader that goes away (`ctl journal | head`) is no error: what is left is dropped, and commands that write for
//! ever stop.

use crate::failure::Failure;
use hotbunk_api::error::ExitCode;
use serde::Serialize;
use std::cell::Cell;
use std::io::{self, IsTerminal, Write};

/// Standard output that survives its reader.
#[derive(Debug)]
pub(crate) struct Output {
    closed: Cell<bool>,
}

impl Output {
    pub(crate) fn new() -> Self {
        Output { closed: Cell::new(false) }
    }

    /// Whether the reader has gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Whether stdout is a terminal.
    pub(crate) fn is_terminal() -> bool {
        io::stdout().is_terminal()
    }

    /// Writes bytes as they are.
    ///
    /// # Errors
    /// A full disk, say; but not a reader that has gone.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        if self.closed.get() {
            return Ok(());
        }
        let mut stdout = io::stdout().lock();
        match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {
                self.closed.set(true);
                Ok(())
            }
            Err(e) => Err(Failure::new(ExitCode::Failed, "output", format!("cannot write to stdout: {e}"))),
            Ok(()) => Ok(()),
        }
    }

    /// Writes text and a line end.
    ///
    /// # Errors
    /// As [`Output::bytes`].
    pub(crate) fn line(&self, text: impl AsRef<str>) -> Result<(), Failure> {
        self.bytes(format!("{}\n", text.as_ref()).as_bytes())
    }

    /// Writes a document as indented JSON.
    ///
    /// # Errors
    /// As [`Output::bytes`].
    pub(crate) fn json(&self, value: &impl Serialize) -> Result<(), Failure> {
        self.line(serde_json::to_string_pretty(value).map_err(not_json)?)
    }

    /// Writes one of many documents, each on a line.
    ///
    /// # Errors
    /// As [`Output::bytes`].
    pub(crate) fn json_line(&self, value: &impl Serialize) -> Result<(), Failure> {
        self.line(serde_json::to_string(value).map_err(not_json)?)
    }
}

fn not_json(e: serde_json::Error) -> Failure {
    Failure::new(ExitCode::Failed, "internal", format!("cannot be written as JSON: {e}"))
}

/// Writes a line to stderr; if that fails there is nobody to tell.
pub(crate) fn note(text: impl AsRef<str>) {
    drop(writeln!(io::stderr(), "{}", text.as_ref()));
}
