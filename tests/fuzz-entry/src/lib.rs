//! What bytes from outside can do to the agent: one function for each place where they come in.
//!
//! ```text
//!   tests/fuzz (its own workspace, libFuzzer) ──┐
//!                                               ├──► Target::run(bytes): panics on a finding
//!   tests/replay.rs (ordinary `cargo test`)   ──┘
//!        reads tests/fuzz/corpus/<target>/ and tests/fuzz/corpus/<target>.found/
//! ```
//!
//! A target asks more than "does it panic": each states what must hold of any input (the same events under every
//! chunking, an error that names a reason, a journal that is set aside or readable). What it finds is kept as a file
//! of the corpus, so that every later `cargo test` tries it again.

mod config;
mod control;
mod gateway;
mod journal;
mod records;
mod sse;

/// A place where bytes come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Text of a configuration, or of a cycle plan.
    Config,
    /// A stream of server-sent events.
    Sse,
    /// A request to the control API, its body above all.
    Control,
    /// A client's connection to the gateway: the heads of requests above all.
    Head,
    /// The body of a client's request.
    Body,
    /// The journal's files after a power cut or damage.
    Journal,
    /// Records in the journal, as another version or a stray hand may have written them: reports are made of them.
    Records,
}

impl Target {
    /// Every target.
    pub const ALL: [Target; 7] = [
        Target::Config,
        Target::Sse,
        Target::Control,
        Target::Head,
        Target::Body,
        Target::Journal,
        Target::Records,
    ];

    /// Name of its fuzz target and of its corpus.
    pub fn name(self) -> &'static str {
        match self {
            Target::Config => "config",
            Target::Sse => "sse",
            Target::Control => "control",
            Target::Head => "head",
            Target::Body => "body",
            Target::Journal => "journal",
            Target::Records => "records",
        }
    }

    /// Tries one input.
    ///
    /// # Panics
    /// On a finding; that is the point.
    pub fn run(self, bytes: &[u8]) {
        match self {
            Target::Config => config::run(bytes),
            Target::Sse => sse::run(bytes),
            Target::Control => control::run(bytes),
            Target::Head => gateway::head(bytes),
            Target::Body => gateway::body(bytes),
            Target::Journal => journal::run(bytes),
            Target::Records => records::run(bytes),
        }
    }
}
