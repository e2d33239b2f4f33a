//! # Tests: blocks are disjoint, return, and reuse the memory of others

use super::*;
use crate::fork::FORKING;

#[test]
fn blocks_take_whole_units() {
    use ChunkPlace::{Part, Units};
    assert_eq!([0, 64, 65, 448].map(chunk_place), [None, None, Some(Part(0)), Some(Part(5))]);
    assert_eq!([449, 512, 513].map(chunk_place), [1, 1, 2].map(|units| Some(Units(units))));
    assert_eq!([MAX_BLOCK, MAX_BLOCK + 1].map(chunk_place), [Some(Units(MAX_BLOCK / UNIT)), None]);
    assert_eq!((memory_bytes(4160), memory_bytes(24), memory_bytes(MAX_BLOCK + 1)), (4608, 32, 40 << 10));
}

#[test]
fn runs_are_found_and_flipped() {
    let mut words = [0; WORDS];
    for (start, count) in [(1, 3), (60, 10), (128, 64), (UNITS - 1, 1)] {
        flip(&mut words, start, count);
    }
    let found: Vec<(usize, usize)> = runs(&words).collect();
    assert_eq!(found, [(1, 3), (60, 10), (128, 64), (UNITS - 1, 1)]);
    assert_eq!((next_bit(&words, 4, true), next_bit(&words, 60, false)), (60, 70));
    flip(&mut words, 128, 64);
    assert_eq!(next_bit(&words, 71, true), UNITS - 1);
}

#[test]
fn sizes_outside_the_pool_are_not_pooled() {
    let mut units =
        ChunkUnits { longest: UNITS - 1, free: [u64::MAX; WORDS], starts: [0; WORDS], released_pages: 0 };
    units.free[0] &= !1;
    assert_eq!(units.flip(1, 3), (UNITS - 1, UNITS - 4));
    assert_eq!(units.flip(4, 2), (UNITS - 4, UNITS - 6));
    assert_eq!(units.flip(UNITS - 2, 2), (UNITS - 6, UNITS - 8));
    let lens = [0, 1, 2, 4, 6, UNITS - 2, UNITS - 1].map(|first| units.len_from(first));
    assert_eq!(lens, [None, Some(3), None, Some(2), None, Some(2), None]);
    assert_eq!(units.flip(1, 3), (UNITS - 8, UNITS - 8));
    assert_eq!((units.len_from(1), units.len_from(4)), (None, Some(2)), "given back");
}

#[test]
fn free_pages_are_released_once_and_reused() {
    let mut units =
        ChunkUnits { longest: UNITS - 1, free: [u64::MAX; WORDS], starts: [0; WORDS], released_pages: 0 };
    units.free[0] &= !1;
    let page = page_bytes() / UNIT;
    units.flip(page, page + 1); // the second page and a unit of the third
    units.flip(5 * page - 1, 2); // around the end of the fifth
    let pages = CHUNK / UNIT / page;
    assert_eq!(units.take_releasable_pages(), [(3, 4), (6, pages)]);
    assert_eq!(units.take_releasable_pages(), []);
    assert_eq!((units.reuse_pages(2 * page + 1, 2 * page), units.reuse_pages(6 * page + 1, 1)), (1, 1));
    units.flip(page, page + 1);
    assert_eq!(units.take_releasable_pages(), [(1, 4), (6, 7)], "the head's stays");
}

/// A block with a mark in all of its bytes.
struct MarkedBlock {
    start: usize,
    bytes: usize,
    mark: u8,
}

impl MarkedBlock {
    fn new(bytes: usize, mark: u8) -> MarkedBlock {
        let start = allocate(bytes);
        assert!(start.addr().get().is_multiple_of(block_align(bytes)));
        // SAFETY:
        // * The block was allocated just now with `bytes` bytes.
        unsafe { start.as_ptr().write_bytes(mark, bytes) };
        MarkedBlock { start: start.expose_provenance().get(), bytes, mark }
    }
}

impl Drop for MarkedBlock {
    fn drop(&mut self) {
        let start =
            NonNull::new(with_exposed_provenance_mut::<u8>(self.start)).expect("a pointer to a block");
        // SAFETY:
        // * The block has `bytes` bytes, which `new` wrote, and `self` owns it.
        unsafe {
            let held = std::slice::from_raw_parts(start.as_ptr(), self.bytes);
            assert!(held.iter().all(|byte| *byte == self.mark));
            free(start, self.bytes);
        }
    }
}

/// Threads allocate and free blocks of all sizes, also those of other threads. No two overlap, and
/// the remaining ones take not much more memory than necessary.
#[test]
fn blocks_are_disjoint_and_reusable() {
    let _alone = FORKING.lock(); // the fork tests allocate and free much, too
    let (hand_on, handed) = std::sync::mpsc::channel::<MarkedBlock>();
    let handed = std::sync::Mutex::new(handed);
    std::thread::scope(|scope| {
        for thread in 1..=4u64 {
            let (hand_on, handed) = (hand_on.clone(), &handed);
            scope.spawn(move || {
                let mut random = thread;
                for _ in 0..3000 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(thread);
                    let bytes = 1 + usize::try_from(random >> 33).unwrap() % (MAX_BLOCK + 4000);
                    hand_on.send(MarkedBlock::new(bytes, u8::try_from(random >> 56).unwrap())).unwrap();
                    if random >> 40 & 3 != 0 {
                        drop(handed.lock().unwrap().try_recv());
                    }
                }
            });
        }
    });
    drop(hand_on);
    let left: Vec<MarkedBlock> = handed.lock().unwrap().iter().collect();
    let pooled = left.iter().filter(|piece| chunk_place(piece.bytes).is_some());
    let (mut bytes, mut chunks) = (0, BTreeSet::new());
    for piece in pooled {
        bytes += memory_bytes(piece.bytes);
        chunks.insert(piece.start / CHUNK);
    }
    let held = (chunks.len() * CHUNK) as u64;
    assert!(held < bytes + bytes / 4 + (SHARDS * CHUNK) as u64, "{held} for {bytes}");
}

#[cfg(not(plain_pieces))]
#[test]
fn a_thread_gives_back_while_another_has_the_shard() {
    let _alone = FORKING.lock();
    let piece = MarkedBlock::new(3000, 7);
    let head = with_exposed_provenance_mut::<ChunkHead>(block_position(piece.start).0);
    // SAFETY:
    // * The chunk has a block of this test (I3).
    let number = unsafe { (&raw const (*head).shard).read() } - 1;
    let mut shard = lock(&OPEN[number]);
    std::thread::scope(|scope| scope.spawn(move || drop(piece)).join()).expect("giving back does not wait");
    assert!(!FREED[number].load(Ordering::Relaxed).is_null());
    let empty = shard.drain_freed(number);
    drop(shard);
    make_all_spare(empty);
}

/// Returns the next choice of a thread of the model, from its own random numbers.
fn next(random: &mut u64, below: usize) -> usize {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    usize::try_from(*random >> 33).expect("31 bits") % below
}

/// Threads allocate and free at random, in bursts of some sizes. A model knows the addresses in
/// use.
#[test]
fn no_address_is_in_two_blocks() {
    let model = std::sync::Mutex::new(std::collections::BTreeMap::<usize, usize>::new());
    let act = |thread: u64| {
        let (mut random, mut held) = (thread, Vec::<MarkedBlock>::new());
        for _ in 0..300 {
            // A burst of about one size: the units of previous sizes are cut up.
            let about = 1 + next(&mut random, MAX_BLOCK);
            for _ in 0..next(&mut random, 40) {
                let bytes = 1 + next(&mut random, about);
                let piece = MarkedBlock::new(bytes, u8::try_from(next(&mut random, 256)).unwrap());
                let (start, end) = (piece.start, piece.start + bytes);
                let mut model = model.lock().unwrap();
                let before = model.range(..end).next_back().map(|(start, len)| start + len);
                assert!(before.is_none_or(|before| before <= start), "{start:#x} is somebody's");
                model.insert(start, bytes);
                held.push(piece);
            }
            let keep = next(&mut random, 120);
            while held.len() > keep {
                let piece = held.swap_remove(next(&mut random, held.len()));
                model.lock().unwrap().remove(&piece.start);
                drop(piece); // checks its content
            }
        }
        for piece in held {
            model.lock().unwrap().remove(&piece.start);
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (1..=4).map(|thread| scope.spawn(move || act(thread))).collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            collapse_some();
            release_pages();
        }
    });
    assert!(model.lock().unwrap().is_empty());
}

#[cfg(not(plain_pieces))]
#[test]
fn long_blocks_reuse_the_space_of_short_ones() {
    let _alone = FORKING.lock(); // as above
    let short: Vec<MarkedBlock> = (0..300).map(|_| MarkedBlock::new(5000, 1)).collect();
    let stood: BTreeSet<usize> = short.iter().map(|piece| piece.start / CHUNK).collect();
    drop(short);
    let long: Vec<MarkedBlock> = (0..100).map(|_| MarkedBlock::new(15_000, 2)).collect();
    let again = long.iter().filter(|piece| stood.contains(&(piece.start / CHUNK))).count();
    assert!(again > 0, "other tests may have some of it");
}

/// Returns the bytes of huge pages in the mapping that contains an address.
#[cfg(not(plain_pieces))]
fn huge_bytes_around(address: usize) -> usize {
    let mappings = std::fs::read_to_string("/proc/self/smaps").expect("Linux");
    let mut is_it = false;
    for line in mappings.lines() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        if let Some((start, end)) = word.split_once('-') {
            let bound = |hex| usize::from_str_radix(hex, 16).expect("an address");
            is_it = (bound(start)..bound(end)).contains(&address);
        } else if is_it && word == "AnonHugePages:" {
            return rest.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10;
        }
    }
    0
}

#[cfg(not(plain_pieces))]
#[test]
fn blocks_keep_their_bytes_on_huge_pages() {
    let _alone = FORKING.lock(); // pages written while a child lives stay small
    let mut marks = (0..=250).cycle();
    let (mut pieces, mut halves) = (Vec::new(), BTreeSet::new());
    let is_gathered = |halves: &BTreeSet<usize>| !lock(&SPARE).collapsed.is_disjoint(halves);
    // Adds more and more blocks: the first ones fill gaps between others.
    for _ in 0..40 {
        pieces.extend(marks.by_ref().take(1000).map(|mark| MarkedBlock::new(9000, mark)));
        halves.extend(pieces.iter().map(|piece| piece.start & !(HUGE_PAGE - 1)));
        for _ in 0..200 {
            if huge_pages::is_allowed() && !is_gathered(&halves) {
                collapse_some();
            }
        }
        if !huge_pages::is_allowed() || is_gathered(&halves) {
            break;
        }
    }
    let is_short = || huge_pages::HALF_SCAN.lock().unwrap_or_else(PoisonError::into_inner).backoff > 0;
    assert!(
        !huge_pages::is_allowed() || is_gathered(&halves) || is_short(),
        "there are huge pages, and halves that are whole"
    );
    let nobody_gathers = huge_pages::HALF_SCAN.lock().unwrap_or_else(PoisonError::into_inner);
    let spare = lock(&SPARE); // no thread releases pages, either
    if let Some(half) = spare.collapsed.intersection(&halves).next() {
        assert!(huge_bytes_around(*half) >= HUGE_PAGE, "it is on a huge page");
    }
    drop((spare, nobody_gathers));
    drop(pieces); // each checks its mark
}
