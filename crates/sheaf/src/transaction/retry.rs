//! # Retries of transactions that conflict

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use super::Transaction;
use crate::lock_wait::sleep;
use crate::{Database, Error, Result};

/// Number of attempts that follow each other without a delay.
const FIRST_ATTEMPTS: u32 = 4;
/// Longest delay before the first attempt that is delayed.
const FIRST_DELAY: Duration = Duration::from_micros(20);

/// Number of attempts of a transaction, and the delays between them.
///
/// The first four attempts follow each other at once. Before each further one the thread sleeps for
/// a random time, whose limit doubles up to [`RetryPolicy::max_delay`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    max_attempts: u32,
    max_delay: Duration,
}

impl Default for RetryPolicy {
    /// Allows 1,000 attempts and a delay of at most 2 ms.
    fn default() -> RetryPolicy {
        RetryPolicy { max_attempts: 1_000, max_delay: Duration::from_millis(2) }
    }
}

impl RetryPolicy {
    /// Sets the largest number of attempts, at least 1.
    ///
    /// ```
    /// let policy = sheaf::RetryPolicy::default().max_attempts(3);
    /// assert_ne!(policy, sheaf::RetryPolicy::default());
    /// ```
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> RetryPolicy {
        self.max_attempts = attempts.max(1);
        self
    }

    /// Sets the longest delay between two attempts.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let policy = sheaf::RetryPolicy::default().max_delay(Duration::from_millis(50));
    /// assert_ne!(policy, sheaf::RetryPolicy::default());
    /// ```
    #[must_use]
    pub fn max_delay(mut self, delay: Duration) -> RetryPolicy {
        self.max_delay = delay;
        self
    }

    /// Returns the longest delay after `attempt` attempts.
    fn limit_after(&self, attempt: u32) -> Duration {
        match attempt.checked_sub(FIRST_ATTEMPTS) {
            Some(doublings) => FIRST_DELAY.saturating_mul(1 << doublings.min(20)).min(self.max_delay),
            None => Duration::ZERO,
        }
    }

    /// Sleeps before the next attempt.
    fn delay(&self, attempt: u32) {
        let limit = self.limit_after(attempt);
        if !limit.is_zero() {
            let percent = RandomState::new().hash_one(attempt) % 100;
            sleep(limit.mul_f64(f64::from(u8::try_from(percent).unwrap_or(0)) / 100.0));
        }
    }
}

impl Database {
    /// Runs `body` in a transaction and commits it. If the transaction conflicts with another
    /// commit, runs `body` again in a new one, up to 1,000 times; `body` should therefore have no
    /// other side effects. An error of `body` rolls the transaction back. Returns the result of
    /// `body`.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let accounts = db.keyspace("accounts", sheaf::KeyspaceOptions::default())?;
    /// # accounts.insert("ada", [10])?;
    /// # accounts.insert("alan", [0])?;
    /// let amount = 4;
    /// db.transact(|tx| {
    ///     let read = |name| Ok::<u8, sheaf::Error>(tx.get(&accounts, name)?.map_or(0, |v| v[0]));
    ///     let (from, to) = (read("ada")?, read("alan")?);
    ///     if from < amount {
    ///         return Err("there is not enough money".into());
    ///     }
    ///     tx.insert(&accounts, "ada", [from - amount])?;
    ///     tx.insert(&accounts, "alan", [to + amount])?;
    ///     Ok::<(), Box<dyn std::error::Error>>(())
    /// })?;
    /// assert_eq!(accounts.get("alan")?, Some([4].into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the error of `body`, the errors of [`Transaction::commit`], and
    /// [`Error::Conflict`] if all attempts conflicted.
    pub fn transact<T, E: From<Error>>(
        &self,
        body: impl FnMut(&Transaction) -> Result<T, E>,
    ) -> Result<T, E> {
        self.transact_with(RetryPolicy::default(), body)
    }

    /// Like [`Database::transact`], with a number of attempts and delays of the caller's choice.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let once = sheaf::RetryPolicy::default().max_attempts(1);
    /// let result = db.transact_with(once, |tx| {
    ///     tx.get(&users, "ada")?;
    ///     users.insert("ada", "lovelace")?; // conflicts with this transaction
    ///     tx.insert(&users, "alan", "turing")
    /// });
    /// assert!(matches!(result, Err(sheaf::Error::Conflict { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Database::transact`].
    pub fn transact_with<T, E: From<Error>>(
        &self,
        policy: RetryPolicy,
        mut body: impl FnMut(&Transaction) -> Result<T, E>,
    ) -> Result<T, E> {
        for attempt in 1.. {
            let is_last = attempt >= policy.max_attempts;
            let transaction = self.transaction()?;
            match body(&transaction) {
                Ok(result) => match transaction.commit() {
                    Ok(()) => return Ok(result),
                    Err(Error::Conflict { .. }) if !is_last => {}
                    Err(error) => return Err(error.into()),
                },
                // `body` may have turned the conflict into an error of its own.
                Err(_) if transaction.has_conflict() && !is_last => {}
                Err(error) => return Err(error),
            }
            policy.delay(attempt);
        }
        unreachable!("the last attempt returns")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_their_limit() {
        let policy = RetryPolicy::default();
        assert_eq!([1, 3].map(|attempt| policy.limit_after(attempt)), [Duration::ZERO; 2]);
        assert_eq!(policy.limit_after(5), 2 * FIRST_DELAY);
        assert_eq!(policy.limit_after(u32::MAX), Duration::from_millis(2));
        policy.max_delay(Duration::ZERO).delay(u32::MAX); // must not sleep
    }
}
