//! # Connection: one client, from the owner's side
//!
//! Serves requests one after the other. During a long request each step sends the progress and
//! checks the connection. If the client has closed it, or the database closes, the request is
//! cancelled.

use std::net::Shutdown;
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use sheaf_platform::disk::exported::{ByteSource, ExportedExtent, ExportedItem};
use sheaf_platform::disk::is_moved;
use sheaf_platform::error::PoisonCause;
use sheaf_store::{ExportedState, KeyspaceState, Store};

use super::connection_state::{ConnectionActivity, ConnectionState};
use super::message::{IpcReply, IpcRequest};
use super::overview::overview;
use super::server::{HELLO_TIMEOUT, SEND_TIMEOUT};
use super::wire::{self, HelloStatus, VERSION};
use crate::convert::convert;
use crate::merge::MergeRegistry;
use crate::{BackupOptions, BackupRate, CacheStats, CompactionReport, Error, KeyspaceOptions, Result};

/// Target size of the parts of a list in bytes, and most bytes of one item.
pub(super) const MAX_CHUNK_BYTES: usize = 256 << 10;

/// Serves a client until the end of the connection.
pub(super) fn serve(
    store: &Weak<Store>,
    operators: &MergeRegistry,
    state: &ConnectionState,
    working: impl Fn(),
) {
    let stream = state.stream();
    let _end = ShutdownOnDrop(stream);
    if handshake(stream).is_err() {
        return;
    }
    loop {
        if !state.set_activity(ConnectionActivity::Idle) {
            return; // replaced by another client
        }
        let Ok(Some(message)) = wire::receive(stream) else { return };
        let Some(store) = store.upgrade() else { return };
        if !state.set_activity(ConnectionActivity::Working) {
            return;
        }
        working();
        let handler = RequestHandler { store: &store, operators, state, stream };
        let done = match IpcRequest::decode(&message) {
            Ok(request) => handler.handle(request),
            Err(what) => Err(Error::InvalidArgument { argument: "request", reason: what.to_string() }),
        };
        let is_sent = match done {
            Ok(()) => true,
            // The other errors name files at the old path.
            Err(_) if is_moved(store.path()) => handler.send(&IpcReply::Failed(moved_error())),
            Err(error) => handler.send(&IpcReply::Failed(error)),
        };
        if !is_sent {
            return;
        }
    }
}

/// Returns the error of a database after a move of its directory.
fn moved_error() -> Error {
    Error::Poisoned { cause: PoisonCause::MovedDirectory }
}

/// Sends the hello, and waits for that of the client.
fn handshake(stream: &UnixStream) -> std::io::Result<()> {
    stream.set_write_timeout(Some(SEND_TIMEOUT))?;
    wire::send_hello(stream, HelloStatus::Accepted)?;
    stream.set_read_timeout(Some(HELLO_TIMEOUT))?;
    if wire::receive_hello(stream)?.0 != VERSION {
        return Err(std::io::ErrorKind::Unsupported.into());
    }
    stream.set_read_timeout(None) // no limit between requests
}

/// Shuts the connection when dropped, so that the peer is notified in every case.
struct ShutdownOnDrop<'a>(&'a UnixStream);

impl Drop for ShutdownOnDrop<'_> {
    fn drop(&mut self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// A snapshot that a client reads. The connection ends before the snapshot is released (ipc I4).
struct ServedExport<'a> {
    #[expect(dead_code, reason = "dropped first")]
    ending: ShutdownOnDrop<'a>,
    #[expect(dead_code, reason = "dropped second")]
    export: ExportedState,
}

pub(super) struct RequestHandler<'a> {
    pub(super) store: &'a Arc<Store>,
    /// Merge operators of the owner.
    operators: &'a MergeRegistry,
    state: &'a ConnectionState,
    pub(super) stream: &'a UnixStream,
}

impl RequestHandler<'_> {
    /// Sends a reply; returns false if the connection is closed.
    fn send(&self, reply: &IpcReply) -> bool {
        self.state.send(&reply.encode()).is_ok()
    }

    pub(super) fn send_or_cancel(&self, reply: &IpcReply) -> Result<()> {
        if self.send(reply) { Ok(()) } else { Err(Error::Cancelled) }
    }

    /// Sends the progress if that does not block, since other threads may wait for the work.
    /// Returns `Break` if the client has closed the connection.
    fn send_progress(&self, reply: &IpcReply) -> ControlFlow<()> {
        if wire::is_peer_closed(self.stream) || (wire::can_send(self.stream) && !self.send(reply)) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn handle(&self, request: IpcRequest) -> Result<()> {
        match request {
            IpcRequest::Overview => self.overview(),
            IpcRequest::Backup { dir, base, verify, pace } => self.back_up(dir, base, verify, pace),
            IpcRequest::Convert { keyspace, engine, options } => {
                let to = KeyspaceOptions { engine, options };
                let done = convert(self.store, self.operators, &keyspace, &to, |progress| {
                    self.send_progress(&IpcReply::ConversionProgress(*progress))
                })?;
                self.send_or_cancel(&IpcReply::ConversionDone(done.ok_or(Error::Cancelled)?))
            }
            IpcRequest::Estimate { keyspace } => {
                let missing = || Error::KeyspaceNotFound { name: keyspace.clone() };
                let state = self.store.find_keyspace(&keyspace)?.ok_or_else(missing)?;
                self.send_or_cancel(&IpcReply::Estimate(self.store.estimate_conversion(&state)?))
            }
            IpcRequest::Compact { keyspace } => self.compact(keyspace),
            // Every file would count as damaged.
            IpcRequest::Verify if is_moved(self.store.path()) => Err(moved_error()),
            IpcRequest::Verify => self.verify(),
            IpcRequest::Persist => {
                self.store.persist()?;
                self.send_or_cancel(&IpcReply::Done)
            }
            IpcRequest::Export => self.export(),
            IpcRequest::Changes(query) => self.changes(&query),
        }
    }

    fn overview(&self) -> Result<()> {
        self.store.check_open()?;
        let mut overview = overview(self.store, true);
        let caches = std::mem::take(&mut overview.stats.caches);
        self.send_or_cancel(&IpcReply::Stats(Box::new(overview.stats)))?;
        let size = |cache: &CacheStats| cache.keyspace.as_ref().map_or(0, String::len);
        self.send_list(&caches, size, |caches| IpcReply::Caches(caches.to_vec()))?;
        for keyspace in overview.keyspaces {
            self.send_or_cancel(&IpcReply::Keyspace(Box::new(keyspace)))?;
        }
        self.send_or_cancel(&IpcReply::Done)
    }

    fn back_up(&self, dir: PathBuf, base: Option<PathBuf>, verify: bool, pace: BackupRate) -> Result<()> {
        if let Some(path) = [Some(&dir), base.as_ref()].into_iter().flatten().find(|path| path.is_relative())
        {
            let why = format!("{} is not absolute", path.display());
            return Err(Error::InvalidArgument { argument: "target", reason: why });
        }
        let mut watcher = |progress| self.send_progress(&IpcReply::BackupProgress(progress));
        let options = BackupOptions::default().verify(verify).rate(pace).on_progress(&mut watcher);
        let options = match base {
            Some(base) => options.base(base),
            None => options,
        };
        let report = self.store.back_up(&dir, options)?;
        self.send_or_cancel(&IpcReply::BackupDone(report))
    }

    fn compact(&self, keyspace: Option<String>) -> Result<()> {
        let all = keyspace.is_none();
        let names = match keyspace {
            Some(name) => vec![name],
            None => self.store.keyspaces().into_iter().map(|info| info.name).collect(),
        };
        let mut total = CompactionReport::default();
        for name in names {
            let missing = || Error::KeyspaceNotFound { name: name.clone() };
            let before = total;
            let add = |done: &CompactionReport| {
                let mut sum = before;
                sum.rewritten_pairs += done.rewritten_pairs;
                sum.rewritten_bytes += done.rewritten_bytes;
                sum.skipped_pairs += done.skipped_pairs;
                sum
            };
            let state = self.store.find_keyspace(&name)?.ok_or_else(missing);
            let done = state.and_then(|state| {
                self.compact_one(state, &mut |done| {
                    self.send_progress(&IpcReply::CompactionProgress(add(done)))
                })
            });
            match done {
                Ok(done) => total = add(&done),
                Err(Error::KeyspaceNotFound { .. }) if all => {} // dropped in the meantime
                Err(error) => return Err(error),
            }
        }
        self.send_or_cancel(&IpcReply::CompactionDone(total))
    }

    fn compact_one(
        &self,
        mut state: Arc<KeyspaceState>,
        watcher: &mut dyn FnMut(&CompactionReport) -> ControlFlow<()>,
    ) -> Result<CompactionReport> {
        loop {
            match self.store.compact_with_progress(&state, watcher) {
                // Replaced or dropped.
                Err(Error::KeyspaceNotFound { .. }) => state = self.store.successor(&state)?,
                other => return other,
            }
        }
    }

    fn verify(&self) -> Result<()> {
        let mut found = |error| {
            self.send(&IpcReply::Finding(error)); // the next step detects a closed connection
        };
        let report = self.store.verify_with_progress(&mut found, &mut |report| {
            self.send_progress(&IpcReply::VerifyProgress(report.clone()))
        })?;
        let size = |path: &PathBuf| path.as_os_str().len();
        self.send_list(&report.files, size, |files| IpcReply::Files(files.to_vec()))?;
        self.send_or_cancel(&IpcReply::VerifyDone(report))
    }

    /// Exports a snapshot until the client leaves or the database closes.
    fn export(&self) -> Result<()> {
        let (hold, items) = self.store.export_state()?;
        let lent = ServedExport { ending: ShutdownOnDrop(self.stream), export: hold };
        let items: Vec<ExportedItem> = items.into_iter().flat_map(split_inline).collect();
        let size = |item: &ExportedItem| match item {
            ExportedItem::Directory(name) => name.as_os_str().len(),
            ExportedItem::Extent(ExportedExtent { name, bytes, .. }) => {
                let bytes = match bytes {
                    ByteSource::Inline(bytes) => bytes.len(),
                    ByteSource::File(path, _) => path.as_os_str().len(),
                };
                name.as_os_str().len() + bytes
            }
        };
        self.send_list(&items, size, |items| IpcReply::Items(items.to_vec()))?;
        drop(items);
        // From here on the owner sends nothing, so that any event at the reader means the end.
        if !self.state.start_export(&IpcReply::Done.encode()) {
            return Err(Error::Cancelled);
        }
        // The reader sends nothing more, so that any event means the end of the connection.
        let _ = wire::receive(self.stream);
        drop(lent);
        Err(Error::Cancelled)
    }

    /// Sends a list in as many messages as needed.
    fn send_list<T>(
        &self,
        all: &[T],
        size: impl Fn(&T) -> usize,
        reply: impl Fn(&[T]) -> IpcReply,
    ) -> Result<()> {
        let (mut from, mut bytes) = (0, 0);
        for (index, item) in all.iter().enumerate() {
            bytes += size(item) + 64;
            if bytes >= MAX_CHUNK_BYTES {
                self.send_or_cancel(&reply(&all[from..=index]))?;
                (from, bytes) = (index + 1, 0);
            }
        }
        if from < all.len() { self.send_or_cancel(&reply(&all[from..])) } else { Ok(()) }
    }
}

/// Splits bytes that are inline in a listing into parts that fit into a message.
fn split_inline(item: ExportedItem) -> Vec<ExportedItem> {
    match item {
        ExportedItem::Extent(ExportedExtent {
            name,
            file_len: whole,
            offset: at,
            len,
            bytes: ByteSource::Inline(bytes),
        }) if bytes.len() > MAX_CHUNK_BYTES => {
            let whole = whole.max(at + len);
            let parts = bytes.chunks(MAX_CHUNK_BYTES).enumerate().map(|(number, part)| {
                ExportedItem::Extent(ExportedExtent {
                    name: name.clone(),
                    file_len: whole,
                    offset: at + (number * MAX_CHUNK_BYTES) as u64,
                    len: part.len() as u64,
                    bytes: ByteSource::Inline(part.to_vec()),
                })
            });
            parts.collect()
        }
        other => vec![other],
    }
}
