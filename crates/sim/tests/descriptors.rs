//! Tests of the cache over the real disk and the simulated one, and with several threads.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]
#![allow(clippy::disallowed_methods, reason = "tests of the disk layer access files directly")]

use sheaf_platform::error::IoOp;
use std::path::Path;
use std::sync::Arc;

use sheaf_platform::disk::real::RealDisk;
use sheaf_platform::disk::{Disk, File, MIN_OPEN_FILES, OpenMode, Permissions};
use sheaf_sim::{CallClass, Fault, FaultKind, KeepChoice, SimDisk};
use tempfile::tempdir;

const FILES: usize = 100;

/// Runs `test` on both disks, each with a descriptor limit and a directory.
fn with_each_disk(test: impl Fn(&dyn Disk, &Path)) {
    let scratch = tempdir().unwrap();
    test(&*RealDisk::default().with_descriptor_limit(MIN_OPEN_FILES).unwrap(), scratch.path());
    let sim = SimDisk::new();
    sim.create_dir(Path::new("/d")).unwrap();
    test(&*sim.with_descriptor_limit(MIN_OPEN_FILES).unwrap(), Path::new("/d"));
}

fn bytes(number: usize) -> [u8; 8] {
    (number as u64).to_le_bytes()
}

fn read(file: &dyn File) -> [u8; 8] {
    let mut bytes = [0; 8];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

/// Creates files that contain their number, synced or not.
fn files(disk: &dyn Disk, dir: &Path, synced: bool) -> Vec<Arc<dyn File>> {
    let made = (0..FILES).map(|number| {
        let file = disk.open(&dir.join(number.to_string()), OpenMode::Create).unwrap();
        file.write_at(0, &bytes(number)).unwrap();
        if synced {
            file.sync().unwrap();
        }
        file
    });
    made.collect()
}

fn is_within_bound(disk: &dyn Disk) {
    let stats = disk.descriptors().unwrap();
    assert!(stats.in_use <= stats.limit && stats.limit == MIN_OPEN_FILES, "{stats:?}");
}

/// Uses other files until all idle files have lost their descriptors.
fn crowd_out(disk: &dyn Disk, dir: &Path) {
    let crowd = dir.join("crowd");
    disk.create_dir(&crowd).unwrap();
    drop(files(disk, &crowd, true));
    is_within_bound(disk);
}

#[test]
fn any_number_of_files_takes_no_more_descriptors_than_the_bound() {
    for synced in [true, false] {
        with_each_disk(|disk, dir| {
            let files = files(disk, dir, synced);
            is_within_bound(disk);
            for (number, file) in files.iter().enumerate() {
                assert_eq!(read(&**file), bytes(number));
                file.write_at(0, &bytes(number + 1)).unwrap();
                assert_eq!(file.len().unwrap(), 8);
            }
            is_within_bound(disk);
            assert!(disk.descriptors().unwrap().reopened >= FILES as u64 - u64::from(MIN_OPEN_FILES));
            files.iter().for_each(|file| file.sync().unwrap());
            drop(files);
            assert!(disk.descriptors().unwrap().in_use <= 1, "the spare one");
        });
    }
}

#[test]
fn a_descriptor_is_closed_only_after_its_writes_are_durable() {
    let sim = SimDisk::new();
    sim.create_dir(Path::new("/d")).unwrap();
    sim.sync_dir(Path::new("/")).unwrap();
    let disk = sim.with_descriptor_limit(MIN_OPEN_FILES).unwrap();
    let files = files(&*disk, Path::new("/d"), false);
    disk.sync_dir(Path::new("/d")).unwrap();
    let image = sim.power_cut(&KeepChoice::None);
    let durable = (0..FILES).filter(|number| {
        image.read_file(&Path::new("/d").join(number.to_string())).is_ok_and(|is| is == bytes(*number))
    });
    assert!(durable.count() >= files.len() - MIN_OPEN_FILES as usize);
}

#[test]
fn after_a_failed_early_sync_every_sync_fails() {
    let sim = SimDisk::new();
    sim.create_dir(Path::new("/d")).unwrap();
    let disk = sim.with_descriptor_limit(MIN_OPEN_FILES).unwrap();
    sim.set_faults(Fault::new(CallClass::Sync, FaultKind::Io));
    let files = files(&*disk, Path::new("/d"), false);
    assert_eq!(sim.injected(), 1);
    assert!(files.iter().all(|file| file.sync().is_err()));
    assert!(disk.sync_dir(Path::new("/d")).is_err());
    assert!(disk.volume(Path::new("/d")).unwrap().sync().is_err());
    assert!(files.iter().enumerate().all(|(number, file)| read(&**file) == bytes(number)));
}

#[test]
fn a_sync_of_the_volume_lets_descriptors_be_closed_without_another_sync() {
    let sim = SimDisk::new();
    sim.create_dir(Path::new("/d")).unwrap();
    let disk = sim.with_descriptor_limit(MIN_OPEN_FILES).unwrap();
    let volume = disk.volume(Path::new("/d")).unwrap();
    let some: Vec<_> = (0..MIN_OPEN_FILES)
        .map(|number| {
            let file = disk.open(&Path::new("/d").join(format!("s{number}")), OpenMode::Create).unwrap();
            file.write_at(0, b"x").unwrap();
            file
        })
        .collect();
    volume.sync().unwrap();
    sim.log_classes(true);
    drop(files(&*disk, Path::new("/d"), true));
    assert_eq!(sim.class_log().iter().filter(|class| **class == CallClass::Sync).count(), FILES);
    drop(some);
}

#[test]
fn a_file_is_followed_by_its_names() {
    with_each_disk(|disk, dir| {
        let make = |name: &str| {
            let file = disk.open(&dir.join(name), OpenMode::Create).unwrap();
            file.write_at(0, &bytes(name.len())).unwrap();
            file.sync().unwrap();
            file
        };
        disk.create_dir(&dir.join("sub")).unwrap();
        let (renamed, linked, removed) = (make("a"), make("bb"), make("ccc"));
        let (below, replaced) = (make("sub/d"), make("replaced"));
        crowd_out(disk, dir);
        disk.rename(&dir.join("a"), &dir.join("a2")).unwrap();
        disk.link(&dir.join("bb"), &dir.join("bb2")).unwrap();
        disk.remove(&dir.join("bb")).unwrap();
        disk.remove(&dir.join("ccc")).unwrap();
        disk.rename(&dir.join("sub"), &dir.join("sub2")).unwrap();
        let other = make("other");
        disk.rename(&dir.join("other"), &dir.join("replaced")).unwrap();
        let again = make("ccc");
        again.write_at(0, &bytes(77)).unwrap();
        disk.create_dir(&dir.join("more")).unwrap();
        crowd_out(disk, &dir.join("more"));
        assert_eq!(read(&*renamed), bytes(1));
        assert_eq!(read(&*linked), bytes(2));
        assert_eq!(read(&*removed), bytes(3));
        assert_eq!(read(&*below), bytes(5));
        assert_eq!(read(&*replaced), bytes(8));
        assert_eq!(read(&*other), bytes(5));
        assert_eq!(read(&*again), bytes(77));
    });
}

#[test]
fn a_disk_keeps_its_bound_under_other_modes_and_its_modes_under_a_bound() {
    let scratch = tempdir().unwrap();
    let real = RealDisk::default();
    let wide = Permissions::of_files(0o666);
    let unbounded = real.with_permissions(wide).unwrap();
    let made = |disk: &dyn Disk, name: &str| {
        let (file, dir) = (scratch.path().join(name), scratch.path().join(format!("{name}-dir")));
        disk.open(&file, OpenMode::Create).unwrap();
        disk.create_dir(&dir).unwrap();
        (disk.mode(&file).unwrap(), disk.mode(&dir).unwrap())
    };
    let expected = made(&*unbounded, "unbounded");
    let bounded = real.with_descriptor_limit(MIN_OPEN_FILES).unwrap();
    let permitted = bounded.with_permissions(wide).unwrap();
    let disks = [
        &permitted,
        &unbounded.with_descriptor_limit(MIN_OPEN_FILES).unwrap(),
        &permitted.with_descriptor_limit(MIN_OPEN_FILES).unwrap(),
    ];
    for (number, disk) in disks.into_iter().enumerate() {
        assert_eq!(made(&**disk, &format!("disk-{number}")), expected, "{number}");
        assert_eq!(disk.descriptors().map(|stats| stats.limit), Some(MIN_OPEN_FILES), "{number}");
        assert_eq!(disk.is_read_only(scratch.path()), real.is_read_only(scratch.path()));
    }
    let _files = files(&*bounded, scratch.path(), true);
    assert_eq!(permitted.descriptors(), bounded.descriptors(), "it is one bound");
    is_within_bound(&*permitted);
}

#[test]
fn a_different_file_under_the_same_name_is_refused() {
    let scratch = tempdir().unwrap();
    let disk = RealDisk::default().with_descriptor_limit(MIN_OPEN_FILES).unwrap();
    let path = scratch.path().join("a");
    let file = disk.open(&path, OpenMode::Create).unwrap();
    file.write_at(0, &bytes(1)).unwrap();
    file.sync().unwrap();
    crowd_out(&*disk, scratch.path());
    std::fs::rename(&path, scratch.path().join("away")).unwrap();
    let gone = file.read_at(0, &mut [0; 8]).unwrap_err();
    assert_eq!(gone.kind(), std::io::ErrorKind::NotFound);
    std::fs::write(&path, bytes(2)).unwrap();
    let foreign = file.read_at(0, &mut [0; 8]).unwrap_err();
    assert!(foreign.to_string().contains("another program"), "{foreign}");
    std::fs::rename(scratch.path().join("away"), &path).unwrap();
    assert_eq!(read(&*file), bytes(1));
}

#[test]
fn a_mapped_file_needs_no_descriptor_even_without_a_name() {
    let scratch = tempdir().unwrap();
    let disk = RealDisk::default().with_descriptor_limit(MIN_OPEN_FILES).unwrap();
    let mapped: Vec<_> = (0..FILES)
        .map(|number| {
            let path = scratch.path().join(format!("m{number}"));
            let file = disk.open(&path, OpenMode::Create).unwrap();
            file.write_at(0, &bytes(number).repeat(1024)).unwrap();
            file.sync().unwrap();
            file.map(8192);
            disk.remove(&path).unwrap();
            file
        })
        .collect();
    is_within_bound(&*disk);
    crowd_out(&*disk, scratch.path());
    let before = disk.descriptors().unwrap().reopened;
    for (number, file) in mapped.iter().enumerate() {
        // SAFETY: written above, and not written again.
        assert_eq!(unsafe { file.mapped(8, 8) }, Some(&bytes(number)[..]));
        assert_eq!((read(&**file), file.len().unwrap()), (bytes(number), 8192));
        assert!(file.is_cached(0));
        file.will_need(0, 8192);
        file.sync().expect("all of it is durable");
        file.sync_to(8192).expect("all of it is durable");
    }
    assert_eq!(disk.descriptors().unwrap().reopened, before);
}

#[test]
fn a_store_into_the_mapping_is_synced_before_the_descriptor_goes() {
    let scratch = tempdir().unwrap();
    let disk = RealDisk::default().with_descriptor_limit(MIN_OPEN_FILES).unwrap();
    let file = disk.open(&scratch.path().join("log"), OpenMode::Create).unwrap();
    file.allocate(1 << 20).unwrap();
    file.sync().unwrap();
    file.map(1 << 20);
    file.make_resident(0, 1 << 20);
    for round in 0..4u64 {
        file.append_at(round * 8, &bytes(usize::try_from(round).unwrap())).unwrap();
        disk.create_dir(&scratch.path().join(round.to_string())).unwrap();
        crowd_out(&*disk, &scratch.path().join(round.to_string()));
        if round == 2 {
            file.sync_to(24).unwrap();
        }
    }
    let mut all = [0; 32];
    file.read_at(0, &mut all).unwrap();
    assert_eq!(all, [bytes(0), bytes(1), bytes(2), bytes(3)].as_flattened());
}

#[test]
fn a_process_without_descriptors_closes_idle_ones() {
    let sim = SimDisk::new();
    sim.create_dir(Path::new("/d")).unwrap();
    let disk = sim.with_descriptor_limit(1000).unwrap();
    sim.set_descriptors(3);
    for synced in [true, false] {
        let files = files(&*disk, Path::new("/d"), synced);
        assert!(files.iter().enumerate().all(|(number, file)| read(&**file) == bytes(number)));
        drop(files);
        (0..FILES).for_each(|number| disk.remove(&Path::new("/d").join(number.to_string())).unwrap());
    }
    sim.set_descriptors(0);
    let none = disk.open(Path::new("/d/new"), OpenMode::Create).unwrap_err();
    let error = sheaf_platform::error::Error::io(IoOp::Create, Path::new("/d/new"), none);
    assert!(error.to_string().contains("no file descriptor left for /d/new"), "{error}");
    assert!(!error.is_failed_sync());
}

#[test]
fn threads_use_more_files_than_there_are_descriptors() {
    let scratch = tempdir().unwrap();
    let disk = RealDisk::default().with_descriptor_limit(MIN_OPEN_FILES).unwrap();
    let files = files(&*disk, scratch.path(), false);
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let files = &files;
            scope.spawn(move || {
                for step in 0..2_000usize {
                    let number = (step * 31 + thread * 7) % FILES;
                    assert_eq!(read(&*files[number]), bytes(number));
                    if step % 5 == thread {
                        files[number].write_at(0, &bytes(number)).unwrap();
                    }
                    if step % 50 == thread {
                        files[number].sync().unwrap();
                    }
                }
            });
        }
    });
    let stats = disk.descriptors().unwrap();
    assert!(stats.in_use <= MIN_OPEN_FILES + 4, "{stats:?}");
    assert!(stats.reopened > 0);
}
