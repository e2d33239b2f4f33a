//! # Output: styles, terminals, time
//!
//! Colour is used only on a terminal. Progress bars appear only on stderr, if it is a terminal.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use indicatif::{ProgressBar, ProgressStyle};

use crate::streams::Stdout;

/// Style of errors and damage.
pub(crate) const CAUTION: Style = AnsiColor::Red.on_default().bold();
/// Style of hints and secondary texts.
pub(crate) const HINT: Style = Style::new().dimmed();
/// Style of headings.
pub(crate) const HEADING: Style = Style::new().bold();
/// Style of good results.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default().bold();
/// Style of keys and names.
pub(crate) const NAME: Style = AnsiColor::Cyan.on_default();

/// Bytes that are buffered before they are written.
const BUFFER_BYTES: usize = 1 << 16;
/// Output that was dropped without a flush, after an error.
static UNWRITTEN: Mutex<Vec<u8>> = Mutex::new(Vec::new());
/// Whether anything was written to stdout.
static HAS_WRITTEN: AtomicBool = AtomicBool::new(false);

/// Buffered stdout for data. The caller must flush it: a drop does not report errors.
pub(crate) struct Output {
    buffer: Vec<u8>,
    out: Stdout,
}

/// Returns stdout for data.
pub(crate) fn stdout() -> Output {
    Output { buffer: Vec::new(), out: Stdout::lock() }
}

impl Output {
    fn write_buffer(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        HAS_WRITTEN.store(true, Ordering::Relaxed);
        let gathered = std::mem::take(&mut self.buffer);
        self.out.write_all(&gathered)
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.len() + bytes.len() > BUFFER_BYTES {
            self.write_buffer()?;
        }
        self.buffer.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_buffer()?;
        self.out.flush()
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        UNWRITTEN.lock().unwrap_or_else(PoisonError::into_inner).append(&mut self.buffer);
    }
}

/// Discards output that was not written yet, so that a verb can start again. Returns false if some
/// output was written already.
pub(crate) fn discard_unwritten() -> bool {
    UNWRITTEN.lock().unwrap_or_else(PoisonError::into_inner).clear();
    !HAS_WRITTEN.load(Ordering::Relaxed)
}

/// Writes the output that was buffered before an error.
pub(crate) fn write_unwritten() {
    let left = std::mem::take(&mut *UNWRITTEN.lock().unwrap_or_else(PoisonError::into_inner));
    if !left.is_empty() {
        let mut out = Stdout::lock();
        // The failure that dropped this output is reported.
        let _ = out.write_all(&left).and_then(|()| out.flush());
    }
}

/// Prints a line on stderr. Ignores errors, such as a closed stderr.
pub(crate) fn print_message(line: impl std::fmt::Display) {
    let _ = writeln!(anstream::stderr(), "{line}");
}

/// Returns true if stdout is a terminal.
pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Returns `style` if stdout accepts colour, otherwise no style.
pub(crate) fn on_stdout(style: Style) -> Style {
    match AutoStream::choice(&io::stdout()) {
        ColorChoice::Never => Style::new(),
        _ => style,
    }
}

/// Returns a progress bar over `total` bytes.
pub(crate) fn byte_bar(what: &'static str, total: u64) -> ProgressBar {
    bar(ProgressBar::new(total), what, "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
}

/// Returns a progress bar over `total` pairs.
pub(crate) fn pair_bar(what: &'static str, total: u64) -> ProgressBar {
    bar(ProgressBar::new(total), what, "{msg} {wide_bar} {human_pos}/{human_len} pairs {per_sec} {eta}")
}

/// Returns a spinner for work of unknown length. It turns without further calls.
pub(crate) fn spinner(what: &'static str) -> ProgressBar {
    let bar = bar(ProgressBar::new_spinner(), what, "{spinner} {msg} {elapsed}");
    if !bar.is_hidden() {
        bar.enable_steady_tick(Duration::from_millis(100));
    }
    bar
}

fn bar(bar: ProgressBar, what: &'static str, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("the templates above are well formed");
    bar.with_style(style).with_message(what)
}

/// Stopwatch that runs from its creation.
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "printed for the user; no decision depends on it")]
    pub(crate) fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Returns the bytes that this process has written to devices, as counted by the kernel; `None` if
/// the kernel does not count them.
pub(crate) fn device_bytes_written() -> Option<u64> {
    let io = std::fs::read_to_string("/proc/self/io").ok()?;
    io.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.parse().ok())
}

/// Formats a duration.
pub(crate) fn time(took: Duration) -> String {
    let seconds = took.as_secs_f64();
    match seconds {
        s if s >= 10.0 => format!("{s:.0} s"),
        s if s >= 1.0 => format!("{s:.1} s"),
        s if s >= 0.01 => format!("{:.0} ms", s * 1e3),
        s if s >= 0.001 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.0} µs", s * 1e6),
    }
}
