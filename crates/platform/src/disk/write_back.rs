//! # Write-back: instructions that move cache lines to the memory
//!
//! A store to persistent memory is durable once its cache line has left the caches of the
//! processor, and a fence has waited for that (FlatStore, §2.3). x86-64, and aarch64 with Linux,
//! have instructions for it. Every other target has none, and [`FlushInstruction::best`] says so.
//! Only Linux has mappings to which they apply.
//!
//! ## Costs
//!
//! One instruction per line of [`LINE_BYTES`] bytes, and one per fence. No system call.

#[cfg(target_os = "linux")]
use std::ops::Range;

/// Number of bytes that are written back together.
pub const LINE_BYTES: u64 = 64;

/// Instruction that writes a line back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlushInstruction {
    /// `clwb`: writes the line back and keeps it.
    Clwb,
    /// `clflushopt`: writes the line back and evicts it.
    Clflushopt,
    /// `clflush`: writes the line back and evicts it, one line after the other.
    Clflush,
    /// `dc cvap` of aarch64: cleans the line to the point of persistence.
    DcCvap,
}

impl FlushInstruction {
    /// Returns the best instruction of this processor, or `None` if it has none of them.
    #[must_use]
    pub fn best() -> Option<FlushInstruction> {
        #[cfg(target_arch = "x86_64")]
        return best_of_x86();
        #[cfg(all(target_arch = "aarch64", target_os = "linux"))]
        return best_of_aarch64();
        #[cfg(not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_os = "linux"))))]
        None
    }

    /// Starts to write back the lines that contain `bytes`. [`fence`] waits for them.
    ///
    /// # Safety
    ///
    /// * The processor must have the instruction.
    /// * The lines from that of `bytes.start` to that of the last byte must be mapped and readable.
    #[cfg(target_os = "linux")]
    pub(super) unsafe fn write_back(self, bytes: Range<*const u8>) {
        let mut line = bytes.start.wrapping_sub(bytes.start.addr() % LINE_STEP);
        while line < bytes.end {
            // SAFETY:
            // * The caller promises the instruction, and that the line is mapped.
            unsafe { self.write_line_back(line) };
            line = line.wrapping_add(LINE_STEP);
        }
    }

    /// Writes back the line at `line`.
    ///
    /// # Safety
    ///
    /// * The processor must have the instruction, and `line` must be mapped and readable.
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    unsafe fn write_line_back(self, line: *const u8) {
        use std::arch::asm;
        match self {
            // SAFETY:
            // * The caller promises the instruction and the mapping. The instruction does not
            //   change the memory that programs see.
            FlushInstruction::Clwb => unsafe { asm!("clwb [{}]", in(reg) line, options(nostack)) },
            // SAFETY:
            // * As above.
            FlushInstruction::Clflushopt => unsafe {
                asm!("clflushopt [{}]", in(reg) line, options(nostack));
            },
            // SAFETY:
            // * As above.
            FlushInstruction::Clflush => unsafe { asm!("clflush [{}]", in(reg) line, options(nostack)) },
            FlushInstruction::DcCvap => unreachable!("an instruction of another processor"),
        }
    }

    /// Writes back the line at `line`.
    ///
    /// # Safety
    ///
    /// * The processor must have the instruction, and `line` must be mapped and readable.
    #[cfg(all(target_os = "linux", target_arch = "aarch64"))]
    unsafe fn write_line_back(self, line: *const u8) {
        // `dc cvap` by its number, since an assembler for the base architecture rejects the name.
        // SAFETY:
        // * The caller promises the instruction and the mapping. The instruction does not change
        //   the memory that programs see.
        unsafe { std::arch::asm!("sys #3, c7, c12, #1, {}", in(reg) line, options(nostack)) }
    }

    /// Panics: [`FlushInstruction::best`] finds no instruction on this target.
    ///
    /// # Safety
    ///
    /// * None: the call accesses no memory.
    #[cfg(all(target_os = "linux", not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    unsafe fn write_line_back(self, _line: *const u8) {
        unreachable!("a target without an instruction");
    }
}

/// Distance of the write-backs. Lines of x86-64 have 64 bytes. The architecture of ARM permits
/// shorter ones, down to 16 bytes. A line that is written back twice costs time only.
#[cfg(target_os = "linux")]
const LINE_STEP: usize = if cfg!(target_arch = "aarch64") { 16 } else { 64 };

/// Waits until the lines that this thread wrote back before are durable.
#[cfg(target_os = "linux")]
pub(super) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY:
    // * Every x86-64 processor has SSE, and thus this instruction.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY:
    // * The barrier exists on every processor and accesses no memory.
    unsafe {
        std::arch::asm!("dsb sy", options(nostack));
    }
}

#[cfg(target_arch = "x86_64")]
fn best_of_x86() -> Option<FlushInstruction> {
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

#[cfg(all(target_arch = "aarch64", target_os = "linux"))]
fn best_of_aarch64() -> Option<FlushInstruction> {
    /// `HWCAP_DCPOP`: the kernel permits `dc cvap` to programs.
    const DCPOP: libc::c_ulong = 1 << 16;
    // SAFETY:
    // * The call has no conditions.
    let has_it = unsafe { libc::getauxval(libc::AT_HWCAP) } & DCPOP != 0;
    has_it.then_some(FlushInstruction::DcCvap)
}
