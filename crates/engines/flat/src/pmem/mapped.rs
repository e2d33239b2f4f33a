//! # Memory by the machine's own instructions
//!
//! `clwb` where there is one, else `clflushopt`, else `clflush`; then `sfence`. Which of them make bytes outlive the power is
//! the memory's business: on common memory this is a test of the instructions and nothing else.
//!
//! ## Invariants
//!
//! 1. The buffer belongs to the value; it is written under `writing`, one store at a time, and read by copies
//!    under the same lock.

use sheaf_base::sync::Mutex;
use sheaf_base::sync::atomic::{AtomicU64, Ordering};

use super::{LINE, Lines, Told, lines};

/// How a line is written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// `clwb`: writes back, keeps the line.
    WriteBack,
    /// `clflushopt`: writes back and drops the line.
    Optimised,
    /// `clflush`: the same, one after the other.
    Plain,
}

impl Flush {
    /// The best this processor has; `None` if it has none that we know.
    #[must_use]
    pub fn best() -> Option<Flush> {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{__cpuid, __cpuid_count};
            /// Leaf 7, EBX.
            const CLFLUSHOPT: u32 = 1 << 23;
            const CLWB: u32 = 1 << 24;
            /// Leaf 1, EDX.
            const CLFLUSH: u32 = 1 << 19;
            let most = __cpuid(0).eax;
            let more = if most >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
            match () {
                () if more & CLWB != 0 => Some(Flush::WriteBack),
                () if more & CLFLUSHOPT != 0 => Some(Flush::Optimised),
                () if __cpuid(1).edx & CLFLUSH != 0 => Some(Flush::Plain),
                () => None,
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        None
    }
}

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; LINE]);

/// Memory of this process, written back line by line.
#[derive(Debug)]
pub struct Mapped {
    bytes: Mutex<Box<[Line]>>,
    flush: Flush,
    lines: AtomicU64,
    fences: AtomicU64,
    waiting: AtomicU64,
}

impl Mapped {
    /// `len` bytes, rounded up to lines. `None` where the processor cannot write lines back.
    #[must_use]
    pub fn new(len: usize) -> Option<Mapped> {
        Some(Mapped {
            bytes: Mutex::new(vec![Line([0; LINE]); len.div_ceil(LINE)].into_boxed_slice()),
            flush: Flush::best()?,
            lines: AtomicU64::new(0),
            fences: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
        })
    }
}

/// Writes the line back that holds `line`.
#[cfg(target_arch = "x86_64")]
fn write_back(line: &Line, how: Flush) {
    let at = line.0.as_ptr();
    match how {
        // SAFETY:
        // * The processor has the instruction: `Flush::best` looked. The address is that of a live reference; memory
        //   as programs see it does not change.
        Flush::WriteBack => unsafe { std::arch::asm!("clwb [{}]", in(reg) at, options(nostack)) },
        // SAFETY:
        // * As above.
        Flush::Optimised => unsafe { std::arch::asm!("clflushopt [{}]", in(reg) at, options(nostack)) },
        // SAFETY:
        // * As above.
        Flush::Plain => unsafe { std::arch::asm!("clflush [{}]", in(reg) at, options(nostack)) },
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn write_back(_line: &Line, _how: Flush) {}

/// Waits for the write-backs before it.
fn store_fence() {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY:
        // * Every x86-64 processor has SSE, and with it the instruction.
        unsafe { std::arch::x86_64::_mm_sfence() }
    }
}

impl Lines for Mapped {
    fn len(&self) -> usize {
        self.bytes.lock().len() * LINE
    }

    fn load(&self, at: usize, bytes: &mut [u8]) {
        let own = self.bytes.lock();
        for (offset, byte) in bytes.iter_mut().enumerate() {
            *byte = own[(at + offset) / LINE].0[(at + offset) % LINE];
        }
    }

    fn store(&self, at: usize, bytes: &[u8]) {
        let mut own = self.bytes.lock();
        for (offset, byte) in bytes.iter().enumerate() {
            own[(at + offset) / LINE].0[(at + offset) % LINE] = *byte;
        }
    }

    fn flush(&self, at: usize, len: usize) {
        let own = self.bytes.lock();
        for line in lines(at, len) {
            write_back(&own[line], self.flush);
            self.lines.fetch_add(1, Ordering::Relaxed);
            self.waiting.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn fence(&self) {
        store_fence();
        let waited = self.waiting.swap(0, Ordering::Relaxed) > 0;
        self.fences.fetch_add(u64::from(waited), Ordering::Relaxed);
    }

    fn told(&self) -> Told {
        Told { lines: self.lines.load(Ordering::Relaxed), fences: self.fences.load(Ordering::Relaxed) }
    }
}
