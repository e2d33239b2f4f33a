//! # Received commit: the changes of a commit, from the messages of the owner

use sheaf_store::ChangeValue;

use super::attached_owner::unexpected_reply;
use super::message::IpcReply;
use crate::{Change, ChangeKind, CommittedChanges, Result};

/// Commit of which the messages arrive.
#[derive(Default)]
pub(super) struct ReceivedCommit {
    changes: Vec<Change>,
    /// Value of the last change so far. Grows with the bytes that arrive, not with the length that
    /// the owner announces.
    value: Vec<u8>,
    /// Bytes of that value that are missing.
    missing: u64,
}

impl ReceivedCommit {
    /// Adds a message. Returns the commit if it is complete.
    ///
    /// # Errors
    ///
    /// Returns [`crate::Error::InvalidArgument`] for a reply that does not belong here.
    pub(super) fn add(&mut self, reply: IpcReply) -> Result<Option<CommittedChanges>> {
        match reply {
            IpcReply::Change(change, value_len) if self.missing == 0 => {
                self.finish_value();
                self.missing = value_len;
                self.changes.push(change);
                Ok(None)
            }
            IpcReply::ValuePart(part) if !part.is_empty() && part.len() as u64 <= self.missing => {
                self.missing -= part.len() as u64;
                self.value.extend(part);
                Ok(None)
            }
            IpcReply::Commit(position) if self.missing == 0 => {
                self.finish_value();
                Ok(Some(CommittedChanges { position, changes: std::mem::take(&mut self.changes) }))
            }
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Gives the last change its value.
    fn finish_value(&mut self) {
        let bytes = std::mem::take(&mut self.value);
        if let Some(Change { kind: ChangeKind::Put { value, .. }, .. }) = self.changes.last_mut() {
            *value = ChangeValue::from_bytes(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, value_len: u64) -> IpcReply {
        let value = ChangeValue::from_bytes(Vec::new());
        let kind = ChangeKind::Put { key: key.into(), value, expires_at: None };
        IpcReply::Change(Change { keyspace: "users".into(), kind }, value_len)
    }

    fn end() -> IpcReply {
        IpcReply::Commit(format!("{:032x}-7", 1).parse().unwrap())
    }

    #[test]
    fn values_are_complete() {
        let mut commit = ReceivedCommit::default();
        let part = |bytes: &str| IpcReply::ValuePart(bytes.into());
        for reply in [put("a", 5), part("by"), part("ron"), put("b", 0), put("c", 1), part("x")] {
            assert!(commit.add(reply).unwrap().is_none());
        }
        let values =
            commit.add(end()).unwrap().unwrap().changes.into_iter().map(|change| match change.kind {
                ChangeKind::Put { value, .. } => value.read().unwrap(),
                other => panic!("{other:?}"),
            });
        assert_eq!(values.collect::<Vec<_>>(), [&b"byron"[..], b"", b"x"]);
        assert!(commit.add(end()).unwrap().unwrap().changes.is_empty(), "the next commit begins empty");
    }

    #[test]
    fn messages_that_do_not_fit_are_refused() {
        let mut commit = ReceivedCommit::default();
        assert!(commit.add(IpcReply::ValuePart(vec![1])).is_err(), "no value is expected");
        assert!(commit.add(put("a", 2)).unwrap().is_none());
        for reply in [put("b", 0), end(), IpcReply::ValuePart(vec![1; 3]), IpcReply::Done] {
            assert!(commit.add(reply).is_err());
        }
    }
}
