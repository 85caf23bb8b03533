//! The control API: JSON over HTTP on a unix socket, for operators and their scripts.
//!
//! # Theory of operation
//!
//! ```text
//!   ctl ──► socket (0660, SO_PEERCRED) ──► router ──► handlers ──► Backend (the agent)
//!              │                            │            │
//!              bind: a live predecessor     peer         ids: the same id twice is one operation
//!              is refused, a dead one's     check        events: ring of the last ones + live channel
//!              socket replaced
//! ```
//!
//! This module knows nothing of engines. It turns requests into calls of a [`Backend`], and what that says into
//! answers. What belongs to the protocol is decided here: who may call ([`peer`]), that a repeated request is the
//! same operation ([`ids`]), how a broken event stream is resumed ([`events`]), that every refusal is JSON
//! ([`extract`]).
//!
//! The routes come from [`hotbunk_api::route::Route`], matched exhaustively in [`router`]: what is documented is
//! served, and nothing else is.

mod backend;
pub mod events;
mod extract;
mod handlers;
mod ids;
pub mod peer;
pub mod router;
pub mod socket;
#[cfg(test)]
mod tests;

pub use backend::{Backend, LogStream};
pub use events::{EventLog, Subscription};
pub use peer::{Allow, Peer};
pub use router::serve;
pub use socket::Socket;
