//! The agent, end to end: real processes, real signals, real sockets; only vLLM and the device are simulated.

mod boot;
mod switching;
