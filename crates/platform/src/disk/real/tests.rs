//! Tests of the real disk, on the file system of the temporary directory.

#![allow(clippy::disallowed_methods, reason = "tests of the disk layer access files directly")]

use super::transfer::{read_whole, write_synced};
use super::*;
use crate::disk::scratch::ScratchDir;
use crate::fork::FORKING;

const PAGE: u64 = crate::disk::PAGE as u64;

fn kind<T>(answer: io::Result<T>) -> io::ErrorKind {
    answer.map(|_| ()).unwrap_err().kind()
}

#[test]
fn bytes_come_back_and_short_files_say_so() {
    let scratch = ScratchDir::new();
    let file = scratch.file("a", 10);
    file.write_at(20, b"tail").unwrap();
    assert_eq!(file.len().unwrap(), 24);
    let mut buf = [1; 14];
    file.read_at(10, &mut buf).unwrap();
    assert_eq!(&buf, b"\0\0\0\0\0\0\0\0\0\0tail");
    assert_eq!(kind(file.read_at(11, &mut buf)), io::ErrorKind::UnexpectedEof);
    file.set_len(3).unwrap();
    file.allocate(8192).unwrap();
    file.sync().unwrap();
    assert_eq!(file.len().unwrap(), 8192);
    let mut buf = [1; 5];
    file.read_at(1, &mut buf).unwrap();
    assert_eq!(buf, [7, 7, 0, 0, 0]);
    file.allocate(0).unwrap();
}

#[test]
fn written_bytes_are_cached_and_hints_change_no_data() {
    let scratch = ScratchDir::new();
    let file = scratch.file("a", 1 << 20);
    file.write_at(0, &[7; 8192]).unwrap();
    assert!(file.is_cached(0) && file.is_cached(8191));
    file.map(1 << 20);
    file.advise_random();
    file.will_need(0, 1 << 20);
    file.will_need(2 << 20, 1); // beyond the end
    // SAFETY: written above, and not written again.
    let mapped = unsafe { file.mapped(0, 8192) }.unwrap();
    assert!(mapped.iter().all(|byte| *byte == 7));
}

#[test]
fn the_cached_mode_serves_bytes_in_memory_and_refuses_all_others() {
    use crate::disk::cached_reads::read_cached;

    let scratch = ScratchDir::new();
    let file = scratch.file("a", 0);
    file.write_at(0, &[7; 64 << 10]).unwrap();
    file.map(64 << 10);
    let mut buf = [0; 100];
    let mut read = |offset| read_cached(|| file.read_at(offset, &mut buf).map(|()| buf));
    // With `RWF_NOWAIT`, or without it (tmpfs) through the mapping.
    assert_eq!(read(5000).unwrap().unwrap(), [7; 100]);
    if let Some(end) = read((64 << 10) - 1) {
        assert_eq!(kind(end), io::ErrorKind::UnexpectedEof);
    }
    // SAFETY: written above, and not written again.
    assert!(read_cached(|| unsafe { file.mapped(0, 8) }.is_none()).unwrap());
    // A refusal is the result of the whole call, also if the caller ignores it.
    let open = || drop(RealDisk::default().open(&scratch.path("a"), OpenMode::Read));
    assert!(read_cached(open).is_none());
    file.sync().unwrap();
    file.drop_cached(0, 64 << 10);
    if !file.is_cached(5000) {
        assert!(read(5000).is_none());
        file.read_at(5000, &mut [0; 100]).unwrap();
    }
    assert!(read(5000).is_some());
}

#[test]
fn direct_writes_are_writes() {
    let scratch = ScratchDir::new();
    let file = scratch.file("a", 0);
    let memory: Vec<u8> = (0..=250).cycle().take(5 * crate::disk::PAGE).collect();
    let even = memory.as_ptr().align_offset(crate::disk::PAGE);
    // Whole pages; whole pages and a rest; an offset in the file, or an address in memory, without
    // the alignment that a device needs.
    for (to, from, len) in
        [(0, even, 2 * PAGE), (PAGE, even, PAGE + 7), (8, even, PAGE), (PAGE, even + 1, PAGE)]
    {
        let bytes = &memory[from..][..usize::try_from(len).unwrap()];
        file.write_direct(to, bytes).unwrap();
        let mut got = vec![0; bytes.len()];
        file.read_at(to, &mut got).unwrap();
        assert!(got == bytes, "{len} bytes at {to}");
    }
    assert_eq!(file.len().unwrap(), 2 * PAGE + 7);
    let reader = RealDisk::default().open(&scratch.path("a"), OpenMode::Read).unwrap();
    assert!(reader.write_direct(0, &memory[even..][..crate::disk::PAGE]).is_err());
}

#[test]
fn open_modes_create_and_refuse_as_documented() {
    let scratch = ScratchDir::new();
    let path = scratch.path("a");
    assert_eq!(kind(RealDisk::default().open(&path, OpenMode::Read)), io::ErrorKind::NotFound);
    assert_eq!(kind(RealDisk::default().open(&path, OpenMode::ReadWrite)), io::ErrorKind::NotFound);
    drop(scratch.file("a", 1));
    assert_eq!(kind(RealDisk::default().open(&path, OpenMode::Create)), io::ErrorKind::AlreadyExists);
    let reader = RealDisk::default().open(&path, OpenMode::Read).unwrap();
    assert!(reader.write_at(0, b"x").is_err());
    assert_eq!(kind(RealDisk::default().open(&scratch.0, OpenMode::Read)), io::ErrorKind::InvalidInput);
}

#[test]
fn names_are_listed_sorted_and_removed() {
    let scratch = ScratchDir::new();
    for name in ["b", "c", "a"] {
        drop(scratch.file(name, 1));
    }
    RealDisk::default().create_dir(&scratch.path("dir")).unwrap();
    std::os::unix::fs::symlink(scratch.path("dir"), scratch.path("link")).unwrap();
    std::os::unix::fs::symlink("nowhere", scratch.path("lost")).unwrap();
    RealDisk::default().rename(&scratch.path("b"), &scratch.path("c")).unwrap();
    RealDisk::default().sync_dir(&scratch.0).unwrap();
    let listed = RealDisk::default().list(&scratch.0).unwrap();
    let listed: Vec<_> = listed.iter().map(|e| (e.name.as_str(), e.is_dir)).collect();
    let expected = [("a", false), ("c", false), ("dir", true), ("link", true), ("lost", false)];
    assert_eq!(listed, expected);
    RealDisk::default().remove(&scratch.path("a")).unwrap();
    RealDisk::default().remove_dir(&scratch.path("dir")).unwrap();
    assert_eq!(RealDisk::default().list(&scratch.0).unwrap().len(), 3);
    assert!(RealDisk::default().free_space(&scratch.0).unwrap() > 0);
}

#[test]
fn name_that_is_not_utf8_is_listed_as_a_foreign_one() {
    use std::os::unix::ffi::OsStrExt;
    let scratch = ScratchDir::new();
    let path = |name| scratch.0.join(std::ffi::OsStr::from_bytes(name));
    std::fs::write(path(b"ROOT\xff"), b"").unwrap();
    std::fs::create_dir(path(b"logs\xfe")).unwrap();
    let listed = RealDisk::default().list(&scratch.0).unwrap();
    let listed: Vec<_> = listed.iter().map(|e| (e.name.as_str(), e.is_dir)).collect();
    assert_eq!(listed, [("ROOT\u{fffd}", false), ("logs\u{fffd}", true)]);
}

/// Maps a new page at `address`. Returns null if the address is in use.
fn take_page_at(address: usize) -> *const u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY:
    // * NOREPLACE: no existing mapping is changed.
    let page = unsafe { libc::mmap(address as *mut _, 4096, protection, flags, -1, 0) };
    match page {
        libc::MAP_FAILED => std::ptr::null(),
        page => page.cast_const().cast(),
    }
}

#[test]
fn forked_child_that_drops_everything_leaves_the_parents_lock_and_mapping() {
    let _alone = FORKING.lock();
    let scratch = ScratchDir::new();
    let path = scratch.path("LOCK");
    let held = RealDisk::default().lock(&path, LockMode::Exclusive).unwrap();
    let file = scratch.file("a", 4096);
    file.map(PAGE);
    // SAFETY:
    // * No code writes the file.
    let address = unsafe { file.mapped(0, 1) }.unwrap().as_ptr().addr();
    // SAFETY:
    // * The child only frees memory of small objects, which glibc allows after fork, and makes
    //   system calls.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY:
        // * No code writes the file.
        let hidden = unsafe { file.mapped(0, 1) }.is_none();
        let page = take_page_at(address);
        drop(held);
        drop(file);
        // SAFETY:
        // * The page belongs to the child if it still exists. Otherwise the child crashes, which
        //   the parent detects.
        let byte = unsafe { page.read_volatile() };
        // SAFETY:
        // * `_exit` has no conditions.
        unsafe { libc::_exit(i32::from(!hidden) + i32::from(byte)) }
    }
    let mut status = -1;
    // SAFETY:
    // * `status` is a valid place for an int.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
    let again = RealDisk::default().lock(&path, LockMode::Exclusive).unwrap();
    assert!(matches!(again, LockOutcome::Busy(_)));
    // SAFETY:
    // * No code writes the file.
    assert_eq!(unsafe { file.mapped(0, 4) }, Some(&[7; 4][..]));
    drop(held);
}

#[test]
fn mapped_bytes_are_the_files_and_stay_in_bounds() {
    let scratch = ScratchDir::new();
    let file = scratch.file("a", 10_000);
    // SAFETY:
    // * The range is not written while the slice lives.
    let mapped = |offset, len| unsafe { file.mapped(offset, len) }.map(<[u8]>::to_vec);
    assert_eq!(mapped(0, 1), None);
    file.map(20_000);
    assert_eq!(mapped(0, 1), None, "the file is shorter");
    file.map(9_000);
    file.write_at(8_990, b"0123456789").unwrap();
    assert_eq!(mapped(8_990, 10).unwrap(), b"0123456789");
    assert_eq!(mapped(8_990, 11), None);
    assert_eq!(mapped(u64::MAX, 2), None);
    assert_eq!(mapped(0, usize::MAX), None);
    file.prefetch(0, 1);
    file.prefetch(u64::MAX, 1);
    assert!(!file.is_resident(0, 1));
}

#[test]
fn a_file_is_as_long_as_it_was_when_it_was_opened_unless_it_was_cut() {
    let scratch = ScratchDir::new();
    drop(scratch.file("a", 10_000));
    let open = || RealDisk::default().open(&scratch.path("a"), OpenMode::ReadWrite).unwrap();
    // SAFETY:
    // * No code writes the file.
    let is_mapped = |file: &Arc<dyn File>| unsafe { file.mapped(0, 1) }.is_some();
    let file = open();
    assert_eq!(file.opened_len().unwrap(), 10_000);
    file.map(10_000);
    assert!(is_mapped(&file));
    let file = open();
    file.set_len(5_000).unwrap();
    file.map(10_000);
    assert!(!is_mapped(&file), "it was cut");
    file.set_len(20_000).unwrap();
    file.map(20_000);
    assert!(is_mapped(&file), "it has grown since it was opened");
    assert_eq!((file.opened_len().unwrap(), file.len().unwrap()), (10_000, 20_000));
}

#[test]
fn appends_through_the_mapping_are_the_files_bytes() {
    let scratch = ScratchDir::new();
    let file = scratch.file("a", 100);
    file.allocate(64 * 1024).unwrap();
    file.map(64 * 1024);
    file.make_resident(100, 16 * 1024);
    file.begin_stores();
    assert!(!file.is_resident(100, 10), "not a whole page");
    assert!(file.is_resident(4096, 12 * 1024));
    assert!(!file.is_resident(16 * 1024 - 1, 2));
    file.append_at(100, b"plain").unwrap();
    file.append_at(4095, b"over the edge").unwrap();
    file.append_at(5000, b"stored").unwrap();
    let mut buf = [0; 6];
    file.read_at(5000, &mut buf).unwrap();
    assert_eq!(&buf, b"stored");
    file.make_resident(16 * 1024, 32 * 1024);
    assert!(file.is_resident(4096, 28 * 1024), "joined with the pages before");
    file.sync().unwrap();
    assert!(!file.is_resident(5000, 1));
    file.append_at(5006, b" and written").unwrap();
    let mut buf = [0; 18];
    file.read_at(5000, &mut buf).unwrap();
    assert_eq!(&buf, b"stored and written");
}

#[test]
fn appends_of_two_threads_beside_syncs_all_arrive() {
    let scratch = ScratchDir::new();
    let file = scratch.file("a", 0);
    file.allocate(64 * PAGE).unwrap();
    file.map(64 * PAGE);
    file.begin_stores();
    let append = |first: u64, fill: u8| {
        file.make_resident(first * PAGE, (first + 32) * PAGE);
        for offset in (first * PAGE..(first + 32) * PAGE).step_by(64) {
            file.append_at(offset, &[fill; 64]).unwrap();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| append(0, 1));
        scope.spawn(|| append(32, 2));
        for _ in 0..20 {
            file.sync().unwrap();
        }
    });
    let mut bytes = vec![0; 64 * 4096];
    file.read_at(0, &mut bytes).unwrap();
    let (left, right) = bytes.split_at(32 * 4096);
    assert!(left.iter().all(|&byte| byte == 1) && right.iter().all(|&byte| byte == 2));
}

#[test]
fn read_only_files_never_become_resident() {
    let scratch = ScratchDir::new();
    drop(scratch.file("a", 8192));
    let file = RealDisk::default().open(&scratch.path("a"), OpenMode::Read).unwrap();
    file.map(8192);
    file.make_resident(0, 8192);
    assert!(!file.is_resident(0, 1));
    assert!(file.append_at(0, b"x").is_err());
}

#[test]
fn file_cut_under_its_mapping_reads_as_zeros_without_a_crash() {
    let scratch = ScratchDir::new();
    let file = scratch.file("a", 8192);
    file.map(8192);
    let before = RealDisk::mapped_read_faults();
    file.set_len(4096).unwrap();
    // SAFETY:
    // * The file is not written any more.
    let page = unsafe { file.mapped(4096, 4096) }.unwrap();
    assert!(page.iter().all(|&byte| byte == 0));
    assert!(RealDisk::mapped_read_faults() > before);
    // SAFETY:
    // * As above.
    let again = unsafe { file.mapped(0, 1) };
    assert!(again.is_none(), "plain reads from now on");
    let mut buf = [0; 1];
    file.read_at(0, &mut buf).unwrap();
    assert_eq!(buf, [7]);
}

#[test]
fn store_that_hits_a_replaced_page_is_an_error() {
    let scratch = ScratchDir::new();
    let file = scratch.file("a", 16 * 1024);
    file.map(16 * 1024);
    file.make_resident(0, 16 * 1024);
    file.begin_stores();
    assert!(file.is_resident(8192, 100));
    file.set_len(4096).unwrap();
    let lost = file.append_at(8192, &[9; 100]).unwrap_err();
    assert_eq!(lost.raw_os_error(), Some(libc::EIO));
    assert!(!file.is_resident(0, 1));
    file.append_at(8192, &[9; 100]).unwrap();
    assert_eq!(file.len().unwrap(), 8292, "written plainly since");
}

#[test]
fn sigbus_elsewhere_still_kills() {
    let _alone = FORKING.lock();
    let scratch = ScratchDir::new();
    let ours = scratch.file("a", 4096);
    ours.map(PAGE); // Installs the handler.
    let path = scratch.path("b");
    std::fs::write(&path, vec![1; 4096]).unwrap();
    let fd = open_fd(&path, OFlags::RDWR).unwrap();
    let anywhere = std::ptr::null_mut();
    let (read, shared) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
    // SAFETY:
    // * The kernel chooses the address.
    let foreign = unsafe { rustix::mm::mmap(anywhere, 4096, read, shared, &fd, 0) }.unwrap();
    rustix::fs::ftruncate(&fd, 0).unwrap();
    // SAFETY:
    // * The child reads one byte, which kills it, or exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY:
        // * The page is mapped for reading. It is beyond the end of the file, as the test requires.
        let byte = unsafe { foreign.cast::<u8>().read_volatile() };
        // SAFETY:
        // * `_exit` has no conditions.
        unsafe { libc::_exit(i32::from(byte)) }
    }
    let mut status = 0;
    // SAFETY:
    // * `status` is a valid place for an int.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert!(libc::WIFSIGNALED(status), "status {status}");
    assert_eq!(libc::WTERMSIG(status), libc::SIGBUS);
}

#[test]
fn a_write_that_syncs_is_called_once() {
    for (answer, refusal) in [
        (Err(Errno::INTR), io::ErrorKind::Interrupted),
        (Ok(3), io::ErrorKind::WriteZero),
        (Ok(0), io::ErrorKind::WriteZero),
    ] {
        let mut calls = 0;
        let written = write_synced(10, b"abcdef", |_, _| {
            calls += 1;
            answer
        });
        assert_eq!((kind(written), calls), (refusal, 1));
    }
    write_synced(10, b"abcdef", |bytes, at| Ok(bytes.len() * usize::from(at == 10))).unwrap();
}

#[test]
fn short_and_interrupted_transfers_go_on() {
    let mut answers = [Ok(2), Err(Errno::INTR), Ok(3), Ok(1)].into_iter();
    let mut seen = Vec::new();
    write_whole(10, b"abcdef", |bytes, at| {
        seen.push((bytes.to_vec(), at));
        answers.next().expect("no more calls than answers")
    })
    .unwrap();
    let places: Vec<u64> = seen.iter().map(|(_, at)| *at).collect();
    assert_eq!(places, [10, 12, 12, 15]);
    assert_eq!(seen[3].0, b"f");
    assert_eq!(kind(write_whole(0, b"x", |_, _| Ok(0))), io::ErrorKind::WriteZero);
    let mut buf = [0; 4];
    read_whole(0, &mut buf, |bytes, _| {
        bytes[0] = 1;
        Ok(1)
    })
    .unwrap();
    assert_eq!(buf, [1; 4]);
}

/// Prints the cost of an append of 100 bytes with and without a mapping.
#[test]
#[ignore = "a measurement"]
fn measure_appends() {
    use crate::clock::{Clock, SystemClock};
    let scratch = ScratchDir::new();
    let file = scratch.file("a", 0);
    let len = 16 << 20;
    file.allocate(len).unwrap();
    file.map(len);
    for resident in [false, true] {
        if resident {
            file.make_resident(0, len);
        }
        let (start, count) = (SystemClock.now(), 100_000_u32);
        for n in 0..count {
            file.append_at(u64::from(n) * 100, &[1; 100]).unwrap();
        }
        let each = (SystemClock.now() - start) / count;
        println!("resident {resident}: {each:?} per append");
    }
}

/// Regression: a process that lost the race for a parent directory reported that it exists.
#[test]
fn missing_parents_are_created_by_several_threads() {
    let scratch = ScratchDir::new();
    for round in 0..200 {
        let path = scratch.path(&format!("{round}/b/c/d"));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| crate::disk::create_dirs(&RealDisk::default(), &path).unwrap());
            }
        });
        assert!(path.is_dir());
    }
    crate::disk::create_dirs(&RealDisk::default(), &scratch.path("new/../0/other")).unwrap();
    assert!(scratch.path("0/other").is_dir());
}
