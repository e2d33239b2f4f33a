//! # Scan: iterator over the pairs, keys or values of a range
//!
//! Reads pairs in groups, so that one release of the GIL serves many of them. The first group has 4
//! pairs and each further one twice as many, up to 512: a short scan reads few pairs in vain.
//!
//! ## Invariants
//!
//! 1. A group ends after [`GROUP_BYTES`], so a scan of large values holds one of them at a time.
//! 2. An error is raised after the pairs that were read before it.

use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use sheaf::{Error, Iter};

use crate::shared::{Shared, lock, refuse_pickle};

const FIRST_GROUP: usize = 4;
const LARGEST_GROUP: usize = 512;
const GROUP_BYTES: usize = 64 << 10;

/// Part of a pair that a scan returns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Pairs,
    Keys,
    Values,
}

impl Part {
    /// Returns the part with a number: 0 for pairs, 1 for keys, 2 for values.
    pub(crate) fn from_number(number: u8) -> Part {
        match number {
            1 => Part::Keys,
            2 => Part::Values,
            _ => Part::Pairs,
        }
    }
}

struct ScanState {
    iter: Option<Iter>,
    /// Keys and values of the group, one after the other.
    bytes: Vec<u8>,
    /// Lengths of key and value of each pair of the group.
    lengths: Vec<(usize, usize)>,
    next_pair: usize,
    next_byte: usize,
    group: usize,
    failure: Option<Error>,
}

impl ScanState {
    /// Reads the next group.
    fn read_group(&mut self, part: Part, is_reverse: bool) {
        self.lengths.clear();
        if self.bytes.capacity() > 4 * GROUP_BYTES {
            self.bytes = Vec::new();
        }
        self.bytes.clear();
        (self.next_pair, self.next_byte) = (0, 0);
        let Some(iter) = &mut self.iter else { return };
        let (bytes, lengths) = (&mut self.bytes, &mut self.lengths);
        while lengths.len() < self.group && bytes.len() < GROUP_BYTES {
            let read = |key: &[u8], value: &[u8]| {
                let key = if part == Part::Values { &[] } else { key };
                let value = if part == Part::Keys { &[] } else { value };
                bytes.extend_from_slice(key);
                bytes.extend_from_slice(value);
                lengths.push((key.len(), value.len()));
            };
            match if is_reverse { iter.next_back_with(read) } else { iter.next_with(read) } {
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    self.failure = Some(error);
                    break;
                }
                None => {
                    self.iter = None;
                    break;
                }
            }
        }
        self.group = (self.group * 2).min(LARGEST_GROUP);
    }

    /// Returns the next pair of the group as a Python object.
    fn take<'py>(&mut self, py: Python<'py>, part: Part) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(&(key_len, value_len)) = self.lengths.get(self.next_pair) else { return Ok(None) };
        let (key, rest) = self.bytes[self.next_byte..].split_at(key_len);
        let value = &rest[..value_len];
        self.next_pair += 1;
        self.next_byte += key_len + value_len;
        let item = match part {
            Part::Keys => PyBytes::new(py, key).into_any(),
            Part::Values => PyBytes::new(py, value).into_any(),
            Part::Pairs => PyTuple::new(py, [PyBytes::new(py, key), PyBytes::new(py, value)])?.into_any(),
        };
        Ok(Some(item))
    }
}

/// Iterator over one range of a keyspace, as of the moment of its creation.
#[pyclass(frozen, module = "sheaf._sheaf")]
pub(crate) struct Scan {
    state: Mutex<ScanState>,
    part: Part,
    is_reverse: bool,
    shared: Arc<Shared>,
}

impl Scan {
    pub(crate) fn new(iter: Iter, part: Part, is_reverse: bool, shared: Arc<Shared>) -> Scan {
        let state = ScanState {
            iter: Some(iter),
            bytes: Vec::new(),
            lengths: Vec::new(),
            next_pair: 0,
            next_byte: 0,
            group: FIRST_GROUP,
            failure: None,
        };
        Scan { state: Mutex::new(state), part, is_reverse, shared }
    }

    fn next<'py>(&self, py: Python<'py>, state: &mut ScanState) -> PyResult<Option<Bound<'py, PyAny>>> {
        if let Some(item) = state.take(py, self.part)? {
            return Ok(Some(item));
        }
        if state.failure.is_none() && state.iter.is_some() {
            let (part, is_reverse) = (self.part, self.is_reverse);
            let reading: &mut ScanState = state;
            py.detach(|| reading.read_group(part, is_reverse));
            if let Some(item) = state.take(py, self.part)? {
                return Ok(Some(item));
            }
        }
        match state.failure.take() {
            Some(error) => Err(self.shared.exception(py, &error)),
            None => Ok(None),
        }
    }
}

#[pymethods]
impl Scan {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.shared.open(py)?;
        let mut state = lock(py, &self.state);
        self.next(py, &mut state)
    }

    /// Return a list of the next items, at most `count`.
    fn take<'py>(&self, py: Python<'py>, count: usize) -> PyResult<Bound<'py, PyList>> {
        self.shared.open(py)?;
        let mut state = lock(py, &self.state);
        let items = PyList::empty(py);
        while items.len() < count
            && let Some(item) = self.next(py, &mut state)?
        {
            items.append(item)?;
        }
        Ok(items)
    }

    /// Free the state that the iterator pins. Further calls return no item.
    fn close(&self, py: Python<'_>) {
        if self.shared.is_forked() {
            return; // another thread of the parent may have held the lock
        }
        let mut state = lock(py, &self.state);
        let iter = state.iter.take();
        state.lengths.clear();
        state.failure = None;
        drop(state);
        py.detach(|| drop(iter));
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(refuse_pickle("iterator"))
    }
}
