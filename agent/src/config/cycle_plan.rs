//! Cycle plans.

use std::path::Path;

use super::diagnostics::Diagnostics;

/// Built-in plans, name and text.
pub const BUILT_IN: [(&str, &str); 3] = [("reference", ""), ("handoffs", ""), ("quick", "")];
/// Options.
#[derive(Default)]
pub struct Options {}
/// A plan.
pub struct CyclePlan {}
impl CyclePlan {
    /// Parses.
    pub fn parse(_text: &str, _file: &Path) -> Result<(Self, Diagnostics), Diagnostics> {
        Ok((CyclePlan {}, super::diagnostics::Problems::default().finish(_file, _text)))
    }
    /// Expands.
    pub fn expand(&self, _engines: &[String], _options: &Options) -> Result<(), Diagnostics> {
        Ok(())
    }
}
