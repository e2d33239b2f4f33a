//! # Checksum repair: makes the checksums of mutated files valid
//!
//! With valid checksums a mutation reaches the parser behind them. This module is written from
//! docs/format only, without the code under test. An intact file must stay the same, which tests
//! both.

/// Recomputes the checksums of a file. A file of an unknown kind is not changed.
pub fn fix_checksums(bytes: &mut [u8]) {
    match bytes.get(..8) {
        Some(b"SHEAFROT") => root(bytes),
        Some(b"SHEAFSEG") => segment(bytes),
        Some(b"SHEAFIMG") => image(bytes),
        Some(b"SHEAFCHK") => chunk(bytes),
        _ => {}
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<usize> {
    let word = bytes.get(at..at + 4)?;
    usize::try_from(u32::from_le_bytes([word[0], word[1], word[2], word[3]])).ok()
}

fn put_checksum(bytes: &mut [u8], at: usize, sum: u32) {
    if let Some(place) = bytes.get_mut(at..at + 4) {
        place.copy_from_slice(&sum.to_le_bytes());
    }
}

fn root(bytes: &mut [u8]) {
    let Some(len) = u32_at(bytes, 12) else { return };
    let Some(body) = bytes.get(20..20usize.saturating_add(len)) else { return };
    let sum = crc32c::crc32c_append(crc32c::crc32c(&bytes[..16]), body);
    put_checksum(bytes, 16, sum);
}

fn chunk(bytes: &mut [u8]) {
    if bytes.len() < 1024 {
        return;
    }
    let sum = crc32c::crc32c(&bytes[..48]);
    put_checksum(bytes, 48, sum);
    let number = crc32c::crc32c(&bytes[32..40]);
    for slot in 0..u32_at(bytes, 12).unwrap_or(0).min(64) {
        let at = 512 + 8 * slot;
        let summed = [u8::try_from(slot).unwrap_or(0), bytes[at], bytes[at + 1]];
        put_checksum(bytes, at + 4, crc32c::crc32c_append(number, &summed));
    }
}

fn image(bytes: &mut [u8]) {
    if bytes.len() < 44 {
        return;
    }
    let sum = crc32c::crc32c(&bytes[..40]);
    put_checksum(bytes, 40, sum);
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[16..24]);
    let (mut at, mut index) = (44, 0u64);
    while let Some(len) = u32_at(bytes, at) {
        let Some(chunk) = bytes.get(at + 8..at + 8 + len) else { return };
        let mut head = [0; 24];
        head[..8].copy_from_slice(&number);
        head[8..16].copy_from_slice(&index.to_le_bytes());
        head[16..].copy_from_slice(&(len as u64).to_le_bytes());
        let sum = crc32c::crc32c_append(crc32c::crc32c(&head), chunk);
        put_checksum(bytes, at + 4, sum);
        (at, index) = (at + 8 + len, index + 1);
        if len == 0 {
            return;
        }
    }
}

fn segment(bytes: &mut [u8]) {
    if bytes.len() < 512 {
        return;
    }
    let sum = crc32c::crc32c(&bytes[..56]);
    put_checksum(bytes, 56, sum);
    let mut place = [0; 33];
    place[..16].copy_from_slice(&bytes[16..32]);
    place[16] = bytes[12];
    place[17..25].copy_from_slice(&bytes[32..40]);
    place[25..].copy_from_slice(&bytes[40..48]);
    let seed = crc32c::crc32c(&place);
    let mut at = 512;
    while at + 16 <= bytes.len() {
        let (len, kind) = (u32_at(bytes, at + 4).unwrap_or(0) & 0x00ff_ffff, bytes[at + 7] & 0xf);
        let end = at + 16 + len;
        if !(1..=5).contains(&kind) || end > bytes.len() {
            at = (at + 1).next_multiple_of(512); // a gap: the next frame is at the next sector
            continue;
        }
        let mut summed = [0; 24];
        summed[..8].copy_from_slice(&(at as u64).to_le_bytes());
        summed[8..20].copy_from_slice(&bytes[at + 4..at + 16]);
        summed[20..].copy_from_slice(&crc32c::crc32c(&bytes[at + 16..end]).to_le_bytes());
        let check = crc32c::crc32c_append(seed, &summed);
        put_checksum(bytes, at, check);
        at = end.next_multiple_of(8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corruption::StoredDatabase;
    use crate::crash::workload::{WorkloadShape, generate};

    #[test]
    fn fixing_checksums_of_an_intact_file_changes_nothing() {
        let steps =
            generate(3, &WorkloadShape { steps: 60, has_background_work: true, ..WorkloadShape::default() });
        let stored_db = StoredDatabase::closed(&steps);
        for (path, _) in stored_db.files() {
            let bytes = stored_db.sim.read_file(&path).unwrap();
            let mut again = bytes.clone();
            fix_checksums(&mut again);
            assert!(again == bytes, "{}", path.display());
        }
    }

    #[test]
    fn a_damaged_file_with_fixed_checksums_passes_checksum_checks() {
        let stored_db = StoredDatabase::closed(&generate(3, &WorkloadShape::default()));
        for (path, _) in stored_db.files() {
            let mut bytes = stored_db.sim.read_file(&path).unwrap();
            let is_value = path.extension().is_some_and(|extension| extension == "blob");
            if bytes.len() < 44 || is_value {
                continue; // the checksum of a value is in its record
            }
            bytes[24] ^= 1;
            let damaged = bytes.clone();
            fix_checksums(&mut bytes);
            assert!(bytes != damaged, "{} has a checksum", path.display());
        }
    }
}
