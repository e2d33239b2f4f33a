//! # Shared key: all threads of a child append to one value
//!
//! Callers that merge one key at the same time share a commit. An operand is a thread and the
//! number of its commit, so the value shows each operand that was applied, how often, and in which
//! order. The parent removes the key after its check, so each child begins with no value.

use sheaf::Keyspace;

use super::THREADS;
use crate::crash::workload::TestRandom;

/// First byte differs from the keys of the threads.
const SHARED_KEY: &[u8] = b"shared";
/// Bytes of an operand: a thread and the number of the commit.
const OPERAND_BYTES: usize = 5;
/// One in this many commits of a thread is a merge of the shared key.
const APPEND_RATE: u64 = 4;

/// Whether commit number `k` of a thread is a merge of the shared key.
pub(super) fn is_append(thread: u8, life: u64, k: u32) -> bool {
    TestRandom::new(!life ^ u64::from(k) << 8 ^ u64::from(thread)).one_in(APPEND_RATE)
}

/// Merges the operand of commit number `k` of a thread.
///
/// # Errors
///
/// Returns the error of the merge.
pub(super) fn append(keyspace: &Keyspace, thread: u8, k: u32) -> sheaf::Result<()> {
    let mut operand = [thread; OPERAND_BYTES];
    operand[1..].copy_from_slice(&k.to_le_bytes());
    keyspace.merge(SHARED_KEY, operand)
}

/// Checks the value that the child with seed `life` left, and removes it. `acked` has the number of
/// acknowledged commits of each thread.
///
/// # Errors
///
/// Returns a description of the first violation, or the error of a database call.
pub(super) fn check_and_remove(keyspace: &Keyspace, life: u64, acked: &[u32]) -> Result<(), String> {
    let value = keyspace.get(SHARED_KEY).map_err(|e| format!("the shared key: {e}"))?;
    check(value.as_deref().unwrap_or_default(), life, acked)?;
    keyspace.remove(SHARED_KEY).map_err(|e| format!("the shared key cannot be removed: {e}"))
}

fn check(value: &[u8], life: u64, acked: &[u32]) -> Result<(), String> {
    let (operands, rest) = value.as_chunks::<OPERAND_BYTES>();
    let mut applied = vec![Vec::new(); usize::from(THREADS)];
    for [thread, number @ ..] in operands {
        let of_thread = applied.get_mut(usize::from(*thread));
        of_thread.ok_or("the shared value has an unknown thread")?.push(u32::from_le_bytes(*number));
    }
    if !rest.is_empty() {
        return Err(format!("the shared value ends with {rest:?}"));
    }
    for ((thread, applied), acked) in (0..).zip(&applied).zip(acked) {
        let appends = |commits: u32| (0..commits).filter(move |k| is_append(thread, life, *k));
        let is_prefix = |commits| appends(commits).eq(applied.iter().copied());
        // The commit after the acknowledged ones was in progress.
        if !is_prefix(*acked) && !is_prefix(*acked + 1) {
            let expected: Vec<u32> = appends(*acked).collect();
            return Err(format!(
                "the shared value has {applied:?} of thread {thread} instead of {expected:?}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operands(applied: impl IntoIterator<Item = (u8, u32)>) -> Vec<u8> {
        let operand = |(thread, k): (u8, u32)| [&[thread][..], &k.to_le_bytes()].concat();
        applied.into_iter().flat_map(operand).collect()
    }

    #[test]
    fn a_lost_repeated_or_displaced_operand_is_found() {
        let (life, acked) = (7, [40; THREADS as usize]);
        let appends = |thread| (0..40).filter(move |k| is_append(thread, life, *k)).map(move |k| (thread, k));
        let whole: Vec<(u8, u32)> = (0..THREADS).rev().flat_map(appends).collect();
        let fails = |changed: Vec<(u8, u32)>| check(&operands(changed), life, &acked).is_err();
        assert_eq!(check(&operands(whole.clone()), life, &acked), Ok(()));

        let mut lost = whole.clone();
        lost.remove(3);
        assert!(fails(lost));
        let repeated = whole.iter().copied().chain([whole[0]]).collect();
        assert!(fails(repeated));
        let mut displaced = whole.clone();
        displaced.swap(0, 1);
        assert!(fails(displaced));
        let unknown = whole.iter().copied().chain([(THREADS, 0)]).collect();
        assert!(fails(unknown));
        let torn = [operands(whole.clone()), vec![1, 2]].concat();
        assert!(check(&torn, life, &acked).is_err());
    }

    #[test]
    fn the_operand_in_progress_may_be_there() {
        let life = 7;
        let next = (0..).find(|k| is_append(0, life, *k)).expect("one in four");
        let mut acked = [0; THREADS as usize];
        acked[0] = next;
        assert_eq!(check(&operands([(0, next)]), life, &acked), Ok(()));
        assert_eq!(check(&[], life, &acked), Ok(()));
    }
}
