//! Agent and client together, as an operator meets them.

mod client;
mod demo;
mod refused;
