//! # Root: the top node of a state and its totals

/// Root of a state of a tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct TreeRoot {
    pub(super) id: u32,
    /// Number of levels; 1 if the root is a leaf.
    pub(super) height: usize,
    pub(super) len: u64,
    pub(super) entries: u64,
}

/// Defines the methods that return the totals of a type with a field `root`.
macro_rules! impl_totals {
    ($tree:ident) => {
        impl<T: TreeItem> $tree<T> {
            /// Returns the length of the address space.
            #[must_use]
            pub fn len(&self) -> u64 {
                self.root.len
            }

            /// Returns true if the address space has no bytes.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.root.len == 0
            }

            /// Returns the number of entries.
            #[must_use]
            pub fn entries(&self) -> u64 {
                self.root.entries
            }
        }
    };
}
pub(super) use impl_totals;
