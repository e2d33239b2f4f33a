//! # Notations: conversion between bytes and text
//!
//! Three ways to write any bytes as text: escaped (docs/format/dump.md), hexadecimal, JSON. All
//! three are reversible; JSON represents bytes that are not UTF-8 as an object.
//!
//! ## Invariants
//!
//! 1. `unescape(escape(b)) == b` for all bytes, and `escape(b)` is UTF-8 without TAB, newline,
//!    carriage return or any other control character, so that a pair fits on a line and a terminal
//!    ignores it.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value as Json, json};
use sheaf::{OptionDomain, Permissions};

/// Appends `bytes`, escaped, to `out`.
pub(crate) fn escape(bytes: &[u8], out: &mut String) {
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\t' => out.push_str("\\t"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\\' => out.push_str("\\\\"),
                c if c.is_control() => hex_escape(c.encode_utf8(&mut [0; 4]).as_bytes(), out),
                c => out.push(c),
            }
        }
        hex_escape(chunk.invalid(), out);
    }
}

fn hex_escape(bytes: &[u8], out: &mut String) {
    for byte in bytes {
        out.push_str("\\x");
        push_hex(*byte, out);
    }
}

/// Returns `bytes` for a terminal: escaped as by [`escape`], except newline and TAB.
pub(crate) fn printable(bytes: &[u8]) -> String {
    let mut out = String::new();
    for piece in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\t')) {
        match piece.split_last() {
            Some((last @ (b'\n' | b'\t'), text)) => {
                escape(text, &mut out);
                out.push(char::from(*last));
            }
            _ => escape(piece, &mut out),
        }
    }
    out.replace("\\\\", "\\")
}

/// Decodes `text` and appends the bytes to `out`. Returns the number of bytes of `text` that were
/// decoded: all of them, except an incomplete escape at the end if `has_more`.
///
/// # Errors
///
/// Returns a text that names the wrong escape.
pub(crate) fn unescape_part(text: &[u8], has_more: bool, out: &mut Vec<u8>) -> Result<usize, String> {
    let mut rest = text;
    while let Some(at) = rest.iter().position(|byte| *byte == b'\\') {
        out.extend_from_slice(&rest[..at]);
        let after = &rest[at + 1..];
        let (byte, length) = match after {
            [b't', ..] => (b'\t', 1),
            [b'n', ..] => (b'\n', 1),
            [b'r', ..] => (b'\r', 1),
            [b'\\', ..] => (b'\\', 1),
            [b'x', high, low, ..] => (hex_byte(*high, *low)?, 3),
            [] | [b'x'] | [b'x', _] if has_more => return Ok(text.len() - after.len() - 1),
            [] => return Err("a backslash at the end".into()),
            _ => {
                let text = String::from_utf8_lossy(&after[..after.len().min(4)]).into_owned();
                let length = if after[0] == b'x' { 3 } else { 1 };
                let shown: String = text.chars().take(length).collect();
                return Err(format!("unknown escape \\{}", shown.escape_debug()));
            }
        };
        out.push(byte);
        rest = &after[length..];
    }
    out.extend_from_slice(rest);
    Ok(text.len())
}

/// Returns the hexadecimal digits of `bytes`.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        push_hex(*byte, &mut out);
    }
    out
}

fn push_hex(byte: u8, out: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.push(char::from(DIGITS[usize::from(byte >> 4)]));
    out.push(char::from(DIGITS[usize::from(byte & 15)]));
}

/// Returns the bytes of hexadecimal digits. White space between digits is ignored.
pub(crate) fn unhex(text: &[u8]) -> Result<Vec<u8>, String> {
    let digits: Vec<u8> = text.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    if !digits.len().is_multiple_of(2) {
        return Err(format!("has an odd number of digits ({})", digits.len()));
    }
    let byte = |pair: &[u8]| hex_byte(pair[0], pair[1]).map_err(|why| format!("is wrong: {why}"));
    digits.chunks_exact(2).map(byte).collect()
}

fn hex_byte(high: u8, low: u8) -> Result<u8, String> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    match (digit(high), digit(low)) {
        (Some(high), Some(low)) => Ok(high << 4 | low),
        _ => Err(format!("{:?} are not hexadecimal digits", String::from_utf8_lossy(&[high, low]))),
    }
}

/// Returns a string if `bytes` are UTF-8, otherwise `{"hex": ".."}`.
pub(crate) fn json(bytes: &[u8]) -> Json {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => json!({ "hex": hex(bytes) }),
    }
}

/// Formats a number of bytes: `17 B`, `4.2 MiB`.
pub(crate) fn size(bytes: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1000.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    match unit {
        "B" => format!("{bytes} B"),
        _ if value < 10.0 => format!("{value:.1} {unit}"),
        _ => format!("{value:.0} {unit}"),
    }
}

/// Formats a number: `1,234,567`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        let _ = out.write_char(digit);
    }
    out
}

/// Formats a number of things: `1 key`, `2,000 keys`.
pub(crate) fn many(number: u64, thing: &str) -> String {
    format!("{} {thing}{}", count(number), if number == 1 { "" } else { "s" })
}

/// Parses a size such as `64MiB`, `1GiB` or `4096`.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).trim_end();
    let number: u64 = digits.parse().map_err(|_| "expected a size such as 512MiB".to_owned())?;
    let typed = text[digits.len()..].trim();
    let unit: u64 = match typed.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        _ => return Err(format!("unknown unit {typed:?}: use KiB, MiB, GiB or TiB")),
    };
    number.checked_mul(unit).ok_or_else(|| "too large".to_owned())
}

/// Returns a time in milliseconds since 1970.
pub(crate) fn unix_millis(time: SystemTime) -> u128 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()
}

/// Parses a number of things.
pub(crate) fn parse_count(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "expected a number".to_owned())
}

/// Parses a memory budget, which must have room for some data.
pub(crate) fn parse_budget(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        bytes if bytes < 1 << 20 => Err("expected at least 1MiB".to_owned()),
        bytes => Ok(bytes),
    }
}

/// Parses a number of seconds, with or without a fraction.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let bad = || "expected seconds such as 5 or 0.5".to_owned();
    let seconds: f64 = text.parse().map_err(|_| bad())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| bad())
}

/// Parses the mode of files, as octal digits, and derives that of directories.
pub(crate) fn parse_mode(text: &str) -> Result<Permissions, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| mode & !0o066 == 0o600);
    mode.map(Permissions::of_files).ok_or_else(|| "expected octal digits such as 600, 640 or 660".to_owned())
}

/// Parses a duration such as `250ms`, `30s`, `10m`, `12h` or `7d`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let bad = || "expected a duration such as 250ms, 30s, 10m, 12h or 7d".to_owned();
    let number: u64 = digits.parse().map_err(|_| bad())?;
    let unit_ms = match &text[digits.len()..] {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 3600 * 1000,
        "d" => 24 * 3600 * 1000,
        _ => return Err(bad()),
    };
    number.checked_mul(unit_ms).map(Duration::from_millis).ok_or_else(|| "too long".to_owned())
}

/// Parses an option such as `branching=64` or `compression=lz4`. The value may be a size. `expiry`
/// may be `on` or `off`, and `ttl` a duration.
pub(crate) fn parse_option(text: &str) -> Result<(String, u64), String> {
    match text.split_once('=') {
        Some(("merge", operator)) if !operator.is_empty() => Ok((format!("merge:{operator}"), 1)),
        Some(("ttl", value)) => {
            let ttl = parse_duration(value)?;
            Ok(("ttl-ms".to_owned(), u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)))
        }
        Some((name, value)) if !name.is_empty() => {
            let number = sheaf::named_option_value(name, value).map_or_else(|| parse_size(value), Ok);
            Ok((name.to_owned(), number.map_err(|_| expected_value(name))?))
        }
        _ => Err("expected NAME=VALUE, such as branching=64".to_owned()),
    }
}

/// Describes the values of an option.
fn expected_value(name: &str) -> String {
    let spec = sheaf::keyspace_options().iter().find(|spec| spec.name == name);
    match spec.map(|spec| spec.domain) {
        Some(OptionDomain::Named(names)) => format!("the values of {name} are {}", names.join(", ")),
        _ => "expected a number, or a size such as 512MiB".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit_and_options_may_have_words() {
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("2h"), Ok(Duration::from_secs(7200)));
        for bad in ["", "5", "m", "1w", "-1s", "1.5s", "99999999999999999999s", "18446744073709551615d"] {
            assert!(parse_duration(bad).is_err(), "{bad:?}");
        }
        assert_eq!(parse_option("expiry=on"), Ok(("expiry".to_owned(), 1)));
        assert_eq!(parse_option("ttl=10m"), Ok(("ttl-ms".to_owned(), 600_000)));
        assert!(parse_option("compression=gzip").unwrap_err().ends_with("none, lz4, zstd"));
        assert!(parse_option("branching=many").unwrap_err().contains("a number"));
        assert!(parse_option("ttl=10").is_err());
        assert_eq!(parse_option("merge=add"), Ok(("merge:add".to_owned(), 1)));
        assert_eq!(parse_option("merge:add=1"), Ok(("merge:add".to_owned(), 1)));
        assert!(parse_option("merge=").is_err());
    }

    fn unescape(text: &[u8]) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        assert_eq!(unescape_part(text, false, &mut bytes)?, text.len());
        Ok(bytes)
    }

    fn escaped(bytes: &[u8]) -> String {
        let mut out = String::new();
        escape(bytes, &mut out);
        out
    }

    fn round_trip(bytes: &[u8]) {
        let text = escaped(bytes);
        assert!(!text.chars().any(char::is_control), "{text:?} of {bytes:?}");
        assert_eq!(unescape(text.as_bytes()).expect("our own text"), bytes, "by way of {text:?}");
        assert_eq!(unhex(hex(bytes).as_bytes()).expect("our own digits"), bytes);
    }

    #[test]
    fn seconds_and_modes_out_of_range_are_refused() {
        let seconds = |text| parse_seconds(text).ok().map(|time| time.as_millis());
        assert_eq!([seconds("0"), seconds("0.25"), seconds("5")], [Some(0), Some(250), Some(5000)]);
        for bad in ["", "-1", "nan", "inf", "1e300", "1s"] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
        assert_eq!(parse_mode("640"), Ok(Permissions::GROUP));
        for bad in ["", "8", "400", "700", "1600", "-1"] {
            assert!(parse_mode(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_byte_and_every_pair_of_bytes_round_trips() {
        round_trip(b"");
        for high in 0..=255 {
            round_trip(&[high]);
            for low in 0..=255 {
                round_trip(&[high, low]);
            }
        }
    }

    #[test]
    fn random_bytes_and_random_text_round_trip() {
        // A xorshift from a fixed seed: the same cases each time, no dependency. Half of the cases
        // are pieces of UTF-8, cut at any position, because random bytes are rarely valid UTF-8.
        let text = "aé\u{85}€\u{1F33E}\\x41\\t\u{0}\u{7f}\t\r\nß\u{FFFD}".as_bytes();
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state >> 33).expect("31 bits")
        };
        for case in 0..20_000 {
            let length = next() % 40;
            let bytes: Vec<u8> = if case % 2 == 0 {
                (0..length).map(|_| next().to_le_bytes()[0]).collect()
            } else {
                (0..length / 8)
                    .flat_map(|_| text[next() % text.len()..].iter().take(next() % 6))
                    .copied()
                    .collect()
            };
            round_trip(&bytes);
        }
    }

    /// Any input is decoded or refused, and decoded bytes survive a round trip.
    #[test]
    fn mutated_text_is_decoded_or_refused_without_a_panic() {
        let seeds: [&[u8]; 5] = [b"a\\tb\\x00", b"\\xff\\xFE", b"gr\xc3\xbcn\\\\n", b"00ffAb", b"\\"];
        let mut state = 0x2545_F491_4F6C_DD1D_u64;
        let mut next = move |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state >> 33).expect("31 bits") % below
        };
        for case in 0..100_000 {
            let mut text = seeds[case % seeds.len()].to_vec();
            for _ in 0..=next(4) {
                let at = next(text.len() + 1);
                match next(4) {
                    0 => text.truncate(at),
                    1 => text.insert(at, b"\\xtnr09afAF\t \xff\0"[next(15)]),
                    2 if at < text.len() => text[at] ^= 1 << next(8),
                    _ => text.extend_from_within(at..),
                }
            }
            if let Ok(bytes) = unescape(&text) {
                round_trip(&bytes);
            }
            if let Ok(bytes) = unhex(&text) {
                let digits = String::from_utf8_lossy(&text).to_lowercase();
                assert_eq!(hex(&bytes), digits.split_whitespace().collect::<String>());
            }
            let _ = parse_size(&String::from_utf8_lossy(&text));
        }
    }

    #[test]
    fn readable_text_stays_and_other_bytes_are_escaped() {
        assert_eq!(escaped("grün\t1\\2\n".as_bytes()), "grün\\t1\\\\2\\n");
        assert_eq!(escaped(b"\x00\x1b[1m\xff\x7f"), "\\x00\\x1b[1m\\xff\\x7f");
        assert_eq!(escaped("\u{85}".as_bytes()), "\\xc2\\x85");
        assert_eq!(printable(b"a\\b\n\tc\x1b"), "a\\b\n\tc\\x1b");
    }

    #[test]
    fn a_wrong_escape_is_named() {
        assert_eq!(unescape(b"a\\qrs"), Err("unknown escape \\q".to_owned()));
        assert_eq!(unescape("\\äbc".as_bytes()), Err("unknown escape \\ä".to_owned()));
        assert!(unescape(b"a\\").expect_err("cut").contains("end"));
        assert!(unescape(b"\\x4").expect_err("cut").contains("\\x4"));
        assert!(unescape(b"\\xzz").expect_err("no digits").contains("zz"));
        assert!(unhex(b"abc").is_err() && unhex(b"+1").is_err());
    }

    #[test]
    fn numbers_are_formatted_with_units_and_separators() {
        assert_eq!([count(7), count(1234), count(1_234_567)], ["7", "1,234", "1,234,567"]);
        assert_eq!([many(1, "key"), many(2000, "key")], ["1 key", "2,000 keys"]);
        assert_eq!([size(17), size(4300), size(20 << 30)], ["17 B", "4.2 KiB", "20 GiB"]);
        assert_eq!(parse_size("64MiB"), Ok(64 << 20));
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_budget("1MiB"), Ok(1 << 20));
        assert!(parse_budget("1000KiB").is_err());
        assert!(parse_size("5QB").is_err_and(|why| why.contains("\"QB\"")));
        assert!(
            parse_size("-1").is_err() && parse_size("1XB").is_err() && parse_size("99999999TiB").is_err()
        );
    }
}
