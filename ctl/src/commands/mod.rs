//! One file a subcommand.

pub(crate) mod adopt;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod cycle;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod journal;
pub(crate) mod logs;
pub(crate) mod man;
pub(crate) mod pause;
pub(crate) mod reload;
pub(crate) mod report;
pub(crate) mod reset;
pub(crate) mod restart;
pub(crate) mod resume;
pub(crate) mod sleep;
pub(crate) mod start;
pub(crate) mod status;
pub(crate) mod stop;
pub(crate) mod switch;
pub(crate) mod top;
pub(crate) mod wake;
