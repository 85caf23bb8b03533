//! Wire types of Hotbunk: what the control API, `ctl` and the reports say to each other and to other programs.

pub mod report;
