//! # AttachedOwner: client of the IPC socket

use std::io;
use std::net::Shutdown;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sheaf_platform::disk::lock_holder::{ProcessInfo, add_lock_holder};
use sheaf_platform::disk::real::RealDisk;
use sheaf_platform::disk::{Disk, OpenMode};
use sheaf_platform::error::{IoContext, IoOp};
use sheaf_store::{IPC_SOCKET_NAMES, LOCK, LOCKED_FILES};

use super::attach::{ConnectionLease, ExportedSnapshot};
use super::message::{IpcReply, IpcRequest};
use super::overview::DatabaseOverview;
use super::received_commit::ReceivedCommit;
use super::stream::Stream;
use super::wire::{self, HelloStatus, VERSION};
use crate::{
    BackupProgress, BackupRate, BackupReport, ChangeQuery, CommittedChanges, CompactionReport,
    ConversionEstimate, ConversionProgress, ConversionReport, DatabaseStats, Error, KeyspaceOptions,
    LockConflict, Result, VerifyReport,
};

/// Longest time without a message of the owner: ten times the interval of its signs of life.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest content of the lock file in bytes.
const MAX_LOCK_BYTES: u64 = 64;

/// Connection to the process that has a database open, from another process of the same user or of
/// root.
///
/// Each method sends one request and waits for the result. If a callback cancels, the owner aborts
/// the operation unless it has completed, and the connection becomes unusable. The owner also
/// aborts an operation if this process ends.
///
/// Every method may return:
///
/// - [`Error::OwnerClosed`] if the owner closed the database or ended.
/// - [`Error::OwnerUnresponsive`] if the owner sent nothing for five seconds. During long
///   operations it sends a sign of life twice a second.
/// - [`Error::Io`] or [`Error::InvalidArgument`] if the owner sent bytes that are not the expected
///   reply.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// use sheaf::{Database, KeyspaceOptions, AttachedOwner};
///
/// let db = Database::open(dir.path())?; // usually in another process
/// db.keyspace("users", KeyspaceOptions::default())?.insert("ada", "lovelace")?;
///
/// if let Some(mut owner) = AttachedOwner::connect(dir.path())? {
///     assert_eq!(owner.overview()?.keyspaces[0].info.name, "users");
///     owner.persist()?;
/// }
/// db.close()?;
/// assert!(AttachedOwner::connect(dir.path())?.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AttachedOwner {
    stream: Stream,
    dir: PathBuf,
    /// Content of the lock file before the connection.
    lock_content: Vec<u8>,
}

impl AttachedOwner {
    /// Connects to the process that has the database in `path` open. Returns `None` if no process
    /// has it open, or if this process may not connect: the owner has no IPC socket or belongs to
    /// another user.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// assert!(sheaf::AttachedOwner::connect(dir.path())?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::UnsupportedVersion`] if the owner speaks another version of the protocol.
    /// - [`Error::Locked`] if the owner serves as many connections as it accepts.
    /// - [`Error::OwnerUnresponsive`] if it does not answer within five seconds, for example
    ///   because the process is stopped.
    /// - [`Error::Io`] from the operating system, of kind `Unsupported` on Windows.
    pub fn connect(path: impl AsRef<Path>) -> Result<Option<AttachedOwner>> {
        let dir = path.as_ref();
        let socket_path = dir.join(IPC_SOCKET_NAMES[0]);
        // Before the connection, so that it cannot be a later owner's.
        let Ok(lock) = read_lock_file(dir) else { return Ok(None) };
        let Some(stream) = connect_socket(dir, &lock)? else { return Ok(None) };
        let owner = AttachedOwner { stream, dir: dir.to_path_buf(), lock_content: lock };
        // An owner that is full says so and closes, perhaps before our hello arrives. Its message
        // can be read all the same.
        let _ = wire::send_hello(&owner.stream, HelloStatus::Accepted);
        match wire::receive_hello(&owner.stream) {
            Ok((VERSION, status)) if status == HelloStatus::Accepted as u32 => {}
            Ok((VERSION, _)) => {
                return Err(add_lock_holder(
                    Error::locked(dir, None, LockConflict::TooManyConnections),
                    &LOCKED_FILES,
                ));
            }
            Ok((found, _)) => {
                return Err(Error::UnsupportedVersion { path: socket_path, found, supported: VERSION });
            }
            Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                return Err(Error::io(IoOp::Communicate, &socket_path, e));
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Err(owner.unresponsive_error()),
            Err(_) => return Ok(None), // it is closing, or rejects our user
        }
        Ok(Some(owner))
    }

    /// Like [`AttachedOwner::connect`]. `None` on a system without Unix sockets.
    pub(crate) fn find(path: &Path) -> Result<Option<AttachedOwner>> {
        if cfg!(unix) { AttachedOwner::connect(path) } else { Ok(None) }
    }

    fn unresponsive_error(&self) -> Error {
        unresponsive_error(&self.dir, &self.lock_content)
    }

    fn closed_error(&self) -> Error {
        Error::OwnerClosed { path: self.dir.clone() }
    }

    /// Sends a request, and passes the replies to `each` until that returns the result.
    fn request<T>(
        &mut self,
        request: &IpcRequest,
        mut each: impl FnMut(&Stream, IpcReply) -> Result<Option<T>>,
    ) -> Result<T> {
        wire::send(&self.stream, &request.encode()).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => self.unresponsive_error(),
            _ => self.closed_error(),
        })?;
        loop {
            let message = match wire::receive(&self.stream) {
                Ok(Some(message)) => message,
                Err(e) if e.kind() == io::ErrorKind::InvalidData => return Err(self.protocol_error(e)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Err(self.unresponsive_error()),
                Ok(None) | Err(_) => return Err(self.closed_error()),
            };
            match IpcReply::decode(&message).map_err(|what| self.protocol_error(io::Error::other(what)))? {
                IpcReply::Failed(error) => return Err(error),
                IpcReply::Heartbeat => {}
                reply => {
                    if let Some(answer) = each(&self.stream, reply)? {
                        return Ok(answer);
                    }
                }
            }
        }
    }

    fn protocol_error(&self, source: io::Error) -> Error {
        Error::io(IoOp::Communicate, &self.dir.join(IPC_SOCKET_NAMES[0]), source)
    }

    /// Returns the statistics of the database. Costs as much as [`AttachedOwner::overview`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// if let Some(mut owner) = sheaf::AttachedOwner::connect(dir.path())? {
    ///     assert_eq!(owner.stats()?.visible_seq, db.seq());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors listed at [`AttachedOwner`].
    pub fn stats(&mut self) -> Result<DatabaseStats> {
        Ok(self.overview()?.stats)
    }

    /// Returns the statistics of the database and of each keyspace, like
    /// [`crate::Database::overview`]: it counts the keys of each keyspace.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// if let Some(mut owner) = sheaf::AttachedOwner::connect(dir.path())? {
    ///     assert_eq!(owner.overview()?.keyspaces[0].info.name, "users");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors listed at [`AttachedOwner`], and [`Error::Closed`] if the database is
    /// closing.
    pub fn overview(&mut self) -> Result<DatabaseOverview> {
        let (mut stats, mut caches, mut keyspaces) = (None, Vec::new(), Vec::new());
        self.request(&IpcRequest::Overview, |_, reply| match reply {
            IpcReply::Stats(found) => {
                stats = Some(*found);
                Ok(None)
            }
            IpcReply::Caches(more) => {
                caches.extend(more);
                Ok(None)
            }
            IpcReply::Keyspace(keyspace) => {
                keyspaces.push(*keyspace);
                Ok(None)
            }
            IpcReply::Done => Ok(Some(())),
            other => Err(unexpected_reply(&other)),
        })?;
        let mut stats: DatabaseStats = stats.unwrap_or_default();
        stats.caches = caches;
        Ok(DatabaseOverview { stats, keyspaces })
    }

    /// Makes the owner write a backup, like [`crate::Database::backup`]. Relative directories are
    /// relative to this process. `base` is an earlier backup, `verify` reads the copy back, and
    /// `watcher` receives the progress and may cancel.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use std::ops::ControlFlow;
    ///
    /// use sheaf::{BackupRate, Database, AttachedOwner};
    ///
    /// let (db, monday) = (Database::open(dir.path().join("my.db"))?, dir.path().join("monday"));
    /// if let Some(mut owner) = AttachedOwner::connect(db.path())? {
    ///     let watcher = |_| ControlFlow::Continue(());
    ///     let report = owner.backup(&monday, None, true, BackupRate::Unlimited, watcher)?;
    ///     assert_eq!(report.seq, db.seq());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Database::backup`] and those listed at [`AttachedOwner`].
    pub fn backup(
        &mut self,
        dir: impl AsRef<Path>,
        base: Option<&Path>,
        verify: bool,
        pace: BackupRate,
        mut on_progress: impl FnMut(BackupProgress) -> ControlFlow<()>,
    ) -> Result<BackupReport> {
        let absolute = |path: &Path| std::path::absolute(path).during(IoOp::Resolve, path);
        let (dir, base) = (absolute(dir.as_ref())?, base.map(absolute).transpose()?);
        self.request(&IpcRequest::Backup { dir, base, verify, pace }, |stream, reply| match reply {
            IpcReply::BackupProgress(progress) => Ok(cancel_on_break(stream, on_progress(progress))),
            IpcReply::BackupDone(report) => Ok(Some(report)),
            other => Err(unexpected_reply(&other)),
        })
    }

    /// Makes the owner convert a keyspace, like [`crate::Database::convert`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// use std::ops::ControlFlow;
    ///
    /// if let Some(mut owner) = sheaf::AttachedOwner::connect(dir.path())? {
    ///     owner.convert("users", "flat", |_| ControlFlow::Continue(()))?;
    /// }
    /// assert_eq!(users.engine(), "flat");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Database::convert`] and those listed at [`AttachedOwner`].
    pub fn convert(
        &mut self,
        keyspace: &str,
        to: impl Into<KeyspaceOptions>,
        mut progress: impl FnMut(&ConversionProgress) -> ControlFlow<()>,
    ) -> Result<Option<ConversionReport>> {
        let KeyspaceOptions { engine, options } = to.into();
        let request = IpcRequest::Convert { keyspace: keyspace.to_owned(), engine, options };
        let done = self.request(&request, |stream, reply| match reply {
            IpcReply::ConversionProgress(now) => Ok(cancel_on_break(stream, progress(&now))),
            IpcReply::ConversionDone(done) => Ok(Some(done)),
            other => Err(unexpected_reply(&other)),
        });
        match done {
            Err(Error::Cancelled) => Ok(None),
            done => done.map(Some),
        }
    }

    /// Estimates a conversion, like [`crate::Database::estimate_conversion`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// if let Some(mut owner) = sheaf::AttachedOwner::connect(dir.path())? {
    ///     assert_eq!(owner.estimate_conversion("users")?.pairs, 0);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Database::estimate_conversion`] and those listed at
    /// [`AttachedOwner`].
    pub fn estimate_conversion(&mut self, keyspace: &str) -> Result<ConversionEstimate> {
        self.request(&IpcRequest::Estimate { keyspace: keyspace.to_owned() }, |_, reply| match reply {
            IpcReply::Estimate(estimate) => Ok(Some(estimate)),
            other => Err(unexpected_reply(&other)),
        })
    }

    /// Makes the owner compact a keyspace, like [`crate::Keyspace::compact`], or all keyspaces if
    /// `keyspace` is `None`. `watcher` receives the counts so far and may cancel; completed work
    /// stays.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// use std::ops::ControlFlow;
    ///
    /// if let Some(mut owner) = sheaf::AttachedOwner::connect(dir.path())? {
    ///     owner.compact(None, |_| ControlFlow::Continue(()))?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Keyspace::compact`], [`Error::Cancelled`], and those listed
    /// at [`AttachedOwner`].
    pub fn compact(
        &mut self,
        keyspace: Option<&str>,
        mut on_progress: impl FnMut(&CompactionReport) -> ControlFlow<()>,
    ) -> Result<CompactionReport> {
        self.request(&IpcRequest::Compact { keyspace: keyspace.map(str::to_owned) }, |stream, reply| {
            match reply {
                IpcReply::CompactionProgress(done) => Ok(cancel_on_break(stream, on_progress(&done))),
                IpcReply::CompactionDone(done) => Ok(Some(done)),
                other => Err(unexpected_reply(&other)),
            }
        })
    }

    /// Makes the owner verify the database, like [`crate::Database::verify`]. `watcher` receives
    /// the counts so far and may cancel.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// use std::ops::ControlFlow;
    ///
    /// if let Some(mut owner) = sheaf::AttachedOwner::connect(dir.path())? {
    ///     let report = |damage| eprintln!("{damage}");
    ///     let report = owner.verify(report, |_| ControlFlow::Continue(()))?;
    ///     assert_eq!(report.findings, 0);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Database::verify`], [`Error::Cancelled`], and those listed at
    /// [`AttachedOwner`].
    pub fn verify(
        &mut self,
        mut report: impl FnMut(Error),
        mut on_progress: impl FnMut(&VerifyReport) -> ControlFlow<()>,
    ) -> Result<VerifyReport> {
        let mut files = Vec::new();
        let mut done = self.request(&IpcRequest::Verify, |stream, reply| match reply {
            IpcReply::VerifyProgress(now) => Ok(cancel_on_break(stream, on_progress(&now))),
            IpcReply::Finding(error) => {
                report(error);
                Ok(None)
            }
            IpcReply::Files(more) => {
                files.extend(more);
                Ok(None)
            }
            IpcReply::VerifyDone(done) => Ok(Some(done)),
            other => Err(unexpected_reply(&other)),
        })?;
        done.files = files;
        Ok(done)
    }

    /// Waits until all commits acknowledged before the call are on the device, like
    /// [`crate::Database::persist`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// if let Some(mut owner) = sheaf::AttachedOwner::connect(dir.path())? {
    ///     owner.persist()?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Database::persist`] and those listed at [`AttachedOwner`].
    pub fn persist(&mut self) -> Result<()> {
        self.request(&IpcRequest::Persist, |_, reply| match reply {
            IpcReply::Done => Ok(Some(())),
            other => Err(unexpected_reply(&other)),
        })
    }

    /// Passes the changes that `query` selects to `each`, in commit order, until `each` returns
    /// `Break`, or until none is left. With [`ChangeQuery::follow`] the owner sends further commits
    /// when they are on the device, and the call ends only if `each` returns `Break`, or with an
    /// error. After a `Break` the connection is unusable.
    ///
    /// Each commit is complete in memory, with its large values. The owner ends the connection if
    /// this process does not read for 30 seconds.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use std::ops::ControlFlow;
    ///
    /// use sheaf::{AttachedOwner, ChangeQuery, ChangeRetention, Database};
    ///
    /// let retention = ChangeRetention::new(1 << 30, std::time::Duration::from_secs(3600));
    /// let db = Database::builder().retain_changes(retention).open(dir.path())?;
    /// db.keyspace("users", "flex")?;
    /// let mut count = 0;
    /// if let Some(mut owner) = AttachedOwner::connect(dir.path())? {
    ///     owner.changes(&ChangeQuery::default(), |commit| {
    ///         count += commit.changes.len();
    ///         ControlFlow::Continue(())
    ///     })?;
    /// }
    /// # #[cfg(unix)]
    /// assert_eq!(count, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Database::changes`] and [`crate::Changes::try_next`],
    /// [`Error::Poisoned`] if the database refuses writes, and those listed at [`AttachedOwner`].
    pub fn changes(
        &mut self,
        query: &ChangeQuery,
        mut each: impl FnMut(&CommittedChanges) -> ControlFlow<()>,
    ) -> Result<()> {
        let (mut received, mut is_cancelled) = (ReceivedCommit::default(), false);
        let done = self.request(&IpcRequest::Changes(query.clone()), |stream, reply| match reply {
            IpcReply::Done => Ok(Some(())),
            reply => match received.add(reply)? {
                Some(commit) if !is_cancelled => {
                    let flow = each(&commit);
                    is_cancelled = flow.is_break();
                    Ok(cancel_on_break(stream, flow))
                }
                _ => Ok(None),
            },
        });
        match done {
            Err(Error::Cancelled | Error::OwnerClosed { .. }) if is_cancelled => Ok(()),
            done => done,
        }
    }

    /// Makes the owner export a snapshot, which exists as long as the returned lease or a store
    /// opened on it.
    pub(crate) fn export(mut self) -> Result<ExportedSnapshot> {
        let mut items = Vec::new();
        self.request(&IpcRequest::Export, |_, reply| match reply {
            IpcReply::Items(more) => {
                items.extend(more);
                Ok(None)
            }
            IpcReply::Done => Ok(Some(())),
            other => Err(unexpected_reply(&other)),
        })?;
        let AttachedOwner { stream, dir, lock_content: lock } = self;
        let lease = ConnectionLease::new(stream, &dir, lock)?;
        Ok(ExportedSnapshot::new(dir, items, lease))
    }
}

/// Tells the owner to cancel if the watcher returned `Break`. The caller still waits for the reply.
fn cancel_on_break<T>(stream: &Stream, answer: ControlFlow<()>) -> Option<T> {
    if answer.is_break() {
        let _ = stream.shutdown(Shutdown::Write);
    }
    None
}

pub(super) fn unexpected_reply(reply: &IpcReply) -> Error {
    Error::InvalidArgument { argument: "reply", reason: format!("{reply:?} was not asked for") }
}

/// Connects to the IPC socket, with [`RESPONSE_TIMEOUT`] as the timeout of every operation. Returns
/// `None` if there is no owner, or none that admits this process.
#[cfg(unix)]
fn connect_socket(dir: &Path, lock: &[u8]) -> Result<Option<Stream>> {
    use rustix::io::Errno;
    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    use sheaf_platform::unix_socket::{SocketDir, stream_socket};
    let socket_path = dir.join(IPC_SOCKET_NAMES[0]);
    let opened = match SocketDir::open(dir) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => return Ok(None),
        opened => opened.map_err(|refusal| Error::io(IoOp::Open, dir, refusal.into()))?,
    };
    let connected = (|| {
        let socket = stream_socket(false)?;
        // The connection waits too, if many others do.
        for timeout in [Timeout::Send, Timeout::Recv] {
            set_socket_timeout(&socket, timeout, Some(RESPONSE_TIMEOUT))?;
        }
        rustix::net::connect(&socket, &opened.address(IPC_SOCKET_NAMES[0])?)?;
        Ok(Stream::from(socket))
    })();
    match connected {
        Ok(stream) => Ok(Some(stream)),
        // A path that is too long for an address has no socket.
        Err(Errno::CONNREFUSED | Errno::NOENT | Errno::ACCESS | Errno::PERM | Errno::NAMETOOLONG) => Ok(None),
        Err(Errno::AGAIN) => Err(unresponsive_error(dir, lock)),
        Err(refusal) => Err(Error::io(IoOp::Connect, &socket_path, io::Error::from(refusal))),
    }
}

/// Returns `Unsupported`: this system has no Unix sockets.
#[cfg(not(unix))]
fn connect_socket(dir: &Path, _lock: &[u8]) -> Result<Option<Stream>> {
    Err(Error::io(IoOp::Connect, &dir.join(IPC_SOCKET_NAMES[0]), io::ErrorKind::Unsupported.into()))
}

/// Returns the error for an owner that does not answer.
fn unresponsive_error(dir: &Path, lock: &[u8]) -> Error {
    let pid = pid_in(lock);
    let process = pid.map(ProcessInfo::read_proc);
    Error::OwnerUnresponsive {
        path: dir.to_path_buf(),
        pid,
        is_stopped: process.as_ref().is_some_and(|process| process.is_stopped),
        program: process.and_then(|process| process.program),
        waited: RESPONSE_TIMEOUT,
    }
}

/// Returns the process id in the content of a lock file.
pub(crate) fn pid_in(lock: &[u8]) -> Option<u32> {
    std::str::from_utf8(lock).ok()?.lines().next()?.parse().ok()
}

/// Returns the content of the lock file: the process id of the owner, and a number that no other
/// owner has.
pub(crate) fn read_lock_file(dir: &Path) -> io::Result<Vec<u8>> {
    let file = RealDisk::default().open(&dir.join(LOCK), OpenMode::Read)?;
    let mut text = vec![0; usize::try_from(file.len()?.min(MAX_LOCK_BYTES)).unwrap_or(0)];
    file.read_at(0, &mut text)?;
    Ok(text)
}
