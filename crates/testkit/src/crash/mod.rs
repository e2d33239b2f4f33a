//! # Crash explorer: every disk state that a power cut may leave, and the checks of each
//!
//! [`explore::explore`] runs a workload on a simulated disk and opens every disk state that a power
//! cut could have left. [`machine`] has the machine, [`workload`] the steps, [`history`] the
//! expected states, [`mod@check`] the checks after a crash, and [`mod@replay`] failures as one
//! line.

pub mod check;
pub mod explore;
pub mod families;
pub mod history;
pub mod machine;
pub mod replay;
pub mod run;
mod times;
pub mod workload;
