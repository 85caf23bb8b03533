//! The reference report: what a careful test tool measured on one L20, and what ours is compared with.

use super::Error;
use hotbunk_api::report::SwitchReport;

/// The reference report built into the agent.
///
/// # Errors
///
/// [`Error::Reference`] where it does not read as a switch report; a test holds that it does.
pub fn reference() -> Result<SwitchReport, Error> {
    serde_json::from_str(include_str!("reference.json"))
        .map_err(|e| Error::Reference { message: e.to_string() })
}
