//! The control API's wire types: what `ctl` and the agent say to each other.
//!
//! # Theory of operation
//!
//! The agent listens on a unix socket and speaks JSON over HTTP. Everything that takes time is a *resource* with an
//! id: an [`Operation`](operation::Operation) (a switch, a sleep, a start, …) or a [`CycleRun`](cycle::CycleRun). A
//! client chooses the id, or lets the agent make one, and posts the request; the answer comes at once, with the
//! resource as it stands. The same id posted twice is one operation, so a client that lost the answer may simply ask
//! again. How it goes on can be read by long polling (`?wait_s=`) or followed on the [event stream](event), which
//! can be resumed at any point that the agent still remembers.
//!
//! Every refusal and every failure is an [`ApiError`](error::ApiError) with a stable code; the code decides the HTTP
//! status and the exit code of `ctl` ([`ExitCode`](error::ExitCode)).
//!
//! Conventions: durations are seconds (`…_s`, floating point), instants are seconds since the Unix epoch (`…_at`),
//! memory is bytes (`…_bytes`). What is not known is `null`, never 0.
//!
//! [`route::Route`] lists every route once. The agent's router and the [OpenAPI document](openapi::openapi) are both
//! made from it, so neither can have a route that the other lacks.
//!
//! The crate depends on no other of the project. Feature `client` adds a typed client ([`client`]).

pub mod check;
#[cfg(feature = "client")]
pub mod client;
pub mod cycle;
pub mod doctor;
pub mod error;
pub mod event;
pub mod explain;
pub mod gateway;
pub mod journal;
pub mod logs;
pub mod openapi;
pub mod operation;
pub mod reload;
pub mod report;
pub mod route;
pub mod status;
pub mod version;
pub mod words;
