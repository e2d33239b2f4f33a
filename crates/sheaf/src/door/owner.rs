//! # Owner: the door from outside

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

/// How long an owner may say nothing, not even that it is at work: ten times what it takes itself between two signs of life.
const SILENCE: Duration = Duration::from_secs(5);
/// Longest content of the lock's file.
const LOCK_BYTES: u64 = 64;

/// The process that has a database open, as another process of the same user (or root) sees it.
///
/// Each method asks for one thing and waits for the answer. If a watcher says that it is enough, the owner is told, and ends it as cancelled,
/// if it is not done by then; nothing more can be asked afterwards. So it is if this process goes in the midst. If the other process closes the database, or ends, they
/// answer [`Error::OwnerGone`]; if it says nothing for five seconds, not even that it is at work, [`Error::OwnerSilent`].
///
/// ```
/// # fn main() -> sheaf::Result<()> {
/// # let dir = std::env::temp_dir().join(format!("sheaf-doc-owner-{}", std::process::id()));
/// use sheaf::{Database, KeyspaceOptions, Owner};
///
/// let db = Database::open(&dir)?; // usually in another process
/// db.keyspace("users", KeyspaceOptions::default())?.insert("ada", "lovelace")?;
///
/// if let Some(mut owner) = Owner::connect(&dir)? {
///     assert_eq!(owner.overview()?.keyspaces[0].info.name, "users");
///     owner.persist()?;
/// }
/// # db.close()?;
/// assert!(Owner::connect(&dir)?.is_none());
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Owner {
    stream: UnixStream,
    dir: PathBuf,
    /// What stood in the lock's file before the connection.
    lock: Vec<u8>,
}

impl Owner {
    /// Connects to the process that has the database in `path` open. None if no process has, or if that lets this one not in: an owner
    /// without a door, or of another user.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Format`] if the owner speaks another version; [`Error::Locked`] if it has as many guests as it takes;
    /// [`Error::OwnerSilent`] if it does not answer within five seconds, as a stopped process does not.
    pub fn connect(path: impl AsRef<Path>) -> Result<Option<Owner>> {
        let dir = path.as_ref();
        let door = dir.join(DOOR[0]);
        // Before the connection, so that it cannot be a later owner's.
        let Ok(lock) = lock_of(dir) else { return Ok(None) };
        let Some(stream) = knock(dir, &lock)? else { return Ok(None) };
        let owner = Owner { stream, dir: dir.to_path_buf(), lock };
        // An owner that takes nobody in says so and hangs up, perhaps before it has heard us: what it said is there all the same.
        let _ = wire::greet(&owner.stream, Status::Welcome);
        match wire::greeted(&owner.stream) {
            Ok((VERSION, status)) if status == Status::Welcome as u32 => {}
            Ok((VERSION, _)) => return Err(identify(Error::locked(dir, None, InUse::Crowded))),
            Ok((found, _)) => return Err(Error::Format { path: door, found, supported: VERSION }),
            Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                return Err(Error::io("talk through", &door, e));
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Err(owner.silent()),
            Err(_) => return Ok(None), // it closes, or it does not know us
        }
        Ok(Some(owner))
    }

    fn silent(&self) -> Error {
        silent(&self.dir, &self.lock)
    }

    fn gone(&self) -> Error {
        Error::OwnerGone { path: self.dir.clone() }
    }

    /// Asks, and hands what comes to `each` until that has the answer.
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

    /// Figures of the database, as its owner sees them.
    pub fn stats(&mut self) -> Result<Stats> {
        Ok(self.overview()?.stats)
    }

    /// Figures of the database and of each keyspace.
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
        Ok(Overview { stats: Stats { caches, ..stats.unwrap_or_default() }, keyspaces })
    }

    /// As [`crate::Database::backup`]; the directories are made absolute first.
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

    /// As [`crate::Database::convert`].
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

    /// As [`crate::Database::estimate_conversion`].
    pub fn estimate_conversion(&mut self, keyspace: &str) -> Result<Estimate> {
        self.ask(&Request::Estimate { keyspace: keyspace.to_owned() }, |_, reply| match reply {
            Reply::Estimate(estimate) => Ok(Some(estimate)),
            other => Err(unexpected(&other)),
        })
    }

    /// As [`crate::Keyspace::compact`]; without a name, all keyspaces. `watcher` is told now and then
    /// what was done so far; what is done stays done.
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

    /// As [`crate::Database::verify`]; `watcher` is told now and then what was read so far.
    pub fn verify(
        &mut self,
        mut report: impl FnMut(Error),
        mut watcher: impl FnMut(&VerifyReport) -> ControlFlow<()>,
    ) -> Result<VerifyReport> {
        let mut files = Vec::new();
        let done = self.ask(&Request::Verify, |stream, reply| match reply {
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
        Ok(VerifyReport { files, ..done })
    }

    /// As [`crate::Database::persist`].
    pub fn persist(&mut self) -> Result<()> {
        self.ask(&Request::Persist, |_, reply| match reply {
            Reply::Done => Ok(Some(())),
            other => Err(unexpected(&other)),
        })
    }

    /// Has the state of now held, for as long as what is returned, or what is opened of it, lives.
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

/// If the watcher has had enough, no more is said; the answer is waited for.
fn heard<T>(stream: &UnixStream, answer: ControlFlow<()>) -> Option<T> {
    if answer.is_break() {
        let _ = stream.shutdown(Shutdown::Write);
    }
    None
}

fn unexpected(reply: &Reply) -> Error {
    Error::Invalid { what: "reply", why: format!("{reply:?} was not asked for") }
}

/// A connection to the owner's door, on which nothing is waited for longer than [`SILENCE`]. None if there is nobody, or nobody for us.
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

/// The error for an owner that does not answer.
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

/// What stands in the lock's file: the owner's process id, and a number that no other owner has.
pub(crate) fn lock_of(dir: &Path) -> io::Result<Vec<u8>> {
    let file = RealDisk::default().open(&dir.join(LOCK), How::Read)?;
    let mut text = vec![0; usize::try_from(file.len()?.min(LOCK_BYTES)).unwrap_or(0)];
    file.read_at(0, &mut text)?;
    Ok(text)
}
