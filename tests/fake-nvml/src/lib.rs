//! A `libnvidia-ml.so` without a GPU: it answers NVML's C calls from a scenario file.
//!
//! The agent's tests load it through the very wrapper that loads NVIDIA's library, so they run the agent's real NVML
//! path. The crate is built twice: as the shared library that is loaded (`libfake_nvml.so`), and as an ordinary crate
//! with which a test writes the scenario.
//!
//! * [`scenario`]: what the library is to say, as a JSON file that is read again at *every* call, so that a test can
//!   change the world while an agent runs.
//! * [`locate`]: where the shared library lies, and private copies of it. A private copy finds its scenario beside
//!   itself, which lets many tests of one process use one library each; `HOTBUNK_FAKE_NVML` names the file otherwise.
//! * `exports`: the C symbols. Those that are left out are missing, as they would be in an old driver.
//!
//! It is strict where NVML is: calls before `nvmlInit` and after `nvmlShutdown` are refused, struct versions are
//! checked, reserved memory is not part of v2's `used`, a process list that does not fit is refused with the size it
//! needs, and a GPU that was lost stays lost until the library has been shut down and begun again.

mod exports;
pub mod locate;
pub mod scenario;

pub use locate::{Library, library};
pub use scenario::{Code, Device, Error, Process, Scenario};
