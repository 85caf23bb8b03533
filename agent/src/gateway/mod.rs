//! The gateway: one OpenAI endpoint in front of all engines.
//!
//! ```text
//!   request ──► resolve the model ──► authenticate ──► admit ──┬─ Go(lease) ──────────► engine
//!                                                              ├─ Hold(held) ─ await ─┘
//!                                                              └─ Refuse(refusal) ──► client
//! ```
//!
//! This half of it is *admission*: everything between "a request that names a model has arrived" and "here is a lease".
//! The [`Hub`] is one for the node. For each engine it has a gate (one atomic word: open or closed, under which
//! generation, how many are in), and a queue in front of the gate that is fair between tenants. The switcher opens and
//! closes the gates as the state says ([`Hub::follow`]), and nobody else does. A [`Lease`] lives in the response body, to
//! its last byte: closing a gate and waiting for its count to become 0 is a drain.
//!
//! Where the gate is open and nobody waits, admitting takes no lock: two atomic steps, and one more for a tenant that
//! has a limit. Where somebody waits, a newcomer goes behind them, in the order that is fair.
//!
//! What waits is demand: the hub tells the switcher where it begins, ends, or gets older, and the core decides whose
//! turn it is. The hub decides nothing of the kind.

mod face;
mod follow;
mod gate;
mod held;
mod hub;
mod lease;
mod line;
pub mod proxy;
mod refusal;
mod show;
mod sync;
mod tenant;
#[cfg(test)]
mod tests;

pub use held::Held;
pub(crate) use hub::BACK;
pub use hub::{Admit, Ask, Eta, Hub, Link, Model};
pub use lease::{Aborted, Address, Lease, Upstream};
pub use refusal::Refusal;
pub use tenant::Tenant;
