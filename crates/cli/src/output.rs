//! # Output: styles, terminals, time
//!
//! Colour only where a person looks; progress on stderr only, and only if that is a terminal.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use indicatif::{ProgressBar, ProgressStyle};

use crate::streams::Stdout;

/// Errors and damage.
pub(crate) const CAUTION: Style = AnsiColor::Red.on_default().bold();
/// Hints and asides.
pub(crate) const HINT: Style = Style::new().dimmed();
/// Headings.
pub(crate) const HEADING: Style = Style::new().bold();
/// What is good.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default().bold();
/// Keys and names.
pub(crate) const NAME: Style = AnsiColor::Cyan.on_default();

/// Bytes that are gathered before they are written.
const GATHERED: usize = 1 << 16;
/// What was dropped without being flushed: an error came up.
static LEFT: Mutex<Vec<u8>> = Mutex::new(Vec::new());
/// Whether anything was written.
static HAS_WRITTEN: AtomicBool = AtomicBool::new(false);

/// Stdout for data: buffered, byte for byte. Flush it: a drop would swallow the error.
pub(crate) struct Output {
    gathered: Vec<u8>,
    out: Stdout,
}

/// Stdout for data.
pub(crate) fn stdout() -> Output {
    Output { gathered: Vec::new(), out: Stdout::lock() }
}

impl Output {
    fn pass_on(&mut self) -> io::Result<()> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        HAS_WRITTEN.store(true, Ordering::Relaxed);
        let gathered = std::mem::take(&mut self.gathered);
        self.out.write_all(&gathered)
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.gathered.len() + bytes.len() > GATHERED {
            self.pass_on()?;
        }
        self.gathered.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.pass_on()?;
        self.out.flush()
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        LEFT.lock().unwrap_or_else(PoisonError::into_inner).append(&mut self.gathered);
    }
}

/// Forgets what was not written yet, so that a verb can begin anew. False if something was written.
pub(crate) fn forget() -> bool {
    LEFT.lock().unwrap_or_else(PoisonError::into_inner).clear();
    !HAS_WRITTEN.load(Ordering::Relaxed)
}

/// Writes what was left by an error: it was printed before that.
pub(crate) fn end() {
    let left = std::mem::take(&mut *LEFT.lock().unwrap_or_else(PoisonError::into_inner));
    if !left.is_empty() {
        let mut out = Stdout::lock();
        let _ = out.write_all(&left).and_then(|()| out.flush()); // the error that it is behind is told
    }
}

/// Says a line on stderr. Without a reader there, nothing is said and nothing fails.
pub(crate) fn say(line: impl std::fmt::Display) {
    let _ = writeln!(anstream::stderr(), "{line}");
}

/// Whether a person looks at stdout.
pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// The style if stdout takes colour, else none.
pub(crate) fn on_stdout(style: Style) -> Style {
    match AutoStream::choice(&io::stdout()) {
        ColorChoice::Never => Style::new(),
        _ => style,
    }
}

/// A bar over `total` bytes.
pub(crate) fn byte_bar(what: &'static str, total: u64) -> ProgressBar {
    bar(ProgressBar::new(total), what, "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
}

/// A bar over `total` pairs.
pub(crate) fn pair_bar(what: &'static str, total: u64) -> ProgressBar {
    bar(ProgressBar::new(total), what, "{msg} {wide_bar} {human_pos}/{human_len} pairs {per_sec} {eta}")
}

/// A turning sign for work of unknown length. It turns by itself.
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

/// A watch that runs from its making.
pub(crate) struct Watch(Instant);

impl Watch {
    #[expect(clippy::disallowed_methods, reason = "a figure for the user; no decision rests on it")]
    pub(crate) fn start() -> Watch {
        Watch(Instant::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Bytes that this process has had written to devices so far, as the kernel counts them; none where it does not.
pub(crate) fn written() -> Option<u64> {
    let io = std::fs::read_to_string("/proc/self/io").ok()?;
    io.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.parse().ok())
}

/// A duration for people.
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
