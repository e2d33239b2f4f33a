//! # Key list: complete keys in order, each with an item
//!
//! Holds the content of a node while it is built.

/// List of keys with items. The keys are stored one after the other in one buffer.
#[derive(Debug)]
pub(super) struct KeyList<T> {
    bytes: Vec<u8>,
    items: Vec<(usize, T)>,
}

impl<T> Default for KeyList<T> {
    fn default() -> KeyList<T> {
        KeyList { bytes: Vec::new(), items: Vec::new() }
    }
}

impl<T: Copy> KeyList<T> {
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns a copy of the items `from..to`.
    pub(super) fn slice(&self, from: usize, to: usize) -> KeyList<T> {
        let mut part = KeyList::default();
        (from..to).for_each(|index| part.push(self.key(index), self.items[index].1));
        part
    }

    /// Returns the total number of bytes of all keys.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.items.clear();
    }

    /// Adds the key that `spell` appends to the buffer.
    pub(super) fn push_with(&mut self, item: T, spell: impl FnOnce(&mut Vec<u8>)) {
        spell(&mut self.bytes);
        self.items.push((self.bytes.len(), item));
    }

    pub(super) fn push(&mut self, key: &[u8], item: T) {
        self.push_with(item, |bytes| bytes.extend_from_slice(key));
    }

    /// Appends all keys of `other`.
    pub(super) fn append(&mut self, other: &KeyList<T>) {
        other.iter().for_each(|(key, item)| self.push(key, item));
    }

    pub(super) fn key(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.items[before].0);
        &self.bytes[start..self.items[index].0]
    }

    pub(super) fn item(&self, index: usize) -> T {
        self.items[index].1
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], T)> {
        (0..self.len()).map(|index| (self.key(index), self.item(index)))
    }
}
