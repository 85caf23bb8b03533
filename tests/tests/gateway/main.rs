//! The gateway under load: real agent, real sockets, real clients that hang up, lie and wait; only vLLM and the device
//! are simulated.
//!
//! What makes it checkable to the byte: a simulated engine's tokens follow from its weights and the prompt alone, so the
//! text that each request must get is worked out here (`answer`), without asking any engine. And an engine records which
//! requests reached it while it was not awake, so that no request slips through a handoff unseen.
//!
//! The short runs are part of `cargo test`. `HOTBUNK_LOAD=full` asks for the long ones: 10,000 requests through 200
//! handoffs, a minute of alternating models, floods at a pace at which times mean something. `HOTBUNK_LOAD_SEED`
//! chooses what is drawn; a run prints its own.
//!
//! | file | what |
//! |---|---|
//! | `load` | plain and streamed requests, hang-ups, all drain policies: each ends once, and correctly |
//! | `turns` | two models that alternate, one request against a steady flow, one tenant's flood |
//! | `upgrade` | agents that come and go: nobody is refused, nobody is cut off who can be answered |
//! | `chaos` | everything that can fail, meanwhile: each time everything is whole again |
//! | `bad_input` | what clients do wrong, while others are served: the right answer, and nothing left of it |

mod answer;
mod bad_input;
mod chaos;
mod door;
mod draw;
mod left;
mod load;
mod turns;
mod upgrade;
