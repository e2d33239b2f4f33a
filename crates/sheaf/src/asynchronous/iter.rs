//! # Async iterator: pairs in bounded chunks
//!
//! A call on the blocking pool reads up to [`CHUNK_PAIRS`] pairs or [`CHUNK_BYTES`] bytes. The
//! handle of the call stays in the iterator while it runs. So a dropped `next` loses no pair: the
//! following `next` waits for the same call.

use std::collections::VecDeque;
use std::fmt;

use ::tokio::task::{JoinHandle, spawn_blocking};

use super::{on_pool, returned};
use crate::{Iter, Result, Value};

/// Maximum number of pairs of a chunk.
const CHUNK_PAIRS: usize = 256;
/// Bytes of keys and values after which a chunk ends.
const CHUNK_BYTES: usize = 64 << 10;

type Pair = Result<(Value, Value)>;

/// Pairs that one call has read, and the iterator unless it has ended.
struct Chunk {
    pairs: VecDeque<Pair>,
    rest: Option<Box<Iter>>,
}

impl Chunk {
    fn read(mut iter: Box<Iter>) -> Chunk {
        let (mut pairs, mut bytes) = (VecDeque::new(), 0);
        while pairs.len() < CHUNK_PAIRS && bytes < CHUNK_BYTES {
            let Some(pair) = iter.next() else { return Chunk { pairs, rest: None } };
            bytes += pair.as_ref().map_or(0, |(key, value)| key.len() + value.len());
            pairs.push_back(pair);
        }
        Chunk { pairs, rest: Some(iter) }
    }
}

/// Source of the next chunk.
enum ChunkSource {
    Idle(Box<Iter>),
    Reading(JoinHandle<Result<Chunk>>),
    Ended,
}

/// Iterator over the pairs of a keyspace in one snapshot, for tasks. Holds at most 256 pairs and
/// about 64 KiB, or one larger pair, in memory. Dropping the future of [`AsyncIter::next`] loses no
/// pair. [`Iter`] has the rules for damaged pairs, and pins its snapshot in the same way.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
/// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
/// for number in 0..1000_u32 {
///     users.insert(number.to_be_bytes(), "x").await?;
/// }
/// let (mut pairs, mut count) = (users.iter().await?, 0);
/// while let Some(pair) = pairs.next().await {
///     pair?;
///     count += 1;
/// }
/// assert_eq!(count, 1000);
/// # Ok(())
/// # }
/// ```
pub struct AsyncIter {
    pairs: VecDeque<Pair>,
    source: ChunkSource,
}

impl fmt::Debug for AsyncIter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncIter").field("pairs_in_memory", &self.pairs.len()).finish_non_exhaustive()
    }
}

impl AsyncIter {
    /// Creates the iterator by `begin` and reads the first chunk, in one call on the pool.
    pub(super) async fn new(begin: impl FnOnce() -> Result<Iter> + Send + 'static) -> Result<AsyncIter> {
        let mut iter = AsyncIter { pairs: VecDeque::new(), source: ChunkSource::Ended };
        iter.take(on_pool(move || begin().map(|iter| Chunk::read(Box::new(iter)))).await?);
        Ok(iter)
    }

    fn take(&mut self, chunk: Chunk) {
        self.pairs = chunk.pairs;
        self.source = chunk.rest.map_or(ChunkSource::Ended, ChunkSource::Idle);
    }

    /// Returns the next pair, or `None` at the end.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::asynchronous::AsyncDatabase::open(dir.path()).await?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default()).await?;
    /// users.insert("ada", "lovelace").await?;
    /// let mut pairs = users.iter().await?;
    /// assert_eq!(pairs.next().await.transpose()?, Some(("ada".into(), "lovelace".into())));
    /// assert!(pairs.next().await.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// An item is an error as for [`Iter`].
    pub async fn next(&mut self) -> Option<Pair> {
        ::tokio::task::consume_budget().await; // pairs in memory must not starve other tasks
        loop {
            if let Some(pair) = self.pairs.pop_front() {
                return Some(pair);
            }
            self.source = match std::mem::replace(&mut self.source, ChunkSource::Ended) {
                ChunkSource::Ended => return None,
                ChunkSource::Idle(iter) => {
                    ChunkSource::Reading(spawn_blocking(move || Ok(Chunk::read(iter))))
                }
                reading => reading,
            };
            if let ChunkSource::Reading(call) = &mut self.source {
                let joined = call.await; // if this is dropped, the handle stays in `source`
                self.source = ChunkSource::Ended;
                match returned(joined) {
                    Ok(chunk) => self.take(chunk),
                    Err(error) => return Some(Err(error)),
                }
            }
        }
    }
}
