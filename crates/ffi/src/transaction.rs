//! # Transactions: reads and writes that commit together if no other commit changed the reads

use std::mem::MaybeUninit;
use std::ops::Bound;
use std::sync::MutexGuard;

use sheaf::{Durability, Keyspace, Result, Savepoint, Transaction, Value};

use crate::batch::sheaf_ticket;
use crate::boundary::code::sheaf_code;
use crate::boundary::error::sheaf_error;
use crate::boundary::memory::{handle_out, sheaf_bytes, sheaf_value};
use crate::boundary::{self, Exclusive, Outcome, call, found, given, invalid};
use crate::database::sheaf_db;
use crate::iter::sheaf_iter;
use crate::keyspace::{sheaf_keyspace, writable};
use crate::options::chosen_durability;
use crate::write::bounds;

/// Reads of one snapshot and changes, which become one atomic commit.
pub struct sheaf_transaction(Exclusive<TransactionHandle>);

struct TransactionHandle {
    /// `None` after the commit.
    transaction: Option<Transaction>,
    durability: Option<Durability>,
    savepoints: Vec<Savepoint>,
}

impl TransactionHandle {
    fn open(&self) -> Outcome<&Transaction> {
        self.transaction.as_ref().ok_or_else(|| invalid("transaction", ENDED))
    }

    /// Ends the transaction and returns it with the chosen durability.
    fn take(&mut self) -> Outcome<Transaction> {
        let transaction = self.transaction.take().ok_or_else(|| invalid("transaction", ENDED))?;
        Ok(match self.durability {
            Some(durability) => transaction.durability(durability),
            None => transaction,
        })
    }
}

const ENDED: &str = "it has ended by a commit";

/// Returns the state of a transaction, locked until the end of the call.
fn locked(transaction: Option<&sheaf_transaction>) -> Outcome<MutexGuard<'_, TransactionHandle>> {
    given(transaction, "transaction")?.0.lock("transaction")
}

/// Runs `body` on an open transaction.
fn with<R>(
    transaction: Option<&sheaf_transaction>,
    body: impl FnOnce(&Transaction) -> Outcome<R>,
) -> Outcome<R> {
    body(locked(transaction)?.open()?)
}

/// Begins a transaction: its reads show the state at this call, and its own changes. The commit
/// returns `SHEAF_CONFLICT` if another commit changed a key or range that was read; then begin
/// again. A transaction holds no lock. Other threads and transactions continue.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_db_transaction(
    db: Option<&sheaf_db>,
    transaction: Option<&mut MaybeUninit<*mut sheaf_transaction>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let place = handle_out(transaction, "transaction")?;
        let transaction = Some(given(db, "db")?.0.transaction()?);
        let state = TransactionHandle { transaction, durability: None, savepoints: Vec::new() };
        place.write(Box::into_raw(Box::new(sheaf_transaction(Exclusive::new(state)))));
        Ok(())
    })
}

/// Returns the number of the newest commit that the reads show; 0 if `transaction` is NULL, has
/// ended, or is in use.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_transaction_seq(transaction: Option<&sheaf_transaction>) -> u64 {
    with(transaction, |transaction| Ok(transaction.seq())).unwrap_or(0)
}

/// Returns the value of `key`, and `SHEAF_NOT_FOUND` if the key does not exist. The commit checks
/// that no other commit changed the key.
///
/// Threads: one at a time for each transaction.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_transaction_get(
    transaction: Option<&sheaf_transaction>,
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    value: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || read(transaction, keyspace, key, value, |tx, keyspace, key| tx.get(keyspace, key)))
}

/// Returns the value of `key` like `sheaf_transaction_get`. The commit then checks the reads of the
/// transaction even if it changes nothing.
///
/// Threads: one at a time for each transaction.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_transaction_get_for_update(
    transaction: Option<&sheaf_transaction>,
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    value: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        read(transaction, keyspace, key, value, |tx, keyspace, key| tx.get_for_update(keyspace, key))
    })
}

/// Returns the value of `key` like `sheaf_transaction_get`, but the commit does not check the key.
///
/// Threads: one at a time for each transaction.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_transaction_untracked_get(
    transaction: Option<&sheaf_transaction>,
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    value: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        read(transaction, keyspace, key, value, |tx, keyspace, key| tx.untracked_get(keyspace, key))
    })
}

fn read(
    transaction: Option<&sheaf_transaction>,
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    value: Option<&mut MaybeUninit<*mut sheaf_value>>,
    get: impl FnOnce(&Transaction, &Keyspace, &[u8]) -> Result<Option<Value>>,
) -> Outcome<()> {
    let place = handle_out(value, "value")?;
    let value = with(transaction, |tx| Ok(get(tx, writable(keyspace)?, key.get("key")?)?))?;
    place.write(sheaf_value::handle(found(value)?));
    Ok(())
}

/// Sets `key` to `value`. The transaction copies both.
///
/// Threads: one at a time for each transaction.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_transaction_insert(
    transaction: Option<&sheaf_transaction>,
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    value: sheaf_bytes<'_>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        with(transaction, |tx| Ok(tx.insert(writable(keyspace)?, key.get("key")?, value.get("value")?)?))
    })
}

/// Merges `operand` into the value of `key` that the transaction sees. This is a read of the key:
/// another commit to it is a conflict. If the operator refuses the operand, returns
/// `SHEAF_INVALID_ARGUMENT`, and the transaction is unchanged.
///
/// Threads: one at a time for each transaction.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_transaction_merge(
    transaction: Option<&sheaf_transaction>,
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    operand: sheaf_bytes<'_>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        with(transaction, |tx| Ok(tx.merge(writable(keyspace)?, key.get("key")?, operand.get("operand")?)?))
    })
}

/// Removes `key`. A missing key is no error.
///
/// Threads: one at a time for each transaction.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_transaction_remove(
    transaction: Option<&sheaf_transaction>,
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || with(transaction, |tx| Ok(tx.remove(writable(keyspace)?, key.get("key")?)?)))
}

/// Removes the keys from `start` (included; NULL: the first key) to `end` (excluded; NULL: all
/// following keys). Needs an ordered engine, unless both are NULL.
///
/// Threads: one at a time for each transaction.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_transaction_remove_range(
    transaction: Option<&sheaf_transaction>,
    keyspace: Option<&sheaf_keyspace>,
    start: Option<&sheaf_bytes<'_>>,
    end: Option<&sheaf_bytes<'_>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || with(transaction, |tx| Ok(tx.remove_range(writable(keyspace)?, bounds(start, end)?)?)))
}

/// Creates an iterator over the pairs with keys from `start` (included; NULL: the first key) to
/// `end` (excluded; NULL: all following keys), with the changes of the transaction. The commit
/// checks the part that was iterated over, also for keys that did not exist. The iterator cannot
/// seek, and returns an error after the end of the transaction. Needs an ordered engine, unless
/// both are NULL.
///
/// Threads: one at a time for each transaction.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_transaction_range(
    transaction: Option<&sheaf_transaction>,
    keyspace: Option<&sheaf_keyspace>,
    start: Option<&sheaf_bytes<'_>>,
    end: Option<&sheaf_bytes<'_>>,
    iter: Option<&mut MaybeUninit<*mut sheaf_iter>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let place = handle_out(iter, "iter")?;
        let pairs = with(transaction, |tx| {
            Ok(match bounds(start, end)? {
                (Bound::Unbounded, Bound::Unbounded) => tx.iter(writable(keyspace)?)?,
                range => tx.range(writable(keyspace)?, range)?,
            })
        })?;
        place.write(sheaf_iter::of_transaction(pairs));
        Ok(())
    })
}

/// Creates an iterator over the pairs with keys that start with `prefix`, like
/// `sheaf_transaction_range`.
///
/// Threads: one at a time for each transaction.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_transaction_prefix(
    transaction: Option<&sheaf_transaction>,
    keyspace: Option<&sheaf_keyspace>,
    prefix: sheaf_bytes<'_>,
    iter: Option<&mut MaybeUninit<*mut sheaf_iter>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let place = handle_out(iter, "iter")?;
        let pairs = with(transaction, |tx| Ok(tx.prefix(writable(keyspace)?, prefix.get("prefix")?)?))?;
        place.write(sheaf_iter::of_transaction(pairs));
        Ok(())
    })
}

/// Writes the number of a new savepoint to `savepoint`, for `sheaf_transaction_roll_back_to`.
///
/// Threads: one at a time for each transaction.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_transaction_savepoint(
    transaction: Option<&sheaf_transaction>,
    savepoint: Option<&mut MaybeUninit<usize>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let place = given(savepoint, "savepoint")?;
        let mut state = locked(transaction)?;
        let point = state.open()?.savepoint()?;
        place.write(state.savepoints.len());
        state.savepoints.push(point);
        Ok(())
    })
}

/// Undoes all changes after the savepoint. It stays valid, and later ones do not. Reads since then
/// are still checked.
///
/// Threads: one at a time for each transaction.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_transaction_roll_back_to(
    transaction: Option<&sheaf_transaction>,
    savepoint: usize,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let mut state = locked(transaction)?;
        let point = state.savepoints.get(savepoint).copied();
        let point = point.ok_or_else(|| invalid("savepoint", "the transaction has no such savepoint"))?;
        state.open()?.roll_back_to(point)?;
        state.savepoints.truncate(savepoint + 1);
        Ok(())
    })
}

/// Sets the durability of the commit: `SHEAF_DURABILITY_BUFFER` or `SHEAF_DURABILITY_SYNC`.
///
/// Threads: one at a time for each transaction.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_transaction_set_durability(
    transaction: Option<&sheaf_transaction>,
    durability: i32,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let mut state = locked(transaction)?;
        state.durability = Some(chosen_durability(durability)?);
        Ok(())
    })
}

/// Commits, and waits for the durability of the transaction. Returns `SHEAF_CONFLICT` and writes
/// nothing if another commit changed a key or range that was read. The transaction has ended
/// afterwards, also after an error, and must be freed.
///
/// Threads: one at a time for each transaction.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_transaction_commit(
    transaction: Option<&sheaf_transaction>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let ended = locked(transaction)?.take()?;
        Ok(ended.commit()?)
    })
}

/// Commits like `sheaf_transaction_commit`, but without waiting for the device. On return the
/// commit is visible; the ticket waits for its durability.
///
/// Threads: one at a time for each transaction.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_transaction_submit(
    transaction: Option<&sheaf_transaction>,
    ticket: Option<&mut MaybeUninit<*mut sheaf_ticket>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let place = handle_out(ticket, "ticket")?;
        let ended = locked(transaction)?.take()?;
        place.write(sheaf_ticket::handle(ended.submit()?));
        Ok(())
    })
}

/// Frees a transaction. Its changes are dropped if it was not committed. NULL is allowed.
///
/// Threads: any. No other call may use the transaction.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_transaction_free(transaction: Option<Box<sheaf_transaction>>) {
    boundary::release(transaction);
}
