//! # Crash: every state a power cut may leave, and whether the database keeps its word in it
//!
//! [`explore::explore`] runs a workload on a simulated disk and opens what every possible power cut
//! would have left of it. [`machine`] is the machine, [`workload`] what happens on it, [`history`]
//! what was promised, [`mod@check`] what must hold afterwards, [`mod@replay`] a failure in one
//! line.

pub mod check;
pub mod explore;
pub mod families;
pub mod history;
pub mod machine;
pub mod replay;
pub mod run;
pub mod workload;
