//! # `sheaf` from outside: the program is run as a shell would
//!
//! What this cannot see: colour, bars and questions, which are for terminals; a power cut; a full disk.

#![allow(clippy::disallowed_methods, reason = "tests look at files from outside and make their own")]

mod demo;
mod door;
mod dumps;
mod interrupts;
mod mistakes;
mod pipes;
mod served;
mod streams;
mod support;
mod verbs;
mod waiting;
