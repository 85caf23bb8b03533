//! Placeholder.
pub mod record;
