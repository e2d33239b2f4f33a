//! # Lock conflicts: uses of a database that prevent opening it
//!
//! Also describes the process that holds the lock, for messages.

/// Use of a database that prevents opening it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockConflict {
    /// A process has it open for writing.
    Owner,
    /// Processes have it open for reading, which excludes a writer.
    Readers,
    /// A process has it open for writing, and a reader cannot attach. The process is opening or
    /// closing the database, has no IPC socket, or belongs to another user.
    NoIpc,
    /// A process has it open for writing, and serves as many connections as it accepts.
    TooManyConnections,
}

impl LockConflict {
    /// All kinds.
    pub const ALL: [LockConflict; 4] =
        [LockConflict::Owner, LockConflict::Readers, LockConflict::NoIpc, LockConflict::TooManyConnections];

    pub(super) fn describe(self, pid: Option<u32>, program: Option<&str>) -> String {
        let process = process(pid, program);
        match self {
            LockConflict::Owner if pid == Some(std::process::id()) => {
                "in use: this process already has it open; clone that `Database`".to_owned()
            }
            LockConflict::Owner => format!("in use by {process}; retry after that process has closed it"),
            LockConflict::Readers => {
                format!("being read by {process}; a writer must wait until that process has closed it")
            }
            LockConflict::NoIpc => format!(
                "in use by {process}, and a reader cannot attach: that process is opening or closing the database, \
                 belongs to another user, or has no socket in it (Builder::ipc)"
            ),
            LockConflict::TooManyConnections => {
                format!("in use by {process}, which serves as many connections as it accepts; retry later")
            }
        }
    }
}

/// Returns the description of a process in a message.
pub(super) fn process(pid: Option<u32>, program: Option<&str>) -> String {
    match (pid, program) {
        (Some(pid), Some(program)) => format!("process {pid} ({program})"),
        (Some(pid), None) => format!("process {pid}"),
        (None, _) => "another process".to_owned(),
    }
}

/// Returns the state of a stopped process and the remedy.
pub(super) fn describe_stopped(pid: Option<u32>, is_stopped: bool) -> String {
    match pid.filter(|_| is_stopped) {
        Some(pid) => {
            format!("; that process is stopped: resume it (kill -CONT {pid}) or end it (kill -9 {pid})")
        }
        None => String::new(),
    }
}

/// Returns the state of a process that does not answer, and the remedy.
pub(super) fn describe_unresponsive(pid: Option<u32>, is_stopped: bool) -> String {
    match (pid, is_stopped) {
        (Some(_), true) => describe_stopped(pid, true),
        (Some(pid), false) => format!("; retry, or end it (kill {pid})"),
        (None, _) => "; retry, or end that process".to_owned(),
    }
}
