//! # Memory by the machine's own instructions
//!
//! `clwb` where there is one, else `clflushopt`, else `clflush`; then `sfence`. Which of them make
//! bytes outlive the power is the memory's business: on common memory this is a test of the
//! instructions and nothing else.
//!
//! ## Invariants
//!
//! 1. The buffer belongs to the value; it is written under `writing`, one store at a time, and read
//!    by copies under the same lock.

use sheaf_base::sync::Mutex;
use sheaf_base::sync::atomic::{AtomicU64, Ordering};

use super::{FlushCounts, LINE_BYTES, PersistentMemory, line_range};

/// How a line is written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushInstruction {
    /// `clwb`: writes back, keeps the line.
    Clwb,
    /// `clflushopt`: writes back and drops the line.
    Clflushopt,
    /// `clflush`: the same, one after the other.
    Clflush,
}

impl FlushInstruction {
    /// The best this processor has; `None` if it has none that we know.
    #[must_use]
    pub fn best() -> Option<FlushInstruction> {
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
                () if more & CLWB != 0 => Some(FlushInstruction::Clwb),
                () if more & CLFLUSHOPT != 0 => Some(FlushInstruction::Clflushopt),
                () if __cpuid(1).edx & CLFLUSH != 0 => Some(FlushInstruction::Clflush),
                () => None,
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        None
    }
}

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct CacheLine([u8; LINE_BYTES]);

/// Memory of this process, written back line by line.
#[derive(Debug)]
pub struct MappedPmem {
    bytes: Mutex<Box<[CacheLine]>>,
    flush: FlushInstruction,
    lines: AtomicU64,
    fences: AtomicU64,
    unfenced_lines: AtomicU64,
}

impl MappedPmem {
    /// `len` bytes, rounded up to lines. `None` where the processor cannot write lines back.
    #[must_use]
    pub fn new(len: usize) -> Option<MappedPmem> {
        Some(MappedPmem {
            bytes: Mutex::new(vec![CacheLine([0; LINE_BYTES]); len.div_ceil(LINE_BYTES)].into_boxed_slice()),
            flush: FlushInstruction::best()?,
            lines: AtomicU64::new(0),
            fences: AtomicU64::new(0),
            unfenced_lines: AtomicU64::new(0),
        })
    }
}

/// Writes the line back that holds `line`.
#[cfg(target_arch = "x86_64")]
fn write_back(line: &CacheLine, how: FlushInstruction) {
    let at = line.0.as_ptr();
    match how {
        // SAFETY:
        // * The processor has the instruction: `FlushInstruction::best` looked. The address is that
        //   of a live reference; memory as programs see it does not change.
        FlushInstruction::Clwb => unsafe { std::arch::asm!("clwb [{}]", in(reg) at, options(nostack)) },
        // SAFETY:
        // * As above.
        FlushInstruction::Clflushopt => unsafe {
            std::arch::asm!("clflushopt [{}]", in(reg) at, options(nostack))
        },
        // SAFETY:
        // * As above.
        FlushInstruction::Clflush => unsafe { std::arch::asm!("clflush [{}]", in(reg) at, options(nostack)) },
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn write_back(_line: &CacheLine, _how: FlushInstruction) {}

/// Waits for the write-backs before it.
fn store_fence() {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY:
        // * Every x86-64 processor has SSE, and with it the instruction.
        unsafe { std::arch::x86_64::_mm_sfence() }
    }
}

impl PersistentMemory for MappedPmem {
    fn len(&self) -> usize {
        self.bytes.lock().len() * LINE_BYTES
    }

    fn load(&self, at: usize, bytes: &mut [u8]) {
        let own = self.bytes.lock();
        for (offset, byte) in bytes.iter_mut().enumerate() {
            *byte = own[(at + offset) / LINE_BYTES].0[(at + offset) % LINE_BYTES];
        }
    }

    fn store(&self, at: usize, bytes: &[u8]) {
        let mut own = self.bytes.lock();
        for (offset, byte) in bytes.iter().enumerate() {
            own[(at + offset) / LINE_BYTES].0[(at + offset) % LINE_BYTES] = *byte;
        }
    }

    fn flush(&self, at: usize, len: usize) {
        let own = self.bytes.lock();
        for line in line_range(at, len) {
            write_back(&own[line], self.flush);
            self.lines.fetch_add(1, Ordering::Relaxed);
            self.unfenced_lines.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn fence(&self) {
        store_fence();
        let waited = self.unfenced_lines.swap(0, Ordering::Relaxed) > 0;
        self.fences.fetch_add(u64::from(waited), Ordering::Relaxed);
    }

    fn flush_counts(&self) -> FlushCounts {
        FlushCounts { lines: self.lines.load(Ordering::Relaxed), fences: self.fences.load(Ordering::Relaxed) }
    }
}
