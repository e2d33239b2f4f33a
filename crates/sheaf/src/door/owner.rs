//! # Owner: client of the door

use std::io;
use std::net::Shutdown;
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use sheaf_base::disk::holder::{Process, identify};
use sheaf_base::disk::real::RealDisk;
use sheaf_base::disk::{Disk, How};
use sheaf_base::error::IoContext;
use sheaf_base::store::{DOOR, LOCK};

use super::beside::{Held, Leased};
use super::figures::Overview;
use super::message::{Reply, Request};
use super::wire::{self, Status, VERSION};
use super::{open_dir, way_to};
use crate::{
    BackupPace, BackupProgress, BackupReport, Compacted, ConversionProgress, Converted, Error, Estimate,
    InUse, KeyspaceOptions, Result, Stats, VerifyReport,
};

/// Longest time without a message of the owner: ten times the interval of its signs of life.
const SILENCE: Duration = Duration::from_secs(5);
/// Longest content of the lock file in bytes.
const LOCK_BYTES: u64 = 64;

/// Connection to the process that has a database open, from another process of the same user or of
/// root.
///
/// Each method sends one request and waits for the result. If a callback cancels, the owner aborts
/// the operation unless it has completed, and the connection becomes unusable. The owner also
/// aborts an operation if this process ends.
///
/// Every method may return:
///
/// - [`Error::OwnerGone`] if the owner closed the database or ended.
/// - [`Error::OwnerSilent`] if the owner sent nothing for five seconds. During long operations it
///   sends a sign of life twice a second.
/// - [`Error::Io`] or [`Error::Invalid`] if the owner sent bytes that are not the expected reply.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// use sheaf::{Database, KeyspaceOptions, Owner};
///
/// let db = Database::open(dir.path())?; // usually in another process
/// db.keyspace("users", KeyspaceOptions::default())?.insert("ada", "lovelace")?;
///
/// if let Some(mut owner) = Owner::connect(dir.path())? {
///     assert_eq!(owner.overview()?.keyspaces[0].info.name, "users");
///     owner.persist()?;
/// }
/// db.close()?;
/// assert!(Owner::connect(dir.path())?.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Owner {
    stream: UnixStream,
    dir: PathBuf,
    /// Content of the lock file before the connection.
    lock: Vec<u8>,
}

impl Owner {
    /// Connects to the process that has the database in `path` open. Returns `None` if no process
    /// has it open, or if this process may not connect: the owner has no door or belongs to another
    /// user.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// assert!(sheaf::Owner::connect(dir.path())?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Format`] if the owner speaks another version of the protocol.
    /// - [`Error::Locked`] if the owner serves as many connections as it accepts.
    /// - [`Error::OwnerSilent`] if it does not answer within five seconds, for example because the
    ///   process is stopped.
    /// - [`Error::Io`] from the operating system.
    pub fn connect(path: impl AsRef<Path>) -> Result<Option<Owner>> {
        let dir = path.as_ref();
        let door = dir.join(DOOR[0]);
        // Before the connection, so that it cannot be a later owner's.
        let Ok(lock) = lock_of(dir) else { return Ok(None) };
        let Some(stream) = knock(dir, &lock)? else { return Ok(None) };
        let owner = Owner { stream, dir: dir.to_path_buf(), lock };
        // An owner that is full says so and closes, perhaps before our hello arrives. Its message
        // can be read all the same.
        let _ = wire::greet(&owner.stream, Status::Welcome);
        match wire::greeted(&owner.stream) {
            Ok((VERSION, status)) if status == Status::Welcome as u32 => {}
            Ok((VERSION, _)) => return Err(identify(Error::locked(dir, None, InUse::Crowded))),
            Ok((found, _)) => return Err(Error::Format { path: door, found, supported: VERSION }),
            Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                return Err(Error::io("talk through", &door, e));
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Err(owner.silent()),
            Err(_) => return Ok(None), // it is closing, or rejects our user
        }
        Ok(Some(owner))
    }

    fn silent(&self) -> Error {
        silent(&self.dir, &self.lock)
    }

    fn gone(&self) -> Error {
        Error::OwnerGone { path: self.dir.clone() }
    }

    /// Sends a request, and passes the replies to `each` until that returns the result.
    fn ask<T>(
        &mut self,
        request: &Request,
        mut each: impl FnMut(&UnixStream, Reply) -> Result<Option<T>>,
    ) -> Result<T> {
        wire::send(&self.stream, &request.encode()).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => self.silent(),
            _ => self.gone(),
        })?;
        loop {
            let message = match wire::receive(&self.stream) {
                Ok(Some(message)) => message,
                Err(e) if e.kind() == io::ErrorKind::InvalidData => return Err(self.nonsense(e)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Err(self.silent()),
                Ok(None) | Err(_) => return Err(self.gone()),
            };
            match Reply::decode(&message).map_err(|what| self.nonsense(io::Error::other(what)))? {
                Reply::Failed(error) => return Err(error),
                Reply::Working => {}
                reply => {
                    if let Some(answer) = each(&self.stream, reply)? {
                        return Ok(answer);
                    }
                }
            }
        }
    }

    fn nonsense(&self, source: io::Error) -> Error {
        Error::io("talk through", &self.dir.join(DOOR[0]), source)
    }

    /// Returns the statistics of the database. Costs as much as [`Owner::overview`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// if let Some(mut owner) = sheaf::Owner::connect(dir.path())? {
    ///     assert_eq!(owner.stats()?.visible, db.seq());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors listed at [`Owner`].
    pub fn stats(&mut self) -> Result<Stats> {
        Ok(self.overview()?.stats)
    }

    /// Returns the statistics of the database and of each keyspace, like
    /// [`crate::Database::overview`]: it counts the keys of each keyspace.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// if let Some(mut owner) = sheaf::Owner::connect(dir.path())? {
    ///     assert_eq!(owner.overview()?.keyspaces[0].info.name, "users");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors listed at [`Owner`], and [`Error::Closed`] if the database is closing.
    pub fn overview(&mut self) -> Result<Overview> {
        let (mut stats, mut caches, mut keyspaces) = (None, Vec::new(), Vec::new());
        self.ask(&Request::Overview, |_, reply| match reply {
            Reply::Stats(found) => {
                stats = Some(*found);
                Ok(None)
            }
            Reply::Caches(more) => {
                caches.extend(more);
                Ok(None)
            }
            Reply::Keyspace(keyspace) => {
                keyspaces.push(*keyspace);
                Ok(None)
            }
            Reply::Done => Ok(Some(())),
            other => Err(unexpected(&other)),
        })?;
        let mut stats: Stats = stats.unwrap_or_default();
        stats.caches = caches;
        Ok(Overview { stats, keyspaces })
    }

    /// Makes the owner write a backup, like [`crate::Database::backup`]. Relative directories are
    /// relative to this process. `base` is an earlier backup, `verify` reads the copy back, and
    /// `watcher` receives the progress and may cancel.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use std::ops::ControlFlow;
    ///
    /// use sheaf::{BackupPace, Database, Owner};
    ///
    /// let (db, monday) = (Database::open(dir.path().join("my.db"))?, dir.path().join("monday"));
    /// if let Some(mut owner) = Owner::connect(db.path())? {
    ///     let watcher = |_| ControlFlow::Continue(());
    ///     let report = owner.backup(&monday, None, true, BackupPace::Full, watcher)?;
    ///     assert_eq!(report.seq, db.seq());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Database::backup`] and those listed at [`Owner`].
    pub fn backup(
        &mut self,
        dir: impl AsRef<Path>,
        base: Option<&Path>,
        verify: bool,
        pace: BackupPace,
        mut watcher: impl FnMut(BackupProgress) -> ControlFlow<()>,
    ) -> Result<BackupReport> {
        let absolute = |path: &Path| std::path::absolute(path).during("find", path);
        let (dir, base) = (absolute(dir.as_ref())?, base.map(absolute).transpose()?);
        self.ask(&Request::Backup { dir, base, verify, pace }, |stream, reply| match reply {
            Reply::BackingUp(progress) => Ok(heard(stream, watcher(progress))),
            Reply::BackedUp(report) => Ok(Some(report)),
            other => Err(unexpected(&other)),
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
    /// if let Some(mut owner) = sheaf::Owner::connect(dir.path())? {
    ///     owner.convert("users", "flat", |_| ControlFlow::Continue(()))?;
    /// }
    /// assert_eq!(users.engine(), "flat");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Database::convert`] and those listed at [`Owner`].
    pub fn convert(
        &mut self,
        keyspace: &str,
        to: impl Into<KeyspaceOptions>,
        mut progress: impl FnMut(&ConversionProgress) -> ControlFlow<()>,
    ) -> Result<Option<Converted>> {
        let KeyspaceOptions { engine, options } = to.into();
        let request = Request::Convert { keyspace: keyspace.to_owned(), engine, options };
        let done = self.ask(&request, |stream, reply| match reply {
            Reply::Converting(now) => Ok(heard(stream, progress(&now))),
            Reply::Converted(done) => Ok(Some(done)),
            other => Err(unexpected(&other)),
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
    /// if let Some(mut owner) = sheaf::Owner::connect(dir.path())? {
    ///     assert_eq!(owner.estimate_conversion("users")?.pairs, 0);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Database::estimate_conversion`] and those listed at
    /// [`Owner`].
    pub fn estimate_conversion(&mut self, keyspace: &str) -> Result<Estimate> {
        self.ask(&Request::Estimate { keyspace: keyspace.to_owned() }, |_, reply| match reply {
            Reply::Estimate(estimate) => Ok(Some(estimate)),
            other => Err(unexpected(&other)),
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
    /// if let Some(mut owner) = sheaf::Owner::connect(dir.path())? {
    ///     owner.compact(None, |_| ControlFlow::Continue(()))?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Keyspace::compact`], [`Error::Cancelled`], and those listed
    /// at [`Owner`].
    pub fn compact(
        &mut self,
        keyspace: Option<&str>,
        mut watcher: impl FnMut(&Compacted) -> ControlFlow<()>,
    ) -> Result<Compacted> {
        self.ask(&Request::Compact { keyspace: keyspace.map(str::to_owned) }, |stream, reply| match reply {
            Reply::Compacting(done) => Ok(heard(stream, watcher(&done))),
            Reply::Compacted(done) => Ok(Some(done)),
            other => Err(unexpected(&other)),
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
    /// if let Some(mut owner) = sheaf::Owner::connect(dir.path())? {
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
    /// [`Owner`].
    pub fn verify(
        &mut self,
        mut report: impl FnMut(Error),
        mut watcher: impl FnMut(&VerifyReport) -> ControlFlow<()>,
    ) -> Result<VerifyReport> {
        let mut files = Vec::new();
        let mut done = self.ask(&Request::Verify, |stream, reply| match reply {
            Reply::Verifying(now) => Ok(heard(stream, watcher(&now))),
            Reply::Finding(error) => {
                report(error);
                Ok(None)
            }
            Reply::Files(more) => {
                files.extend(more);
                Ok(None)
            }
            Reply::Verified(done) => Ok(Some(done)),
            other => Err(unexpected(&other)),
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
    /// if let Some(mut owner) = sheaf::Owner::connect(dir.path())? {
    ///     owner.persist()?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Database::persist`] and those listed at [`Owner`].
    pub fn persist(&mut self) -> Result<()> {
        self.ask(&Request::Persist, |_, reply| match reply {
            Reply::Done => Ok(Some(())),
            other => Err(unexpected(&other)),
        })
    }

    /// Makes the owner export a snapshot, which exists as long as the returned lease or a store
    /// opened on it.
    pub(crate) fn hold(mut self) -> Result<Held> {
        let mut items = Vec::new();
        self.ask(&Request::Hold, |_, reply| match reply {
            Reply::Items(more) => {
                items.extend(more);
                Ok(None)
            }
            Reply::Done => Ok(Some(())),
            other => Err(unexpected(&other)),
        })?;
        let Owner { stream, dir, lock } = self;
        let lease = Leased::new(stream, &dir, lock)?;
        Ok(Held::new(dir, items, lease))
    }
}

/// Tells the owner to cancel if the watcher returned `Break`. The caller still waits for the reply.
fn heard<T>(stream: &UnixStream, answer: ControlFlow<()>) -> Option<T> {
    if answer.is_break() {
        let _ = stream.shutdown(Shutdown::Write);
    }
    None
}

fn unexpected(reply: &Reply) -> Error {
    Error::Invalid { what: "reply", why: format!("{reply:?} was not asked for") }
}

/// Connects to the door, with [`SILENCE`] as the timeout of every operation. Returns `None` if
/// there is no owner, or none that admits this process.
fn knock(dir: &Path, lock: &[u8]) -> Result<Option<UnixStream>> {
    let door = dir.join(DOOR[0]);
    let fd = match open_dir(dir) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => return Ok(None),
        opened => opened.map_err(|refusal| Error::io("open", dir, refusal.into()))?,
    };
    let connected = (|| {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // The connection waits too, if many others do.
        for timeout in [Timeout::Send, Timeout::Recv] {
            set_socket_timeout(&socket, timeout, Some(SILENCE))?;
        }
        rustix::net::connect(&socket, &SocketAddrUnix::new(way_to(&fd, DOOR[0]))?)?;
        Ok(UnixStream::from(socket))
    })();
    match connected {
        Ok(stream) => Ok(Some(stream)),
        Err(Errno::CONNREFUSED | Errno::NOENT | Errno::ACCESS | Errno::PERM) => Ok(None),
        Err(Errno::AGAIN) => Err(silent(dir, lock)),
        Err(refusal) => Err(Error::io("connect to", &door, io::Error::from(refusal))),
    }
}

/// Returns the error for an owner that does not answer.
fn silent(dir: &Path, lock: &[u8]) -> Error {
    let pid = std::str::from_utf8(lock).ok().and_then(|text| text.lines().next()?.parse().ok());
    let process = pid.map(Process::look);
    Error::OwnerSilent {
        path: dir.to_path_buf(),
        pid,
        is_stopped: process.as_ref().is_some_and(|process| process.is_stopped),
        program: process.and_then(|process| process.program),
        waited: SILENCE,
    }
}

/// Returns the content of the lock file: the process id of the owner, and a number that no other
/// owner has.
pub(crate) fn lock_of(dir: &Path) -> io::Result<Vec<u8>> {
    let file = RealDisk::default().open(&dir.join(LOCK), How::Read)?;
    let mut text = vec![0; usize::try_from(file.len()?.min(LOCK_BYTES)).unwrap_or(0)];
    file.read_at(0, &mut text)?;
    Ok(text)
}
