//! # Batches and tickets: many operations as one commit

use std::mem::MaybeUninit;

use sheaf::{Batch, CommitTicket, Database};

use crate::boundary::code::sheaf_code;
use crate::boundary::error::sheaf_error;
use crate::boundary::memory::{handle_out, sheaf_bytes};
use crate::boundary::{self, Exclusive, Outcome, call, given};
use crate::keyspace::{sheaf_keyspace, writable};
use crate::options::chosen_durability;
use crate::write::bounds;

/// Operations that become one atomic commit.
pub struct sheaf_batch(Exclusive<BatchState>);

struct BatchState {
    batch: Batch,
    database: Database,
}

impl sheaf_batch {
    pub(crate) fn handle(database: &Database) -> *mut sheaf_batch {
        let state = BatchState { batch: database.batch(), database: database.clone() };
        Box::into_raw(Box::new(sheaf_batch(Exclusive::new(state))))
    }
}

impl BatchState {
    /// Removes all operations and expectations, with the durability, and returns them.
    fn take(&mut self) -> Batch {
        std::mem::replace(&mut self.batch, self.database.batch())
    }
}

/// Runs `change` on a batch.
fn change(batch: Option<&sheaf_batch>, change: impl FnOnce(&mut Batch) -> Outcome<()>) -> Outcome<()> {
    change(&mut given(batch, "batch")?.0.lock("batch")?.batch)
}

/// Adds an operation that sets `key` to `value` in `keyspace`. The batch copies both. The last
/// operation on a key wins.
///
/// Threads: one at a time for each batch.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_batch_insert(
    batch: Option<&sheaf_batch>,
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    value: sheaf_bytes<'_>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        change(batch, |batch| {
            batch.insert(writable(keyspace)?, key.get("key")?, value.get("value")?);
            Ok(())
        })
    })
}

/// Adds an operation that merges `operand` into the value of `key`, which earlier operations of the
/// batch may have set. If the operator refuses it, the commit fails and writes nothing.
///
/// Threads: one at a time for each batch.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_batch_merge(
    batch: Option<&sheaf_batch>,
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    operand: sheaf_bytes<'_>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        change(batch, |batch| {
            batch.merge(writable(keyspace)?, key.get("key")?, operand.get("operand")?);
            Ok(())
        })
    })
}

/// Adds an operation that removes `key` from `keyspace`. A missing key is no error.
///
/// Threads: one at a time for each batch.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_batch_remove(
    batch: Option<&sheaf_batch>,
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        change(batch, |batch| {
            batch.remove(writable(keyspace)?, key.get("key")?);
            Ok(())
        })
    })
}

/// Adds an operation that removes the keys from `start` (included; NULL: the first key) to `end`
/// (excluded; NULL: all following keys). It also removes the keys that earlier operations of the
/// batch have set; later operations take effect after it. Needs an ordered engine, unless both are
/// NULL.
///
/// Threads: one at a time for each batch.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_batch_remove_range(
    batch: Option<&sheaf_batch>,
    keyspace: Option<&sheaf_keyspace>,
    start: Option<&sheaf_bytes<'_>>,
    end: Option<&sheaf_bytes<'_>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        change(batch, |batch| {
            batch.remove_range(writable(keyspace)?, bounds(start, end)?);
            Ok(())
        })
    })
}

/// Adds an expectation: the commit succeeds only if `key` has the value `expected` at that moment;
/// NULL means that the key does not exist. Otherwise the commit returns `SHEAF_CONFLICT` and writes
/// nothing.
///
/// Threads: one at a time for each batch.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_batch_expect(
    batch: Option<&sheaf_batch>,
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    expected: Option<&sheaf_bytes<'_>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        change(batch, |batch| {
            let expected = expected.map(|value| value.get("expected")).transpose()?;
            batch.expect_value(writable(keyspace)?, key.get("key")?, expected);
            Ok(())
        })
    })
}

/// Sets the durability of the commit: `SHEAF_DURABILITY_BUFFER` or `SHEAF_DURABILITY_SYNC`.
///
/// Threads: one at a time for each batch.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_batch_set_durability(
    batch: Option<&sheaf_batch>,
    durability: i32,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        change(batch, |batch| {
            batch.durability(chosen_durability(durability)?);
            Ok(())
        })
    })
}

/// Removes all operations and expectations. The durability stays.
///
/// Threads: one at a time for each batch.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_batch_clear(
    batch: Option<&sheaf_batch>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        change(batch, |batch| {
            batch.clear();
            Ok(())
        })
    })
}

/// Moves all operations and expectations of `other` to the end of `batch`.
///
/// Threads: one at a time for each batch.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_batch_append(
    batch: Option<&sheaf_batch>,
    other: Option<&sheaf_batch>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        change(batch, |batch| {
            batch.append(&mut given(other, "other")?.0.lock("other batch")?.batch);
            Ok(())
        })
    })
}

/// Writes the number of operations to `count`. Expectations do not count.
///
/// Threads: one at a time for each batch.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_batch_len(
    batch: Option<&sheaf_batch>,
    count: Option<&mut MaybeUninit<usize>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        change(batch, |batch| {
            given(count, "count")?.write(batch.len());
            Ok(())
        })
    })
}

/// Commits, and waits for the durability of the batch. The batch is empty afterwards, also after an
/// error, and may be filled again; its durability is the default again.
///
/// Threads: one at a time for each batch.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_batch_commit(
    batch: Option<&sheaf_batch>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || Ok(given(batch, "batch")?.0.lock("batch")?.take().commit()?))
}

/// Commits like `sheaf_batch_commit`, but without waiting for the device. On return the batch is
/// visible; the ticket waits for its durability.
///
/// Threads: one at a time for each batch.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_batch_submit(
    batch: Option<&sheaf_batch>,
    ticket: Option<&mut MaybeUninit<*mut sheaf_ticket>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let ticket = handle_out(ticket, "ticket")?;
        let submitted = given(batch, "batch")?.0.lock("batch")?.take().submit()?;
        ticket.write(sheaf_ticket::handle(submitted));
        Ok(())
    })
}

/// Commits like `sheaf_batch_commit`, but returns `SHEAF_BUSY` if the commit would have to wait for
/// background work. After an error the batch is unchanged and may be tried again.
///
/// Threads: one at a time for each batch.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_batch_try_commit(
    batch: Option<&sheaf_batch>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || change(batch, |batch| Ok(batch.try_commit()?)))
}

/// Commits like `sheaf_batch_submit`, but returns `SHEAF_BUSY` if the commit would have to wait for
/// background work. After an error the batch is unchanged and may be tried again.
///
/// Threads: one at a time for each batch.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_batch_try_submit(
    batch: Option<&sheaf_batch>,
    ticket: Option<&mut MaybeUninit<*mut sheaf_ticket>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let ticket = handle_out(ticket, "ticket")?;
        change(batch, |batch| {
            ticket.write(sheaf_ticket::handle(batch.try_submit()?));
            Ok(())
        })
    })
}

/// Frees a batch without a commit. NULL is allowed.
///
/// Threads: any. No other call may use the batch.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_batch_free(batch: Option<Box<sheaf_batch>>) {
    boundary::release(batch);
}

/// A submitted commit.
pub struct sheaf_ticket(CommitTicket);

impl sheaf_ticket {
    pub(crate) fn handle(ticket: CommitTicket) -> *mut sheaf_ticket {
        Box::into_raw(Box::new(sheaf_ticket(ticket)))
    }
}

/// Returns the number of the commit; 0 if `ticket` is NULL.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_ticket_seq(ticket: Option<&sheaf_ticket>) -> u64 {
    ticket.map_or(0, |ticket| ticket.0.seq())
}

/// Returns true if the commit survives a power failure; false if `ticket` is NULL.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_ticket_is_durable(ticket: Option<&sheaf_ticket>) -> bool {
    ticket.is_some_and(|ticket| ticket.0.is_durable())
}

/// Waits for the durability that the commit was submitted with.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_ticket_wait(
    ticket: Option<&sheaf_ticket>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || Ok(given(ticket, "ticket")?.0.wait()?))
}

/// Waits until the commit and all commits before it are on the device.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_ticket_wait_durable(
    ticket: Option<&sheaf_ticket>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || Ok(given(ticket, "ticket")?.0.wait_durable()?))
}

/// Frees a ticket. The commit becomes durable in the background. NULL is allowed.
///
/// Threads: any. No other call may use the ticket.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_ticket_free(ticket: Option<Box<sheaf_ticket>>) {
    boundary::release(ticket);
}
