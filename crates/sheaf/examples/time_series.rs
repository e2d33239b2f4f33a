//! Measurements of sensors: written as they arrive, read by ranges of time, condensed to hours, and
//! removed when they are old.
//!
//! `cargo run -p sheaf-db --example time_series [DIR]`

use std::path::Path;

use sheaf::{Database, Keyspace, KeyspaceOptions, Result};

const SENSORS: u32 = 5;
const MINUTES: u64 = 2 * 24 * 60;
const HOUR: u64 = 60;

/// Keys sort by sensor, then by time.
fn key(sensor: u32, minute: u64) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&sensor.to_be_bytes());
    key[4..].copy_from_slice(&minute.to_be_bytes());
    key
}

fn temperature(sensor: u32, minute: u64) -> f64 {
    let day = minute as f64 / (24.0 * 60.0) * std::f64::consts::TAU;
    15.0 + f64::from(sensor) - 6.0 * day.cos()
}

fn value_of(stored: &[u8]) -> f64 {
    stored.try_into().map_or(f64::NAN, f64::from_be_bytes)
}

/// Returns the mean of the measurements of `sensor` in `[from, to)`.
fn mean(series: &Keyspace, sensor: u32, from: u64, to: u64) -> Result<Option<f64>> {
    let (mut sum, mut count) = (0.0, 0u32);
    for pair in series.range(key(sensor, from)..key(sensor, to))? {
        sum += value_of(&pair?.1);
        count += 1;
    }
    Ok((count > 0).then(|| sum / f64::from(count)))
}

/// Writes two days of measurements. Returns the number of remaining measurements and of hourly
/// means.
fn run(dir: &Path) -> Result<(u64, u64)> {
    let db = Database::open(dir)?;
    let minutes = db.keyspace("minutes", KeyspaceOptions::default().engine("flex"))?;
    let hours = db.keyspace("hours", KeyspaceOptions::default().engine("flex"))?;
    for minute in 0..MINUTES {
        let mut batch = db.batch(); // all sensors of a minute or none
        for sensor in 0..SENSORS {
            batch.insert(&minutes, key(sensor, minute), temperature(sensor, minute).to_be_bytes());
        }
        batch.commit()?;
    }
    for sensor in 0..SENSORS {
        for hour in 0..MINUTES / HOUR {
            if let Some(mean) = mean(&minutes, sensor, hour * HOUR, (hour + 1) * HOUR)? {
                hours.insert(key(sensor, hour), mean.to_be_bytes())?;
            }
        }
        // The measurements of the last day are kept.
        minutes.remove_range(key(sensor, 0)..key(sensor, MINUTES - 24 * HOUR))?;
        // The newest measurement is read first.
        let mut newest = minutes.prefix(sensor.to_be_bytes())?.rev();
        if let Some((at, value)) = newest.next().transpose()? {
            let minute = at.last_chunk().map_or(0, |minute| u64::from_be_bytes(*minute));
            println!("sensor {sensor}: {:.2} degrees in minute {minute}", value_of(&value));
        }
    }
    let left = (minutes.len()?, hours.len()?);
    db.close()?;
    Ok(left)
}

fn main() -> Result<()> {
    let mine = std::env::temp_dir().join("sheaf-example-time-series");
    let (minutes, hours) = run(std::env::args_os().nth(1).as_deref().map_or(&mine, Path::new))?;
    println!("{minutes} measurements are kept, and {hours} means of hours");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{HOUR, MINUTES, SENSORS};

    #[test]
    fn a_day_is_kept_by_the_minute_and_all_by_the_hour() {
        let dir = tempfile::tempdir().unwrap();
        let (minutes, hours) = super::run(dir.path()).unwrap();
        assert_eq!(minutes, u64::from(SENSORS) * 24 * HOUR);
        assert_eq!(hours, u64::from(SENSORS) * MINUTES / HOUR);
    }
}
