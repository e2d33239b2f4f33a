//! # Guest: one connection, from the owner's side
//!
//! Serves requests one after the other. During a long request each step sends the progress and
//! checks the connection. If the guest has closed it, or the database closes, the request is
//! cancelled.

use std::net::Shutdown;
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use sheaf_base::disk::held::{Bytes, Item, Piece};
use sheaf_base::store::{Hold, Kept, Store};

use super::figures::overview;
use super::line::{Doing, Line};
use super::message::{Reply, Request};
use super::wire::{self, Status, VERSION};
use super::{GUEST_READS_WITHIN, HELLO_WITHIN};
use crate::convert::convert;
use crate::{BackupOptions, BackupPace, CacheStats, Compacted, Error, KeyspaceOptions, Result};

/// Target size of the parts of a list in bytes, and most bytes of one item.
const PART: usize = 256 << 10;

/// Serves a guest until the end of the connection.
pub(super) fn attend(store: &Weak<Store>, line: &Line, working: impl Fn()) {
    let stream = line.stream();
    let _end = Ending(stream);
    if greet(stream).is_err() {
        return;
    }
    loop {
        if !line.begin(Doing::Nothing) {
            return; // replaced by another guest
        }
        let Ok(Some(message)) = wire::receive(stream) else { return };
        let Some(store) = store.upgrade() else { return };
        if !line.begin(Doing::Working) {
            return;
        }
        working();
        let guest = Attended { store: &store, line, stream };
        let done = match Request::decode(&message) {
            Ok(request) => guest.answer(request),
            Err(what) => Err(Error::Invalid { what: "request", why: what.to_string() }),
        };
        let said = match done {
            Ok(()) => true,
            Err(error) => guest.say(&Reply::Failed(error)),
        };
        if !said {
            return;
        }
    }
}

/// Sends the hello, and waits for that of the guest.
fn greet(stream: &UnixStream) -> std::io::Result<()> {
    stream.set_write_timeout(Some(GUEST_READS_WITHIN))?;
    wire::greet(stream, Status::Welcome)?;
    stream.set_read_timeout(Some(HELLO_WITHIN))?;
    if wire::greeted(stream)?.0 != VERSION {
        return Err(std::io::ErrorKind::Unsupported.into());
    }
    stream.set_read_timeout(None) // no limit between requests
}

/// Shuts the connection when dropped, so that the peer is notified in every case.
struct Ending<'a>(&'a UnixStream);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// A snapshot that a guest reads. The connection ends before the snapshot is released (door I4).
struct Lent<'a> {
    #[expect(dead_code, reason = "dropped first")]
    ending: Ending<'a>,
    #[expect(dead_code, reason = "dropped second")]
    hold: Hold,
}

struct Attended<'a> {
    store: &'a Arc<Store>,
    line: &'a Line,
    stream: &'a UnixStream,
}

impl Attended<'_> {
    /// Sends a reply; returns false if the connection is closed.
    fn say(&self, reply: &Reply) -> bool {
        self.line.say(&reply.encode()).is_ok()
    }

    fn tell(&self, reply: &Reply) -> Result<()> {
        if self.say(reply) { Ok(()) } else { Err(Error::Cancelled) }
    }

    /// Sends the progress if that does not block, since other threads may wait for the work.
    /// Returns `Break` if the guest has closed the connection.
    fn step(&self, reply: &Reply) -> ControlFlow<()> {
        if wire::has_left(self.stream) || (wire::has_room(self.stream) && !self.say(reply)) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn answer(&self, request: Request) -> Result<()> {
        match request {
            Request::Overview => self.overview(),
            Request::Backup { dir, base, verify, pace } => self.back_up(dir, base, verify, pace),
            Request::Convert { keyspace, engine, options } => {
                let to = KeyspaceOptions { engine, options };
                let done =
                    convert(self.store, &keyspace, &to, |progress| self.step(&Reply::Converting(*progress)))?;
                self.tell(&Reply::Converted(done.ok_or(Error::Cancelled)?))
            }
            Request::Estimate { keyspace } => {
                let missing = || Error::NoKeyspace { name: keyspace.clone() };
                let kept = self.store.existing(&keyspace)?.ok_or_else(missing)?;
                self.tell(&Reply::Estimate(self.store.estimate(&kept)?))
            }
            Request::Compact { keyspace } => self.compact(keyspace),
            Request::Verify => self.verify(),
            Request::Persist => {
                self.store.persist()?;
                self.tell(&Reply::Done)
            }
            Request::Hold => self.hold(),
        }
    }

    fn overview(&self) -> Result<()> {
        self.store.check_open()?;
        let mut overview = overview(self.store, true);
        let caches = std::mem::take(&mut overview.stats.caches);
        self.tell(&Reply::Stats(Box::new(overview.stats)))?;
        let size = |cache: &CacheStats| cache.keyspace.as_ref().map_or(0, String::len);
        self.tell_all(&caches, size, |caches| Reply::Caches(caches.to_vec()))?;
        for keyspace in overview.keyspaces {
            self.tell(&Reply::Keyspace(Box::new(keyspace)))?;
        }
        self.tell(&Reply::Done)
    }

    fn back_up(&self, dir: PathBuf, base: Option<PathBuf>, verify: bool, pace: BackupPace) -> Result<()> {
        if let Some(path) = [Some(&dir), base.as_ref()].into_iter().flatten().find(|path| path.is_relative())
        {
            let why = format!("{} is not absolute", path.display());
            return Err(Error::Invalid { what: "target", why });
        }
        let mut watcher = |progress| self.step(&Reply::BackingUp(progress));
        let options = BackupOptions::default().verify(verify).pace(pace).watched(&mut watcher);
        let options = match base {
            Some(base) => options.base(base),
            None => options,
        };
        let report = self.store.back_up(&dir, options)?;
        self.tell(&Reply::BackedUp(report))
    }

    fn compact(&self, keyspace: Option<String>) -> Result<()> {
        let all = keyspace.is_none();
        let names = match keyspace {
            Some(name) => vec![name],
            None => self.store.keyspaces().into_iter().map(|info| info.name).collect(),
        };
        let mut total = Compacted::default();
        for name in names {
            let missing = || Error::NoKeyspace { name: name.clone() };
            let before = total;
            let add = |done: &Compacted| {
                let mut sum = before;
                sum.moved += done.moved;
                sum.bytes += done.bytes;
                sum.left += done.left;
                sum
            };
            let kept = self.store.existing(&name)?.ok_or_else(missing);
            let done = kept.and_then(|kept| {
                self.compact_one(kept, &mut |done| self.step(&Reply::Compacting(add(done))))
            });
            match done {
                Ok(done) => total = add(&done),
                Err(Error::NoKeyspace { .. }) if all => {} // dropped in the meantime
                Err(error) => return Err(error),
            }
        }
        self.tell(&Reply::Compacted(total))
    }

    fn compact_one(
        &self,
        mut kept: Arc<Kept>,
        watcher: &mut dyn FnMut(&Compacted) -> ControlFlow<()>,
    ) -> Result<Compacted> {
        loop {
            match self.store.compact_watched(&kept, watcher) {
                // Replaced or dropped.
                Err(Error::NoKeyspace { .. }) => kept = self.store.successor(&kept)?,
                other => return other,
            }
        }
    }

    fn verify(&self) -> Result<()> {
        let mut found = |error| {
            self.say(&Reply::Finding(error)); // the next step detects a closed connection
        };
        let report = self
            .store
            .verify_watched(&mut found, &mut |report| self.step(&Reply::Verifying(report.clone())))?;
        let size = |path: &PathBuf| path.as_os_str().len();
        self.tell_all(&report.files, size, |files| Reply::Files(files.to_vec()))?;
        self.tell(&Reply::Verified(report))
    }

    /// Exports a snapshot until the guest leaves or the database closes.
    fn hold(&self) -> Result<()> {
        let (hold, items) = self.store.hold_beside()?;
        let lent = Lent { ending: Ending(self.stream), hold };
        let items: Vec<Item> = items.into_iter().flat_map(cut).collect();
        let size = |item: &Item| match item {
            Item::Directory(name) => name.as_os_str().len(),
            Item::Piece(Piece { name, bytes, .. }) => {
                let bytes = match bytes {
                    Bytes::Here(bytes) => bytes.len(),
                    Bytes::File(path, _) => path.as_os_str().len(),
                };
                name.as_os_str().len() + bytes
            }
        };
        self.tell_all(&items, size, |items| Reply::Items(items.to_vec()))?;
        drop(items);
        // From here on the owner sends nothing, so that any event at the reader means the end.
        if !self.line.lend(&Reply::Done.encode()) {
            return Err(Error::Cancelled);
        }
        // The reader sends nothing more, so that any event means the end of the connection.
        let _ = wire::receive(self.stream);
        drop(lent);
        Err(Error::Cancelled)
    }

    /// Sends a list in as many messages as needed.
    fn tell_all<T>(
        &self,
        all: &[T],
        size: impl Fn(&T) -> usize,
        reply: impl Fn(&[T]) -> Reply,
    ) -> Result<()> {
        let (mut from, mut bytes) = (0, 0);
        for (index, item) in all.iter().enumerate() {
            bytes += size(item) + 64;
            if bytes >= PART {
                self.tell(&reply(&all[from..=index]))?;
                (from, bytes) = (index + 1, 0);
            }
        }
        if from < all.len() { self.tell(&reply(&all[from..])) } else { Ok(()) }
    }
}

/// Splits bytes that are inline in a listing into parts that fit into a message.
fn cut(item: Item) -> Vec<Item> {
    match item {
        Item::Piece(Piece { name, whole, at, len, bytes: Bytes::Here(bytes) }) if bytes.len() > PART => {
            let whole = whole.max(at + len);
            let parts = bytes.chunks(PART).enumerate().map(|(number, part)| {
                Item::Piece(Piece {
                    name: name.clone(),
                    whole,
                    at: at + (number * PART) as u64,
                    len: part.len() as u64,
                    bytes: Bytes::Here(part.to_vec()),
                })
            });
            parts.collect()
        }
        other => vec![other],
    }
}
