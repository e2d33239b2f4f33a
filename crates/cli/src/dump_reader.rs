//! # Lines: parser of the text that `load` reads, in bounded memory
//!
//! Reads fields and values of docs/format/dump.md, checks the frame of a dump, and holds at most
//! one key and [`CHUNK_BYTES`] bytes of a value in memory.
//!
//! ## Invariants
//!
//! 1. A field is read up to a limit of raw bytes, for any input.
//! 2. [`DumpReader::next`] returns the end of the input only if the input is complete: each frame
//!    that a first line announced has its last line, with the right number of lines and checksum.

use std::io::{self, BufRead, Read};
use std::time::{Duration, UNIX_EPOCH};

use indicatif::ProgressBar;
use sheaf::Expiry;

use crate::text_format::{many, unescape_part};

/// First line of a dump.
pub(crate) const DUMP_HEADER: &str = "#sheaf-dump 1";
/// First line of a dump whose lines have an expiry time between key and value.
pub(crate) const EXPIRY_DUMP_HEADER: &str = "#sheaf-dump 2";
/// Field of a pair that never expires.
pub(crate) const NEVER: &str = "-";
/// Raw bytes of the longest expiry time.
const MAX_RAW_EXPIRY: usize = 20;
/// Start of a first line of any version.
const DUMP_HEADER_PREFIX: &[u8] = b"#sheaf-dump";
/// Start of the last line of a dump.
const DUMP_TRAILER: &str = "#end";
/// Raw bytes of a value that are read at a time.
const CHUNK_BYTES: usize = 1 << 20;
/// Raw bytes of the longest key: each byte may be written as four.
const MAX_RAW_KEY: usize = 4 * sheaf::MAX_KEY;

/// Returns the last line of a dump of `lines` lines with this checksum, without LF.
pub(crate) fn last_line(lines: u64, sum: u32) -> String {
    format!("{DUMP_TRAILER} {lines} {sum:08x}")
}

/// Reason why a line cannot be loaded.
#[derive(Debug)]
pub(crate) enum LineError {
    /// The input could not be read.
    Read(io::Error),
    /// The present line is wrong.
    Line(String),
    /// The input ends without the last line of a dump.
    Truncated(String),
    /// The content of a dump does not match its last line.
    Changed(String),
}

type Result<T, E = LineError> = std::result::Result<T, E>;

/// End of a piece of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldEnd {
    Tab,
    Line,
    Input,
    /// The limit was reached first.
    Full,
}

/// Pair with its whole value, or with the first piece of it.
#[derive(Debug)]
pub(crate) struct InputPair {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    /// Expiry time, if the dump has times.
    pub(crate) expiry: Option<Expiry>,
    /// [`DumpReader::rest`] returns the rest of the value.
    pub(crate) has_rest: bool,
}

/// Reader of the lines of an input.
pub(crate) struct DumpReader<'a> {
    input: Box<dyn BufRead + 'a>,
    bar: ProgressBar,
    is_plain_text: bool,
    /// Number of the current line, from 1.
    number: u64,
    /// Number of pair lines in the current frame and their checksum; `None` outside of a frame.
    frame: Option<(u64, u32)>,
    /// The lines of the current frame have expiry times.
    has_times: bool,
    /// A frame has ended: only another frame may follow.
    is_after_frame: bool,
    /// The last line had no LF.
    lacks_final_newline: bool,
    /// Raw bytes of the current value that were read but not yet decoded.
    raw: Vec<u8>,
}

impl<'a> DumpReader<'a> {
    /// Returns a reader of `input`, which is plain text if `is_plain_text`.
    pub(crate) fn new(input: Box<dyn BufRead + 'a>, bar: ProgressBar, is_plain_text: bool) -> DumpReader<'a> {
        let (frame, raw) = (None, Vec::new());
        DumpReader {
            input,
            bar,
            is_plain_text,
            number: 0,
            frame,
            has_times: false,
            is_after_frame: false,
            lacks_final_newline: false,
            raw,
        }
    }

    /// Returns true if the input has no bytes.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be read.
    pub(crate) fn is_empty(&mut self) -> io::Result<bool> {
        Ok(self.input.fill_buf()?.is_empty())
    }

    /// Returns the number of the current line, from 1.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Returns true if the input has no frame and ended without LF.
    pub(crate) fn lacks_final_newline(&self) -> bool {
        self.lacks_final_newline
    }

    /// Returns the next pair, or `None` at the end of a complete input.
    ///
    /// # Errors
    ///
    /// Returns a [`LineError`].
    pub(crate) fn next(&mut self) -> Result<Option<InputPair>> {
        loop {
            self.number += 1;
            let mut key = Vec::new();
            if self.is_plain_text {
                key.extend_from_slice(format!("{:010}", self.number).as_bytes());
                return self.value(key, None);
            }
            match self.field(true, MAX_RAW_KEY + 1, &mut key)? {
                FieldEnd::Tab => {
                    self.check_position()?;
                    self.count(&key);
                    self.count(b"\t");
                    let key = decode_key(&key)?;
                    let expiry = if self.has_times { Some(self.expiry()?) } else { None };
                    return self.value(key, expiry);
                }
                FieldEnd::Input if key.is_empty() => {
                    self.end()?;
                    assert!(self.frame.is_none(), "dump_reader (I2): the input ends outside of a frame");
                    return Ok(None);
                }
                FieldEnd::Full => return Err(long_key()),
                stop => self.frame_line(&key, stop)?,
            }
        }
    }

    /// Checks a line without a TAB, which must be the first or the last line of a dump.
    fn frame_line(&mut self, text: &[u8], stop: FieldEnd) -> Result<()> {
        let is_at_a_first_line = self.frame.is_none() && (self.number == 1 || self.is_after_frame);
        let has_times = text == EXPIRY_DUMP_HEADER.as_bytes();
        if is_at_a_first_line && stop == FieldEnd::Line && (has_times || text == DUMP_HEADER.as_bytes()) {
            (self.frame, self.is_after_frame, self.has_times) = (Some((0, 0)), false, has_times);
            return Ok(());
        }
        let is_last =
            text.strip_prefix(DUMP_TRAILER.as_bytes()).is_some_and(|rest| rest.first() == Some(&b' '));
        if let Some((lines, sum)) = self.frame
            && is_last
        {
            let expected = last_line(lines, sum);
            if stop == FieldEnd::Input && text.len() < expected.len() {
                return self.end(); // the last line was cut off
            }
            if text != expected.as_bytes() {
                return Err(LineError::Changed(describe_mismatch(text, lines, sum)));
            }
            (self.frame, self.is_after_frame, self.has_times) = (None, true, false);
            return Ok(());
        }
        if stop == FieldEnd::Input && self.frame.is_some() {
            return self.end(); // a line that was cut off
        }
        if self.number == 1 && text.starts_with(DUMP_HEADER_PREFIX) {
            let got = String::from_utf8_lossy(text).into_owned();
            return Err(LineError::Line(format!("this version cannot read a dump that begins with {got:?}")));
        }
        if is_last || text.starts_with(DUMP_HEADER_PREFIX) {
            let why = "the first or last line of a dump at the wrong position: \
                       use `dump --plain` for a dump that is to be sorted or edited";
            return Err(LineError::Line(why.into()));
        }
        self.check_position()?;
        Err(LineError::Line("no TAB between key and value (load plain text with --lines)".into()))
    }

    /// Fails after the last line of a dump, where only the first line of another dump may follow.
    fn check_position(&self) -> Result<()> {
        match self.is_after_frame {
            true => Err(LineError::Line("text after the last line of a dump".into())),
            false => Ok(()),
        }
    }

    /// Fails if the input must not end here.
    fn end(&self) -> Result<()> {
        match self.frame {
            None => Ok(()),
            Some((lines, _)) => {
                let lines = many(lines, "line");
                Err(LineError::Truncated(format!("it ends after {lines} without its {DUMP_TRAILER} line")))
            }
        }
    }

    /// Reads an expiry time, up to its TAB.
    fn expiry(&mut self) -> Result<Expiry> {
        let mut raw = Vec::new();
        match self.field(true, MAX_RAW_EXPIRY + 1, &mut raw)? {
            FieldEnd::Tab => {}
            FieldEnd::Input => {
                self.end()?;
                return Err(bad_expiry());
            }
            FieldEnd::Line | FieldEnd::Full => return Err(bad_expiry()),
        }
        self.count(&raw);
        self.count(b"\t");
        if raw == NEVER.as_bytes() {
            return Ok(Expiry::Never);
        }
        let digits = Some(&raw[..]).filter(|raw| !raw.is_empty() && raw.iter().all(u8::is_ascii_digit));
        let ms = digits.and_then(|digits| str::from_utf8(digits).ok()?.parse().ok());
        let time = ms.and_then(|ms| UNIX_EPOCH.checked_add(Duration::from_millis(ms)));
        time.map(Expiry::At).ok_or_else(bad_expiry)
    }

    /// Returns the first piece of a value, for `key`.
    fn value(&mut self, key: Vec<u8>, expiry: Option<Expiry>) -> Result<Option<InputPair>> {
        self.raw.clear();
        let stop = self.read_value_chunk()?;
        if self.is_plain_text && stop == FieldEnd::Input && self.raw.is_empty() {
            return Ok(None);
        }
        let has_rest = stop == FieldEnd::Full;
        let value = self.decode(has_rest)?;
        Ok(Some(InputPair { key, value, expiry, has_rest }))
    }

    /// Reads raw bytes of a value, up to its end or a limit.
    fn read_value_chunk(&mut self) -> Result<FieldEnd> {
        let mut raw = std::mem::take(&mut self.raw);
        let from = raw.len();
        let stop = self.field(false, from + CHUNK_BYTES, &mut raw)?;
        self.count(&raw[from..]);
        self.raw = raw;
        match stop {
            FieldEnd::Line => {
                self.count(b"\n");
                if let Some((lines, _)) = &mut self.frame {
                    *lines += 1;
                }
            }
            FieldEnd::Input if self.frame.is_some() => self.end()?,
            FieldEnd::Input => self.lacks_final_newline = !self.is_plain_text,
            FieldEnd::Tab | FieldEnd::Full => {}
        }
        Ok(stop)
    }

    /// Decodes the raw bytes. Keeps an incomplete escape at their end.
    fn decode(&mut self, has_more: bool) -> Result<Vec<u8>> {
        if self.is_plain_text {
            return Ok(std::mem::take(&mut self.raw));
        }
        if self.raw.contains(&b'\t') {
            return Err(LineError::Line("a second TAB (write a TAB in a value as \\t)".into()));
        }
        let mut bytes = Vec::with_capacity(self.raw.len());
        let used = unescape_part(&self.raw, has_more, &mut bytes).map_err(LineError::Line)?;
        self.raw.drain(..used);
        Ok(bytes)
    }

    /// Returns the rest of a value after its first piece.
    pub(crate) fn rest(&mut self) -> ValueRest<'_, 'a> {
        ValueRest { lines: self, bytes: Vec::new(), at: 0, is_ended: false, error: None }
    }

    fn count(&mut self, bytes: &[u8]) {
        if let Some((_, sum)) = &mut self.frame {
            *sum = crc32c::crc32c_append(*sum, bytes);
        }
    }

    /// Reads up to the end of the line, or a TAB if `ends_at_tab`, or until `out` has `limit`
    /// bytes.
    fn field(&mut self, ends_at_tab: bool, limit: usize, out: &mut Vec<u8>) -> Result<FieldEnd> {
        loop {
            let bytes = match self.input.fill_buf() {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(LineError::Read(error)),
            };
            if bytes.is_empty() {
                return Ok(FieldEnd::Input);
            }
            if out.len() == limit {
                return Ok(FieldEnd::Full);
            }
            let bytes = &bytes[..bytes.len().min(limit - out.len())];
            let is_end = |byte: &u8| *byte == b'\n' || (ends_at_tab && *byte == b'\t');
            let end = bytes.iter().position(is_end);
            let used = end.map_or(bytes.len(), |end| end + 1);
            out.extend_from_slice(&bytes[..end.unwrap_or(used)]);
            assert!(out.len() <= limit, "dump_reader (I1): a field has at most `limit` raw bytes");
            let stop = end.map(|end| if bytes[end] == b'\t' { FieldEnd::Tab } else { FieldEnd::Line });
            self.input.consume(used);
            self.bar.inc(used as u64);
            if let Some(stop) = stop {
                return Ok(stop);
            }
        }
    }
}

/// Returns the difference between the last line of a dump and its content.
fn describe_mismatch(last: &[u8], lines: u64, sum: u32) -> String {
    let last = String::from_utf8_lossy(last);
    let mut words = last.split(' ').skip(1);
    match (words.next().and_then(|word| word.parse::<u64>().ok()), words.next(), words.next()) {
        (Some(count), _, None) if count != lines => format!("{}, expected {count}", many(lines, "line")),
        (Some(_), Some(expected), None) => format!("checksum {sum:08x}, expected {expected}"),
        _ => format!("its last line is {last:?}, expected {:?}", last_line(lines, sum)),
    }
}

fn decode_key(raw: &[u8]) -> Result<Vec<u8>> {
    let mut key = Vec::with_capacity(raw.len());
    unescape_part(raw, false, &mut key).map_err(LineError::Line)?;
    match key.len() > sheaf::MAX_KEY {
        true => Err(long_key()),
        false => Ok(key),
    }
}

fn bad_expiry() -> LineError {
    let why = "the second field is no expiry time (milliseconds since 1970, or -)";
    LineError::Line(why.to_owned())
}

fn long_key() -> LineError {
    LineError::Line(format!("the key is too large: at most {} bytes, then a TAB", sheaf::MAX_KEY))
}

/// Rest of a long value, as a stream of its bytes.
pub(crate) struct ValueRest<'l, 'a> {
    lines: &'l mut DumpReader<'a>,
    bytes: Vec<u8>,
    at: usize,
    is_ended: bool,
    /// Reason why the stream ended with an error.
    pub(crate) error: Option<LineError>,
}

impl ValueRest<'_, '_> {
    fn refill(&mut self) -> Result<()> {
        let has_more = self.lines.read_value_chunk()? == FieldEnd::Full;
        self.bytes = self.lines.decode(has_more)?;
        (self.at, self.is_ended) = (0, !has_more);
        Ok(())
    }
}

impl Read for ValueRest<'_, '_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.at == self.bytes.len() && !self.is_ended {
            if let Err(wrong) = self.refill() {
                self.error = Some(wrong);
                return Err(io::Error::other("the line is wrong"));
            }
        }
        let count = into.len().min(self.bytes.len() - self.at);
        into[..count].copy_from_slice(&self.bytes[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8], is_plain_text: bool) -> DumpReader<'_> {
        DumpReader::new(Box::new(text), ProgressBar::hidden(), is_plain_text)
    }

    /// Pairs with whole values.
    type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

    fn all(text: &[u8]) -> (Pairs, Option<LineError>) {
        let mut lines = lines(text, false);
        let mut pairs = Vec::new();
        loop {
            match lines.next() {
                Ok(None) => return (pairs, None),
                Err(wrong) => return (pairs, Some(wrong)),
                Ok(Some(InputPair { key, mut value, has_rest, .. })) => {
                    if has_rest {
                        let mut rest = lines.rest();
                        if rest.read_to_end(&mut value).is_err() {
                            let wrong = rest.error.take();
                            return (pairs, wrong);
                        }
                    }
                    pairs.push((key, value));
                }
            }
        }
    }

    fn framed(body: &str) -> String {
        let count = body.matches('\n').count() as u64;
        format!("{DUMP_HEADER}\n{body}{}\n", last_line(count, crc32c::crc32c(body.as_bytes())))
    }

    #[test]
    fn a_line_is_key_tab_value() {
        let (pairs, wrong) = all(b"k\tv\n\t\na\\tb\t\\x00\r\n");
        assert!(wrong.is_none(), "{wrong:?}");
        let expected: [(&[u8], &[u8]); 3] = [(b"k", b"v"), (b"", b""), (b"a\tb", b"\0\r")];
        assert!(pairs.iter().map(|(k, v)| (&k[..], &v[..])).eq(expected), "{pairs:?}");
        for text in ["no tab\n", "\n", "a\tb\tc\n"] {
            assert!(matches!(all(text.as_bytes()), (_, Some(LineError::Line(_)))), "{text:?}");
        }
    }

    #[test]
    fn every_truncation_of_a_dump_is_detected() {
        let whole = framed("a\tone\nb\ttwo\\n\nc\t\n");
        assert!(matches!(all(whole.as_bytes()), (pairs, None) if pairs.len() == 3));
        for end in 1..whole.len() {
            let (pairs, wrong) = all(&whole.as_bytes()[..end]);
            let is_whole_but_for_lf = end == whole.len() - 1;
            assert_eq!(wrong.is_none(), is_whole_but_for_lf, "cut at {end}");
            assert!(
                pairs.iter().all(|(k, v)| framed("a\tone\nb\ttwo\\n\nc\t\n").contains(&format!(
                    "{}\t{}",
                    String::from_utf8_lossy(k),
                    String::from_utf8_lossy(v).replace('\n', "\\n")
                ))),
                "cut at {end}: {pairs:?}"
            );
        }
    }

    #[test]
    fn a_modified_dump_is_detected() {
        let whole = framed("a\tone\nb\ttwo\n");
        for changed in
            [whole.replace("two", "twi"), whole.replace("b\ttwo\n", ""), whole.replace("end 2", "end 3")]
        {
            assert!(matches!(all(changed.as_bytes()), (_, Some(LineError::Changed(_)))), "{changed}");
        }
        let why = |text: &str| match all(text.as_bytes()) {
            (_, Some(LineError::Changed(why))) => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(why(&whole.replace("end 2", "end 3")), "2 lines, expected 3");
        assert!(why(&whole.replace("two", "twi")).starts_with("checksum "));
        assert!(why(&whole.replace("end 2 ", "end two ")).starts_with("its last line is "));
        let two = format!("{whole}{whole}");
        assert!(matches!(all(two.as_bytes()), (pairs, None) if pairs.len() == 4));
        assert!(matches!(all(format!("{whole}c\td\n").as_bytes()), (_, Some(LineError::Line(_)))));
        assert!(matches!(all(format!("c\td\n{whole}").as_bytes()), (_, Some(LineError::Line(_)))));
        assert!(matches!(all(b"#sheaf-dump 3\n#end 0 00000000\n"), (_, Some(LineError::Line(_)))));
    }

    #[test]
    fn a_dump_of_version_2_has_an_expiry_time_in_each_line() {
        let framed = |body: &str| {
            let count = body.matches('\n').count() as u64;
            let last = last_line(count, crc32c::crc32c(body.as_bytes()));
            format!("{EXPIRY_DUMP_HEADER}\n{body}{last}\n")
        };
        let whole = framed("a\t-\tone\nb\t1700000000000\ttwo\n");
        let mut read = lines(whole.as_bytes(), false);
        let mut next = || read.next().expect("a line").map(|pair| (pair.key, pair.value, pair.expiry));
        assert_eq!(next(), Some((b"a".to_vec(), b"one".to_vec(), Some(Expiry::Never))));
        let time = Expiry::At(UNIX_EPOCH + Duration::from_millis(1_700_000_000_000));
        assert_eq!(next(), Some((b"b".to_vec(), b"two".to_vec(), Some(time))));
        assert_eq!(next(), None);
        for end in EXPIRY_DUMP_HEADER.len() + 1..whole.len() - 1 {
            assert!(all(&whole.as_bytes()[..end]).1.is_some(), "cut at {end}");
        }
        for bad in ["x", "", "-1", "+1", "1.5", "18446744073709551616", "123456789012345678901234567890"] {
            let text = framed(&format!("a\t{bad}\tone\n"));
            assert!(matches!(all(text.as_bytes()), (_, Some(LineError::Line(_)))), "{bad:?}");
        }
        let two = format!("{whole}{}", super::tests::framed("c\tthree\n"));
        assert!(matches!(all(two.as_bytes()), (pairs, None) if pairs.len() == 3));
    }

    #[test]
    fn long_values_arrive_in_pieces_and_no_escape_is_split() {
        for shift in 0..5 {
            let value = format!("{}{}", "x".repeat(shift), "\\x41\\n".repeat(CHUNK_BYTES / 3));
            let text = framed(&format!("k\t{value}\n"));
            let (pairs, wrong) = all(text.as_bytes());
            assert!(wrong.is_none(), "{wrong:?}");
            assert_eq!(pairs[0].1.len(), shift + 2 * (CHUNK_BYTES / 3));
        }
        let torn = format!("k\t{}\\x4\n", "x".repeat(2 * CHUNK_BYTES));
        assert!(matches!(all(torn.as_bytes()), (_, Some(LineError::Line(_)))));
        let endless = "k".repeat(10 * MAX_RAW_KEY);
        assert!(matches!(all(endless.as_bytes()), (_, Some(LineError::Line(why))) if why.contains("65535")));
    }

    #[test]
    fn numbered_keys_sort_in_the_order_of_the_lines() {
        let mut text = lines(b"x\n\ny", true);
        let mut next = || text.next().expect("text").map(|pair| (pair.key, pair.value));
        assert_eq!(next(), Some((b"0000000001".to_vec(), b"x".to_vec())));
        assert_eq!(next(), Some((b"0000000002".to_vec(), b"".to_vec())));
        assert_eq!(next(), Some((b"0000000003".to_vec(), b"y".to_vec())));
        assert_eq!(next(), None);
    }
}
