//! # Mapped memory: write-back by the instructions of the machine
//!
//! Uses `clwb` if the processor has it, otherwise `clflushopt` or `clflush`; then `sfence`. Whether
//! the bytes then survive a power cut depends on the memory. On common memory this only tests the
//! instructions.
//!
//! ## Invariants
//!
//! 1. The value owns its buffer. The buffer is written and read only under the lock of `bytes`, by
//!    one call at a time.

use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicU64, Ordering};

use super::{FlushCounts, LINE_BYTES, PersistentMemory, line_range};

/// Instruction that writes a line back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushInstruction {
    /// `clwb`: writes the line back and keeps it.
    Clwb,
    /// `clflushopt`: writes the line back and evicts it.
    Clflushopt,
    /// `clflush`: writes the line back and evicts it, one line after the other.
    Clflush,
}

impl FlushInstruction {
    /// Returns the best instruction of this processor, or `None` if it has none of them.
    #[must_use]
    pub fn best() -> Option<FlushInstruction> {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{__cpuid, __cpuid_count};
            /// Bits of leaf 7, EBX.
            const CLFLUSHOPT: u32 = 1 << 23;
            const CLWB: u32 = 1 << 24;
            /// Bit of leaf 1, EDX.
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

/// Memory of this process that is written back line by line.
#[derive(Debug)]
pub struct MappedPmem {
    bytes: Mutex<Box<[CacheLine]>>,
    flush: FlushInstruction,
    lines: AtomicU64,
    fences: AtomicU64,
    unfenced_lines: AtomicU64,
}

impl MappedPmem {
    /// Returns memory of `len` bytes, rounded up to lines. Returns `None` if the processor cannot
    /// write lines back.
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

/// Writes back the line `line`.
#[cfg(target_arch = "x86_64")]
fn write_back(line: &CacheLine, how: FlushInstruction) {
    let at = line.0.as_ptr();
    match how {
        // SAFETY:
        // * The processor has the instruction: `FlushInstruction::best` checked it.
        // * The address is that of a live reference, and the instruction does not change the memory
        //   that programs see.
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
        // * Every x86-64 processor has SSE, and thus this instruction.
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
