//! # Gets through the Rust library, for the comparison with `gets.c`
//!
//! Fills the database on its first run. Prints the nanoseconds on a processor of a get of a random
//! key.

// A measurement.
#![allow(clippy::disallowed_methods)]

const PAIRS: u64 = 200_000;
const GETS: u64 = 500_000;

/// Returns the key with this number.
fn key(number: u64) -> [u8; 16] {
    let mut key = *b"user000000000000";
    let (mut rest, mut position) = (number, 16);
    while rest > 0 {
        position -= 1;
        key[position] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
    }
    key
}

/// Returns the nanoseconds that this thread has run.
fn now() -> Result<u64, Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(text.split_whitespace().next().unwrap_or_default().parse()?)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().collect();
    let [_, directory, engine] = &words[..] else { return Err("usage: gets DIRECTORY ENGINE".into()) };
    let db = sheaf::Database::open(directory)?;
    let users = db.keyspace("users", engine.as_str())?;
    if users.get(key(0))?.is_none() {
        for number in 0..PAIRS {
            users.insert(key(number), [7; 100])?;
        }
        db.quiesce()?;
    }
    let mut buffer = [0; 128];
    let (mut state, mut bytes) = (88_172_645_463_325_252_u64, 0);
    let mut begin = now()?;
    for get in 0..GETS + GETS / 4 {
        if get == GETS / 4 {
            begin = now()?; // the caches are warm
        }
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let size = users.get_with(key(state % PAIRS), |value| {
            buffer[..value.len()].copy_from_slice(value);
            value.len()
        })?;
        bytes += size.unwrap_or(0);
    }
    let elapsed = now()? - begin;
    std::hint::black_box(&buffer);
    if bytes as u64 != (GETS + GETS / 4) * 100 {
        return Err(format!("{bytes} bytes").into());
    }
    println!("{:.1}", elapsed as f64 / GETS as f64);
    Ok(())
}
