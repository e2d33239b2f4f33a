//! # Shapes of cedrus: branching, sluggishness and hash length, as in Figures 4 and 9 of CedrusDB
//!
//! ```text
//!   the trie alone   grown from random hashes without data: bytes per key, nodes on the path,
//!                    slots, lists; compared with the model
//!   --seconds        a keyspace with these options: inserts of all pairs, random gets, one thread
//! ```
//!
//! The first mode does not depend on other load of the machine. The second one runs each shape
//! once, in the given order: only large differences are significant.

use std::path::Path;
use std::time::{Duration, Instant};

use ::sheaf::{Database, EngineOptions, Keyspace, KeyspaceOptions};
use sheaf_cedrus::shape::TrieShape;

use crate::args;
use crate::cedrus_model::{TrieEstimate, TrieMeasurement, estimate, measure_growth};
use crate::keys::permute;
use crate::promise_table::{markdown, number};
use crate::run_dir::RunDir;
use crate::{Result, subjects};

/// Lengths of key and value, as in the paper.
const KEY: usize = 32;
const VALUE: usize = 128;
/// Share of a page that is used, for the model if no trie was grown.
const PAGE_FILL: f64 = 0.93;
/// Largest trie that is grown. For larger ones only the model is printed.
const MAX_TRIE_BYTES: f64 = 2e9;

/// A shape given by the options of a user.
#[derive(Clone, Copy)]
struct ChosenShape([(&'static str, u64); 3]);

impl ChosenShape {
    fn shape(self) -> TrieShape {
        let mut options = EngineOptions::default();
        self.0.iter().for_each(|(name, value)| options.set(name, *value));
        TrieShape::from_options(&options, false)
    }

    fn cells(self) -> impl Iterator<Item = String> {
        self.0.into_iter().map(|(_, value)| value.to_string())
    }
}

/// Measures all shapes and prints a table.
pub(crate) fn run(options: &args::ShapesArgs) -> Result<()> {
    let mut all = Vec::new();
    for branching in &options.branching {
        for sluggishness in &options.sluggishness {
            for bits in &options.hash_bits {
                let chosen =
                    [("branching", *branching), ("sluggishness", *sluggishness), ("hash-bits", *bits)];
                check(&chosen)?;
                all.push(ChosenShape(chosen));
            }
        }
    }
    match options.phase {
        Some(phase) => throughput(options, &all, phase),
        None => footprint(options, &all),
    }
}

fn check(chosen: &[(&str, u64)]) -> Result<()> {
    let specs = sheaf::engine_options(subjects::BenchSubject::CEDRUS.name());
    for (name, value) in chosen {
        if let Some(spec) = specs.iter().find(|spec| spec.name == *name && !spec.allows(*value)) {
            return Err(format!("{value} is not allowed for {spec}").into());
        }
    }
    Ok(())
}

fn footprint(options: &args::ShapesArgs, all: &[ChosenShape]) -> Result<()> {
    let head = [
        "branching",
        "sluggishness",
        "hash bits",
        "keys",
        "bytes a key: real",
        "model",
        "nodes on the path: real",
        "model",
        "slots taken",
        "lists full",
        "pages full",
        "other records read a miss",
    ];
    let mut rows = Vec::new();
    for chosen in all {
        let shape = chosen.shape();
        let fits = |keys: &u64| {
            estimate(&shape, *keys as f64, PAGE_FILL).bytes_per_key * (*keys as f64) < MAX_TRIE_BYTES
        };
        let sizes: Vec<u64> = options.pairs.iter().copied().filter(fits).collect();
        let real = measure_growth(shape, &sizes);
        for keys in &options.pairs {
            let real = real.iter().find(|(size, _)| size == keys).map(|(_, measured)| *measured);
            let modelled = estimate(&shape, *keys as f64, real.map_or(PAGE_FILL, |real| real.page_fill));
            rows.push(chosen.cells().chain([keys.to_string()]).chain(figures(real, modelled)).collect());
        }
    }
    println!("{}", markdown(&head.map(str::to_owned), &rows));
    Ok(())
}

fn figures(real: Option<TrieMeasurement>, modelled: TrieEstimate) -> [String; 8] {
    let of = |figure: fn(&TrieMeasurement) -> f64| {
        real.as_ref().map_or("-".to_owned(), |real| number(figure(real)))
    };
    [
        of(|real| real.bytes_per_key),
        number(modelled.bytes_per_key),
        of(|real| real.nodes_per_path),
        number(modelled.nodes_per_path),
        of(|real| real.reference_fill),
        of(|real| real.list_fill),
        of(|real| real.page_fill),
        format!("{:.4}", modelled.foreign_records),
    ]
}

fn throughput(options: &args::ShapesArgs, all: &[ChosenShape], phase: Duration) -> Result<()> {
    let most = options.pairs.iter().copied().max().unwrap_or_default();
    let place = RunDir::new(&options.dir.path, (1 << 28) + most * (KEY + VALUE) as u64 * 3)?;
    let head = [
        "branching",
        "sluggishness",
        "hash bits",
        "keys",
        "memory MiB",
        "inserts k/s",
        "gets k/s",
        "index bytes a key",
    ];
    let mut rows = Vec::new();
    for keys in &options.pairs {
        for chosen in all {
            for memory in &options.memory {
                let dir = place.fresh("shape")?;
                let row = measure_shape(&dir, *chosen, *keys, *memory << 20, phase)?;
                let lead = chosen.cells().chain([keys.to_string(), memory.to_string()]);
                rows.push(lead.chain(row.map(number)).collect());
            }
        }
    }
    println!("{}", markdown(&head.map(str::to_owned), &rows));
    Ok(())
}

/// Returns thousand inserts and gets per second, and bytes of the index per key.
fn measure_shape(
    dir: &Path,
    chosen: ChosenShape,
    keys: u64,
    memory: u64,
    phase: Duration,
) -> Result<[f64; 3]> {
    let db = Database::builder().memory(memory).open(dir)?;
    let asked = KeyspaceOptions::from(subjects::BenchSubject::CEDRUS.name());
    let asked = chosen.0.iter().fold(asked, |asked, (name, value)| asked.option(name, *value));
    let keyspace = db.keyspace("k", asked)?;
    let began = Instant::now();
    let value = [7; VALUE];
    for n in 0..keys {
        keyspace.insert(key(n), value)?;
    }
    let inserts = keys as f64 / began.elapsed().as_secs_f64();
    db.persist()?;
    let gets = gets(&keyspace, keys, phase)?;
    let index = keyspace.stats()?.index_bytes as f64 / keys as f64;
    drop(keyspace);
    db.close()?;
    Ok([inserts / 1e3, gets / 1e3, index])
}

fn gets(keyspace: &Keyspace, keys: u64, phase: Duration) -> Result<f64> {
    let (began, mut done) = (Instant::now(), 0u64);
    while began.elapsed() < phase {
        for n in done..done + 256 {
            if keyspace.get_with(key(permute(n) % keys), <[u8]>::len)? != Some(VALUE) {
                return Err("a pair is missing".into());
            }
        }
        done += 256;
    }
    Ok(done as f64 / began.elapsed().as_secs_f64())
}

fn key(n: u64) -> [u8; KEY] {
    let mut key = [0; KEY];
    for (word, part) in (n << 2..).zip(key.chunks_exact_mut(8)) {
        part.copy_from_slice(&permute(word).to_be_bytes());
    }
    key
}
