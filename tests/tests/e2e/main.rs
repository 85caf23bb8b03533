//! The agent, end to end: real processes, real signals, real sockets; only vLLM and the device are simulated.

mod admission;
mod adopt;
mod boot;
mod calls;
mod containers;
mod cycles;
mod device_trouble;
mod doctor;
mod draining;
mod drift;
mod faults;
mod gateway;
mod growth;
mod host;
mod nvml;
mod nvml_bench;
mod nvml_choice;
mod nvml_trouble;
mod process;
mod reload;
mod several;
mod starting;
mod switching;
mod versions;
