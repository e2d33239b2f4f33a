//! # Causes: why a database refuses writes, and why a writer waits

/// Failure after which a database refuses writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PoisonCause {
    /// A sync of a file or directory failed.
    Sync,
    /// A sync of ROOT failed.
    RootSync,
    /// A commit could not be written to the log after it had its number.
    Append,
    /// A new segment of a log could not be opened.
    LogRotation,
    /// A panic in the middle of a commit. Reads fail too.
    Commit,
    /// A panic in a background thread.
    BackgroundWork,
    /// The directory of the database was moved or replaced while the database was open.
    MovedDirectory,
}

impl PoisonCause {
    /// All values.
    pub const ALL: [PoisonCause; 7] = [
        PoisonCause::Sync,
        PoisonCause::RootSync,
        PoisonCause::Append,
        PoisonCause::LogRotation,
        PoisonCause::Commit,
        PoisonCause::BackgroundWork,
        PoisonCause::MovedDirectory,
    ];

    /// Returns the name, for output and tools.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            PoisonCause::Sync => "sync",
            PoisonCause::RootSync => "sync of ROOT",
            PoisonCause::Append => "append",
            PoisonCause::LogRotation => "log rotation",
            PoisonCause::Commit => "commit",
            PoisonCause::BackgroundWork => "background work",
            PoisonCause::MovedDirectory => "moved directory",
        }
    }

    /// Returns the cause and the remedy, for a message: "the database refuses writes REASON".
    pub(super) fn reason_and_remedy(self) -> String {
        match self {
            PoisonCause::MovedDirectory => "because its directory was moved or replaced while it was open; the \
                                            process that has it open must close it, then open it where it is now"
                .to_owned(),
            cause => format!("after a failed {cause}; reopen it"),
        }
    }
}

impl std::fmt::Display for PoisonCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Cause of a wait of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StallKind {
    /// Garbage collection or a checkpoint is behind, so that writers are throttled.
    Throttle,
    /// The memory budget is exhausted until a checkpoint frees memory.
    Memory,
    /// The disk is full until a checkpoint or garbage collection frees space.
    DiskSpace,
    /// No preallocated log segment, or no reserved commit number, was available.
    Preallocation,
    /// A conversion is behind, or is changing the engine.
    Conversion,
    /// A sync took longer than the threshold.
    Sync,
}

impl StallKind {
    /// All kinds.
    pub const ALL: [StallKind; 6] = [
        StallKind::Throttle,
        StallKind::Memory,
        StallKind::DiskSpace,
        StallKind::Preallocation,
        StallKind::Conversion,
        StallKind::Sync,
    ];

    /// Returns the name of the kind, for output and tools.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            StallKind::Throttle => "throttle",
            StallKind::Memory => "memory",
            StallKind::DiskSpace => "space",
            StallKind::Preallocation => "segment",
            StallKind::Conversion => "conversion",
            StallKind::Sync => "sync",
        }
    }

    /// Returns the reason of the wait, for a message.
    pub(super) fn reason(self) -> &'static str {
        match self {
            StallKind::Throttle => "writes are throttled until background work has caught up",
            StallKind::Memory => "the memory budget is exhausted until a checkpoint frees memory",
            StallKind::DiskSpace => "the disk is full until background work frees space",
            StallKind::Preallocation => "no log segment or commit number is reserved yet",
            StallKind::Conversion => "a conversion is behind or is switching the engine",
            StallKind::Sync => "a sync of the device is slow",
        }
    }
}

impl std::fmt::Display for StallKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
