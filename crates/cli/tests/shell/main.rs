//! # Tests of the command: runs the program as a shell does
//!
//! Blind spots: colour, progress bars and questions, which need a terminal; a power cut; a full
//! disk.

#![allow(clippy::disallowed_methods, reason = "tests look at files from outside and make their own")]

mod demo;
mod dumps;
mod interrupts;
mod ipc;
mod mistakes;
mod pipes;
mod refusals;
mod repairs;
mod served;
mod streams;
mod support;
mod verbs;
mod waiting;
