//! # Damages: lists of damages, and the databases to which they are applied

#![allow(clippy::cast_possible_truncation)] // numbers here are small by construction

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sheaf_platform::disk::SECTOR;
use sheaf_platform::sync::Mutex;
use sheaf_sim::{KeepChoice, SimDisk};

use super::{InjectedDamage, StoredDatabase};
use crate::crash::machine::TestMachine;
use crate::crash::run::WorkloadRun;
use crate::crash::workload::{CrashStep, TestRandom};
use crate::fixture::TestSubject;

impl StoredDatabase {
    /// Returns a database after `steps` and a close.
    ///
    /// # Panics
    ///
    /// Panics if the workload fails.
    #[must_use]
    pub fn closed(steps: &[CrashStep]) -> StoredDatabase {
        StoredDatabase::closed_with(&TestSubject::flat(), steps)
    }

    /// Like [`StoredDatabase::closed`], for any engine.
    ///
    /// # Panics
    ///
    /// Panics if the workload fails.
    #[must_use]
    pub fn closed_with(subject: &TestSubject, steps: &[CrashStep]) -> StoredDatabase {
        let mut run = WorkloadRun::new(TestMachine::for_subject(subject, SimDisk::new()));
        run.run_steps(steps).expect("no faults: the workload runs");
        let db = run.db().expect("it is open");
        run.drop_handles();
        db.close().expect("no faults: it closes");
        let history = run.history.lock().clone();
        let from = history.fingerprints.len() - 1;
        StoredDatabase { sim: run.machine.sim.kill(), min_commits: from, history, subject: subject.clone() }
    }

    /// Returns a database after `steps` and a kill of the process.
    ///
    /// # Panics
    ///
    /// Panics if the workload fails.
    #[must_use]
    pub fn killed(steps: &[CrashStep]) -> StoredDatabase {
        StoredDatabase::killed_with(&TestSubject::flat(), steps)
    }

    /// Like [`StoredDatabase::killed`], for any engine.
    ///
    /// # Panics
    ///
    /// Panics if the workload fails.
    #[must_use]
    pub fn killed_with(subject: &TestSubject, steps: &[CrashStep]) -> StoredDatabase {
        let mut run = WorkloadRun::new(TestMachine::for_subject(subject, SimDisk::new()));
        run.run_steps(steps).expect("no faults: the workload runs");
        let history = run.history.lock().clone();
        let from = history.marks.durable;
        StoredDatabase { sim: run.machine.sim.kill(), min_commits: from, history, subject: subject.clone() }
    }

    /// Returns a database after `steps`, `last`, and a power cut that loses all unsynced data.
    ///
    /// # Panics
    ///
    /// Panics if the workload fails.
    #[must_use]
    pub fn power_cut(subject: &TestSubject, steps: &[CrashStep], last: &[CrashStep]) -> StoredDatabase {
        let mut run = WorkloadRun::new(TestMachine::for_subject(subject, SimDisk::new()));
        run.run_steps(steps).expect("no faults: the workload runs");
        // Data that the `last` steps sync is durable, but no durable mark says so. Damage to it
        // looks like a torn tail.
        let from = run.history.lock().marks.durable;
        for (number, step) in (steps.len()..).zip(last) {
            run.run_step(number, step).expect("no faults: the workload runs");
        }
        let history = run.history.lock().clone();
        let sim = run.machine.sim.power_cut(&KeepChoice::None);
        StoredDatabase { sim, min_commits: from, history, subject: subject.clone() }
    }

    /// Returns a database that was killed in the middle of the background work after `steps`: half
    /// of its disk calls were made.
    ///
    /// # Panics
    ///
    /// Panics if the workload fails.
    #[must_use]
    pub fn killed_during_background_work(subject: &TestSubject, steps: &[CrashStep]) -> StoredDatabase {
        let mut run = WorkloadRun::new(TestMachine::for_subject(subject, SimDisk::new()));
        run.run_steps(steps).expect("no faults: the workload runs");
        let history = run.history.lock().clone();
        let images: Arc<Mutex<Vec<SimDisk>>> = Arc::default();
        let (seen, sim) = (Arc::clone(&images), run.machine.sim.clone());
        run.machine.recording_disk.set_observer(move |_, _| seen.lock().push(sim.kill()));
        run.run_step(steps.len(), &CrashStep::Background).expect("no faults: the work is done");
        run.machine.recording_disk.clear_observer();
        let images = std::mem::take(&mut *images.lock());
        let sim = images.get(images.len() / 2).map_or_else(|| run.machine.sim.kill(), SimDisk::clone);
        let from = history.marks.durable;
        StoredDatabase { sim, min_commits: from, history, subject: subject.clone() }
    }

    pub(super) fn bytes(&self, path: &Path) -> Vec<u8> {
        self.sim.read_file(path).expect("listed a moment ago")
    }

    /// Returns a bit flip in every `stride`-th byte, from an offset drawn from `seed`.
    pub fn bit_flips(&self, stride: u64, seed: u64) -> impl Iterator<Item = InjectedDamage> {
        let mut random = TestRandom::new(seed);
        let files = self.files();
        files.into_iter().flat_map(move |(path, len)| {
            let start = random.below(stride);
            let bits: Vec<u8> = (start..len)
                .step_by(usize::try_from(stride).unwrap_or(1))
                .map(|_| random.below(8) as u8)
                .collect();
            let offsets = (start..len).step_by(usize::try_from(stride).unwrap_or(1));
            offsets
                .zip(bits)
                .map(move |(offset, bit)| InjectedDamage::Flip(path.clone(), offset, bit))
                .collect::<Vec<_>>()
        })
    }

    /// Returns, for every written sector: zeros, ones, the next sector, and a sector of another
    /// file. With `older`, also the content that the sector had there.
    #[must_use]
    pub fn sector_damages(&self, older: Option<&StoredDatabase>) -> Vec<InjectedDamage> {
        let mut damages = Vec::new();
        let files: Vec<(PathBuf, Vec<u8>)> =
            self.files().into_iter().map(|(path, _)| (path.clone(), self.bytes(&path))).collect();
        for (number, (path, bytes)) in files.iter().enumerate() {
            let sectors: Vec<&[u8]> = bytes.chunks(SECTOR as usize).collect();
            let other = &files[(number + 1) % files.len()].1;
            let before = older.and_then(|stored_db| stored_db.sim.read_file(path).ok());
            for (index, sector) in sectors.iter().enumerate() {
                let mut put = |bytes: Option<&[u8]>, what| {
                    if let Some(bytes) = bytes.filter(|b| b.len() == sector.len() && b != sector) {
                        damages.push(InjectedDamage::Write(
                            path.clone(),
                            index as u64 * SECTOR,
                            bytes.to_vec(),
                            what,
                        ));
                    }
                };
                let is_written = sector.iter().any(|byte| *byte != 0);
                let part = |bytes: &[u8]| bytes.chunks(SECTOR as usize).nth(index).map(<[u8]>::to_vec);
                if is_written {
                    put(Some(&vec![0; sector.len()]), "sector zeroed");
                    put(Some(&vec![0xff; sector.len()]), "sector filled");
                    put(sectors.get(index + 1).copied(), "next sector copied over");
                    put(part(other).as_deref(), "sector of another file copied over");
                }
                put(before.as_deref().and_then(part).as_deref(), "older sector");
            }
        }
        damages
    }

    /// Returns, for every file: truncation at each multiple of `step`, and extension by zeros.
    #[must_use]
    pub fn length_damages(&self, step: u64) -> Vec<InjectedDamage> {
        let files = self.files().into_iter();
        files
            .flat_map(|(path, len)| {
                let written =
                    self.bytes(&path).iter().rposition(|b| *b != 0).map_or(0, |last| last as u64 + 1);
                let cuts = (0..=written.min(len)).step_by(usize::try_from(step).unwrap_or(1));
                let lens: Vec<u64> = cuts.chain([written.saturating_sub(1), len + 1, len + 5000]).collect();
                lens.into_iter()
                    .filter(move |new| *new != len)
                    .map(move |new| InjectedDamage::Length(path.clone(), new))
            })
            .collect()
    }

    /// Returns, for every file: missing, empty, and replaced by each other file, by its version in
    /// `older`, or by the same file of `foreign`. Also returns a copy of it with a new name.
    #[must_use]
    pub fn file_damages(&self, older: &StoredDatabase, foreign: &StoredDatabase) -> Vec<InjectedDamage> {
        let mut damages = Vec::new();
        for (path, _) in self.files() {
            damages.push(InjectedDamage::Missing(path.clone()));
            damages.push(InjectedDamage::File(path.clone(), Vec::new(), "empty"));
            for (from, what) in [(older, "as it was"), (foreign, "another database's")] {
                if let Ok(bytes) = from.sim.read_file(&path)
                    && bytes != self.bytes(&path)
                {
                    damages.push(InjectedDamage::File(path.clone(), bytes, what));
                }
            }
            for (other, _) in self.files() {
                if other != path {
                    damages.push(InjectedDamage::File(
                        path.clone(),
                        self.bytes(&other),
                        "a copy of another file",
                    ));
                }
            }
            let stem = path.file_name().and_then(|name| name.to_str()).unwrap_or("x");
            damages.push(InjectedDamage::File(
                path.with_file_name(format!("{stem}.copy")),
                self.bytes(&path),
                "an unknown file",
            ));
        }
        damages
    }
}
