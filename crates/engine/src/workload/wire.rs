//! # Wire format of workload statistics, for another process
//!
//! Numbers of 8 bytes in the order of the fields; docs/format/ipc.md.

use std::time::Duration;

use super::stats::{Latency, LengthStats, Skewness, WorkloadStats};
use sheaf_platform::codec::{FieldReader, FieldWriter};
use sheaf_platform::error::Damage;

impl WorkloadStats {
    /// Appends the statistics to `w`.
    pub fn encode(&self, w: &mut FieldWriter) {
        self.clone().counts().into_iter().for_each(|count| w.u64(*count));
        for share in [self.seconds, self.new_share, self.durable_share, self.sequential_share] {
            w.u64(share.to_bits());
        }
        for spread in [self.key_bytes, self.value_bytes, self.scan_pairs] {
            [spread.mean.to_bits(), spread.p50, spread.p99].into_iter().for_each(|number| w.u64(number));
        }
        w.u8(u8::from(self.skew.is_some()));
        if let Some(Skewness { zipf, keys, hottest: [thousandth, hundredth, tenth] }) = self.skew {
            for number in [zipf, keys, thousandth, hundredth, tenth] {
                w.u64(number.to_bits());
            }
        }
        let latencies = [
            self.read_latency,
            self.write_latency,
            self.durable_write_latency,
            self.update_latency,
            self.batch_latency,
            self.seek_latency,
        ];
        for Latency { samples, p50, p99, longest } in latencies {
            w.u64(samples);
            [p50, p99, longest].into_iter().for_each(|time| put_time(w, time));
        }
        w.u64(self.stalls);
        [self.stall_time, self.longest_stall].into_iter().for_each(|time| put_time(w, time));
    }

    /// Decodes statistics that [`WorkloadStats::encode`] wrote.
    ///
    /// # Errors
    ///
    /// Returns the damage if the bytes end too early, if a floating-point number is not finite, or
    /// if the flag of the skew is invalid.
    pub fn decode(r: &mut FieldReader<'_>) -> Result<WorkloadStats, Damage> {
        let mut stats = WorkloadStats::default();
        for count in stats.counts() {
            *count = r.u64()?;
        }
        for share in
            [&mut stats.seconds, &mut stats.new_share, &mut stats.durable_share, &mut stats.sequential_share]
        {
            *share = number(r)?;
        }
        for spread in [&mut stats.key_bytes, &mut stats.value_bytes, &mut stats.scan_pairs] {
            *spread = LengthStats { mean: number(r)?, p50: r.u64()?, p99: r.u64()? };
        }
        stats.skew = match r.u8()? {
            0 => None,
            1 => Some(Skewness {
                zipf: number(r)?,
                keys: number(r)?,
                hottest: [number(r)?, number(r)?, number(r)?],
            }),
            other => return Err(Damage::bad_field("skew", 0..=1, u64::from(other))),
        };
        for latency in [
            &mut stats.read_latency,
            &mut stats.write_latency,
            &mut stats.durable_write_latency,
            &mut stats.update_latency,
            &mut stats.batch_latency,
            &mut stats.seek_latency,
        ] {
            *latency = Latency { samples: r.u64()?, p50: time(r)?, p99: time(r)?, longest: time(r)? };
        }
        stats.stalls = r.u64()?;
        stats.stall_time = time(r)?;
        stats.longest_stall = time(r)?;
        Ok(stats)
    }

    /// Returns the counters, in the order of the format.
    fn counts(&mut self) -> [&mut u64; COUNTS] {
        [
            &mut self.samples,
            &mut self.gets_found,
            &mut self.gets_missing,
            &mut self.contains,
            &mut self.inserts,
            &mut self.removes,
            &mut self.updates,
            &mut self.batches,
            &mut self.batch_inserts,
            &mut self.batch_removes,
            &mut self.scans,
            &mut self.scans_reverse,
            &mut self.pairs_scanned,
            &mut self.stream_reads,
            &mut self.stream_writes,
            &mut self.bytes_written,
        ]
    }
}

/// Number of counters.
const COUNTS: usize = 16;

fn put_time(w: &mut FieldWriter, time: Duration) {
    w.u64(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
}

fn time(r: &mut FieldReader<'_>) -> Result<Duration, Damage> {
    Ok(Duration::from_nanos(r.u64()?))
}

/// Reads a finite number.
fn number(r: &mut FieldReader<'_>) -> Result<f64, Damage> {
    let bits = r.u64()?;
    let number = f64::from_bits(bits);
    if number.is_finite() { Ok(number) } else { Err(Damage::bad_field("number", "a finite number", bits)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_come_back() {
        let mut stats = WorkloadStats::default();
        stats.counts().into_iter().zip(1..).for_each(|(count, n)| *count = n);
        stats.seconds = 2.5;
        stats.durable_share = 0.25;
        stats.key_bytes = LengthStats { mean: 1.5, p50: 2, p99: 3 };
        stats.skew = Some(Skewness { zipf: 0.99, keys: 10.0, hottest: [0.1, 0.2, 0.3] });
        let longest = Duration::from_micros(9);
        stats.read_latency = Latency { samples: 7, longest, ..Latency::default() };
        stats.longest_stall = longest;
        for stats in [stats, WorkloadStats::default()] {
            let mut w = FieldWriter::default();
            stats.encode(&mut w);
            assert_eq!(WorkloadStats::decode(&mut FieldReader::new(&w.0)).unwrap(), stats);
            for end in 0..w.0.len() {
                assert!(WorkloadStats::decode(&mut FieldReader::new(&w.0[..end])).is_err(), "{end}");
            }
        }
    }
}
