//! Placeholder until the disk branch lands.
#![allow(missing_docs)]
use std::time::Duration;
pub trait Clock: Send + Sync + std::fmt::Debug { fn now(&self) -> Duration; fn unix_seconds(&self) -> u64; }
#[derive(Debug)] pub struct SystemClock;
impl SystemClock { pub fn new() -> Self { SystemClock } }
impl Clock for SystemClock { fn now(&self) -> Duration { Duration::ZERO } fn unix_seconds(&self) -> u64 { 0 } }
