//! # Keyspaces: names, engines, options, creation and removal

pub mod renames;

use super::{bytes, get, key, refused, sorted};
use crate::fixture::Fixture;
use sheaf::{BackupOptions, BulkLoadOptions, Database, Error, KeyspaceOptions, OptionSpec};
use std::ops::ControlFlow;
use std::sync::Arc;

pub fn an_engine_is_remembered_and_another_refused(fixture: &Fixture) {
    let (engine, other) = (fixture.subject.engine, fixture.subject.other_engine);
    let mut db = fixture.open();
    fixture.keyspace(&db, "a").insert("k", "v").unwrap();
    for life in 0..3 {
        let wrong = KeyspaceOptions::default().engine(other);
        refused!(db.keyspace("a", wrong), Error::EngineMismatch { name, found, requested } if name == "a" && found == engine && requested == other);
        let ks = fixture.keyspace(&db, "a");
        assert_eq!((ks.engine(), ks.name().as_str()), (engine, "a"));
        assert_eq!(get(&ks, "k").as_deref(), Some(&b"v"[..]), "nothing was touched");
        drop(ks);
        db = if life == 0 { fixture.kill_and_reopen(db) } else { fixture.reopen(db) };
    }
}

pub fn a_keyspace_opens_with_its_stored_engine_if_none_is_given(fixture: &Fixture) {
    let db = fixture.open();
    fixture.keyspace(&db, "a").insert("k", "v").unwrap();
    let ks = db.keyspace("a", KeyspaceOptions::default()).unwrap();
    assert_eq!(ks.engine(), fixture.subject.engine);
    assert_eq!(get(&ks, "k").as_deref(), Some(&b"v"[..]));
    let new = db.keyspace("b", KeyspaceOptions::default()).unwrap();
    assert_eq!(new.engine(), sheaf::DEFAULT_ENGINE);
}

pub fn an_unknown_engine_is_refused(fixture: &Fixture) {
    let db = fixture.open();
    let unknown = KeyspaceOptions::default().engine("no such engine");
    refused!(db.keyspace("a", unknown.clone()), Error::InvalidArgument { .. });
    assert!(db.keyspaces().is_empty());
    let _ks = fixture.keyspace(&db, "a");
    refused!(db.keyspace("a", unknown), Error::EngineMismatch { .. } | Error::InvalidArgument { .. });
}

pub fn an_option_that_the_engine_does_not_have_is_refused(fixture: &Fixture) {
    let (engine, db) = (fixture.subject.engine, fixture.open());
    let unknown = || fixture.subject.options().option("no such option", 1);
    let says = |why: &str| why.contains("no such option") && why.contains(engine);
    refused!(db.keyspace("a", unknown()), Error::InvalidArgument { argument: "option", reason } if says(&reason));
    assert!(db.keyspaces().is_empty());
    fixture.keyspace(&db, "a").insert("k", "v").unwrap();
    refused!(db.keyspace("a", unknown()), Error::InvalidArgument { argument: "option", reason } if says(&reason));
    refused!(
        db.convert("a", unknown(), |_| ControlFlow::Continue(())),
        Error::InvalidArgument { argument: "option", .. }
    );
    let load = BulkLoadOptions::default().engine(engine).option("no such option", 1).replace(true);
    refused!(db.bulk_load("a", load), Error::InvalidArgument { argument: "option", .. });
    assert_eq!(get(&fixture.keyspace(&db, "a"), "k").as_deref(), Some(&b"v"[..]), "nothing was touched");
}

pub fn values_beyond_the_range_of_an_option_are_refused(fixture: &Fixture) {
    let (engine, db) = (fixture.subject.engine, fixture.open());
    for spec in sheaf::engine_options(engine) {
        assert!(spec.allows(spec.default) && spec.allows(spec.min) && spec.allows(spec.max), "{spec}");
        for value in [0, spec.min - 1, spec.max + 1, u64::MAX] {
            let asked = KeyspaceOptions::from(engine).option(spec.name, value);
            let says = |why: &str| {
                let parts = [spec.name.to_owned(), spec.min.to_string(), spec.max.to_string()];
                parts.iter().all(|part| why.contains(part)) && why.contains(&spec.default.to_string())
            };
            refused!(db.keyspace("a", asked), Error::InvalidArgument { argument: "option", reason } if says(&reason));
        }
    }
    assert!(db.keyspaces().is_empty());
}

/// Returns a non-default value for each option of an engine.
fn non_default_options(engine: &str) -> Vec<(&'static str, u64)> {
    let other = |spec: &OptionSpec| if spec.min == spec.default { spec.max } else { spec.min };
    sheaf::engine_options(engine).iter().map(|spec| (spec.name, other(spec))).collect()
}

fn options_with(engine: &str, chosen: &[(&'static str, u64)]) -> KeyspaceOptions {
    let options = KeyspaceOptions::from(engine);
    chosen.iter().fold(options, |options, (name, value)| options.option(name, *value))
}

/// Returns the options that the database reports.
fn chosen_options(db: &Database, name: &str) -> Vec<(String, u64)> {
    let info = db.keyspaces().into_iter().find(|info| info.name == name).expect("it is listed");
    let options = db.open_keyspace(name).unwrap().expect("it is there").options();
    assert_eq!(info.options, options);
    options.iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn owned_options(chosen: &[(&'static str, u64)]) -> Vec<(String, u64)> {
    let mut all: Vec<_> = chosen.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    all.sort();
    all
}

fn root_versions(fixture: &Fixture) -> [u8; 2] {
    ["ROOT.0", "ROOT.1"].map(|slot| fixture.read_file(&fixture.path().join(slot))[8])
}

pub fn chosen_options_survive_every_reopen(fixture: &Fixture) {
    let engine = fixture.subject.engine;
    let all = non_default_options(engine);
    let mut db = fixture.open();
    fixture.other_keyspace(&db, "beside").insert("k", "v").unwrap();
    assert_eq!(root_versions(fixture), [6, 6], "older builds can read a database without options");
    let ks = db.keyspace("a", options_with(engine, &all)).unwrap();
    assert_eq!(root_versions(fixture), if all.is_empty() { [6, 6] } else { [7, 7] }, "but none with options");
    for index in 0..200 {
        ks.insert(key(index), bytes(50, index as u64)).unwrap();
    }
    let pairs = sorted(&ks);
    drop(ks);
    for life in 0..5 {
        assert_eq!(chosen_options(&db, "a"), owned_options(&all), "life {life}");
        assert_eq!(chosen_options(&db, "beside"), []);
        // Opening with all stored options, with some of them, or with none succeeds; other values
        // are refused.
        for asked in [&all[..], &all[..all.len().min(1)], &[]] {
            assert_eq!(sorted(&db.keyspace("a", options_with(engine, asked)).unwrap()), pairs);
        }
        for spec in sheaf::engine_options(engine) {
            let usual = options_with(engine, &[(spec.name, spec.default)]);
            refused!(db.keyspace("a", usual.clone()), Error::EngineMismatch { requested, .. } if requested.contains(spec.name));
            drop(db.keyspace(&format!("usual {}", spec.name), usual).unwrap());
        }
        db = match life {
            0 | 3 => fixture.kill_and_reopen(db),
            _ => fixture.reopen(db),
        };
    }
    db.verify(|damage| panic!("{damage}")).unwrap();
}

pub fn chosen_options_survive_clears_and_loads_but_not_drops(fixture: &Fixture) {
    let engine = fixture.subject.engine;
    let all = non_default_options(engine);
    let mut db = fixture.open();
    let ks = db.keyspace("a", options_with(engine, &all)).unwrap();
    for index in 0..60 {
        ks.insert(key(index), "v").unwrap();
    }
    ks.clear().unwrap();
    ks.insert("after", "all").unwrap();
    assert_eq!((chosen_options(&db, "a"), ks.len().unwrap()), (owned_options(&all), 1));
    drop(ks);
    db = fixture.kill_and_reopen(db);
    let mut load = db.bulk_load("a", BulkLoadOptions::default().replace(true)).unwrap();
    (0..100).for_each(|index| load.push(format!("{index:04}"), "loaded").unwrap());
    load.finish().unwrap();
    db = fixture.kill_and_reopen(db);
    assert_eq!(
        (chosen_options(&db, "a"), db.open_keyspace("a").unwrap().unwrap().len().unwrap()),
        (owned_options(&all), 100)
    );
    if let Some((name, value)) = all.first() {
        db.open_keyspace("a").unwrap().unwrap().clear().unwrap();
        let usual = sheaf::engine_options(engine)[0].default;
        let load = BulkLoadOptions::default().engine(engine);
        refused!(db.bulk_load("a", load.clone().option(name, usual)), Error::EngineMismatch { .. });
        db.bulk_load("a", load.clone().option(name, *value)).unwrap().finish().unwrap();
        let meanwhile = db.bulk_load("b", BulkLoadOptions::default().engine(engine)).unwrap();
        drop(db.keyspace("b", options_with(engine, &all)).unwrap());
        refused!(meanwhile.finish(), Error::EngineMismatch { .. });
        assert_eq!(chosen_options(&db, "b"), owned_options(&all));
        db.bulk_load("a", load.option(name, usual).replace(true)).unwrap().finish().unwrap();
        assert_eq!(db.open_keyspace("a").unwrap().unwrap().options().get(name), Some(usual));
    }
    db.drop_keyspace("a").unwrap();
    drop(db.keyspace("a", KeyspaceOptions::from(engine)).unwrap());
    assert_eq!(chosen_options(&fixture.reopen(db), "a"), []);
}

pub fn a_conversion_changes_the_chosen_options(fixture: &Fixture) {
    let (engine, other) = (fixture.subject.engine, fixture.subject.other_engine);
    let all = non_default_options(engine);
    let mut db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    for index in 0..150 {
        ks.insert(key(index), bytes(40, index as u64)).unwrap();
    }
    let pairs = sorted(&ks);
    drop(ks);
    let usual: Vec<_> = sheaf::engine_options(engine).iter().map(|spec| (spec.name, spec.default)).collect();
    let first = &usual[..usual.len().min(1)];
    let mixed: Vec<_> = first.iter().chain(all.iter().skip(1)).copied().collect();
    let steps = [
        (options_with(engine, &all), &all),
        (options_with(engine, first), &mixed), // keeps the other options
        (KeyspaceOptions::from(engine), &mixed), // nothing to do
        (KeyspaceOptions::from(other), &Vec::new()),
        (options_with(engine, &all), &all),
    ];
    for (number, (to, expected)) in steps.into_iter().enumerate() {
        let done = db.convert("a", to, |_| ControlFlow::Continue(())).unwrap().expect("it was not cancelled");
        let has_work = number != 2 && !(all.is_empty() && number < 2);
        assert_eq!(done.copied_pairs > 0, has_work, "step {number}");
        for is_kill in [false, true] {
            let mut now = chosen_options(&db, "a");
            now.retain(|(name, _)| expected.iter().any(|(other, _)| other == name));
            assert_eq!(
                (now, sorted(&db.open_keyspace("a").unwrap().unwrap())),
                (owned_options(expected), pairs.clone())
            );
            db = if is_kill { fixture.kill_and_reopen(db) } else { fixture.reopen(db) };
        }
    }
}

pub fn chosen_options_are_in_a_backup(fixture: &Fixture) {
    let all = non_default_options(fixture.subject.engine);
    let db = fixture.open();
    let ks = db.keyspace("a", options_with(fixture.subject.engine, &all)).unwrap();
    for index in 0..150 {
        ks.insert(key(index), bytes(40, index as u64)).unwrap();
    }
    let beside = |name: &str| fixture.path().with_file_name(name);
    db.backup(beside("copy"), BackupOptions::default()).unwrap();
    fixture.builder_on(Arc::clone(fixture.disk())).restore(beside("copy"), beside("again"), None).unwrap();
    let again = fixture.builder_on(Arc::clone(fixture.disk())).open(beside("again")).unwrap();
    assert_eq!(chosen_options(&again, "a"), owned_options(&all));
    assert_eq!(sorted(&again.open_keyspace("a").unwrap().unwrap()), sorted(&ks));
}

pub fn names_are_any_text_of_1_to_255_bytes(fixture: &Fixture) {
    let db = fixture.open();
    refused!(db.keyspace("", KeyspaceOptions::default()), Error::InvalidArgument { .. });
    let long = "n".repeat(256);
    refused!(
        db.keyspace(&long, KeyspaceOptions::default()),
        Error::InvalidArgument { .. } | Error::TooLarge { object: "name", got: 256, max: 255 }
    );
    let wide = "é".repeat(128);
    refused!(
        db.keyspace(&wide, KeyspaceOptions::default()),
        Error::InvalidArgument { .. } | Error::TooLarge { .. }
    );
    assert!(db.keyspaces().is_empty());
    let longest = "n".repeat(255);
    let names =
        ["a", "A", " ", "../../up", "a/b", "\0", "\n\t", "schlüssel", "🌾", "ROOT.0", "LOCK", &longest];
    for name in names {
        fixture.keyspace(&db, name).insert("name", name).unwrap();
    }
    let db = fixture.reopen(db);
    assert_eq!(db.keyspaces().len(), names.len());
    for name in names {
        let ks = db.open_keyspace(name).unwrap().unwrap();
        assert_eq!(ks.name(), name);
        assert_eq!(get(&ks, "name").as_deref(), Some(name.as_bytes()));
        assert_eq!(ks.len().unwrap(), 1);
    }
}

pub fn keyspaces_are_listed_by_name_and_survive_reopening(fixture: &Fixture) {
    let mut db = fixture.open();
    assert!(db.keyspaces().is_empty());
    for name in ["m", "z", "a"] {
        drop(fixture.keyspace(&db, name));
    }
    drop(fixture.other_keyspace(&db, "b"));
    let expected = ["a", "b", "m", "z"];
    for life in 0..4 {
        let list = db.keyspaces();
        assert!(list.iter().map(|info| info.name.as_str()).eq(expected), "{list:?}");
        for info in &list {
            let engine = if info.name == "b" { fixture.subject.other_engine } else { fixture.subject.engine };
            assert_eq!((info.engine, &info.damage), (engine, &None));
        }
        let mut ids: Vec<_> = list.iter().map(|info| info.id).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 4, "ids are their own");
        db = if life % 2 == 0 { fixture.kill_and_reopen(db) } else { fixture.reopen(db) };
    }
}

pub fn keyspaces_do_not_see_each_other(fixture: &Fixture) {
    let db = fixture.open();
    let (a, b, c) =
        (fixture.keyspace(&db, "a"), fixture.keyspace(&db, "b"), fixture.other_keyspace(&db, "c"));
    for index in 0..40 {
        a.insert(key(index), "of a").unwrap();
        if index % 2 == 0 {
            b.insert(key(index), "of b").unwrap();
            c.insert(key(index), "of c").unwrap();
        }
    }
    b.remove(key(0)).unwrap();
    a.remove(key(2)).unwrap();
    assert_eq!((a.len().unwrap(), b.len().unwrap(), c.len().unwrap()), (39, 19, 20));
    assert_eq!(get(&a, key(0)).as_deref(), Some(&b"of a"[..]));
    assert_eq!(get(&b, key(2)).as_deref(), Some(&b"of b"[..]));
    b.clear().unwrap();
    assert_eq!((a.len().unwrap(), c.len().unwrap()), (39, 20));
    assert!(sorted(&a).iter().all(|(_, value)| value == b"of a"));
}

pub fn handles_of_a_dropped_keyspace_return_an_error(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    ks.insert("k", "v").unwrap();
    assert!(db.drop_keyspace("a").unwrap());
    assert!(!db.drop_keyspace("a").unwrap());
    assert!(!db.drop_keyspace("never there").unwrap());
    refused!(ks.get("k"), Error::KeyspaceNotFound { name } if name == "a");
    refused!(ks.insert("k", "v"), Error::KeyspaceNotFound { .. });
    refused!(ks.remove("k"), Error::KeyspaceNotFound { .. });
    refused!(ks.contains_key("k"), Error::KeyspaceNotFound { .. });
    refused!(ks.multi_get(["k"]), Error::KeyspaceNotFound { .. });
    refused!(ks.update("k", |_| None), Error::KeyspaceNotFound { .. });
    refused!(ks.compare_and_swap("k", None, None), Error::KeyspaceNotFound { .. });
    refused!(ks.iter(), Error::KeyspaceNotFound { .. });
    refused!(ks.keys(), Error::KeyspaceNotFound { .. });
    refused!(ks.len(), Error::KeyspaceNotFound { .. });
    refused!(ks.clear(), Error::KeyspaceNotFound { .. });
    refused!(ks.stats(), Error::KeyspaceNotFound { .. });
    assert!(db.keyspaces().is_empty());
    assert!(db.open_keyspace("a").unwrap().is_none());
    drop(ks);
    let db = fixture.kill_and_reopen(db);
    assert!(db.keyspaces().is_empty(), "a drop is durable");
}

pub fn a_recreated_keyspace_is_empty_also_after_reopening(fixture: &Fixture) {
    let mut db = fixture.open();
    for life in 0..6 {
        let ks = if life % 2 == 0 { fixture.keyspace(&db, "a") } else { fixture.other_keyspace(&db, "a") };
        assert!(ks.is_empty().unwrap() && sorted(&ks).is_empty(), "life {life}");
        for index in 0..30 {
            ks.insert(key(index), bytes(50, life)).unwrap();
        }
        ks.insert("large", bytes(fixture.setting.blob_threshold() + 1, life)).unwrap();
        drop(ks);
        if life % 3 == 1 {
            db = fixture.kill_and_reopen(db);
        }
        assert!(db.drop_keyspace("a").unwrap());
        if life % 3 == 2 {
            db = fixture.kill_and_reopen(db);
        }
    }
    let ks = fixture.keyspace(&db, "a");
    ks.insert("k", "v").unwrap();
    drop(ks);
    let db = fixture.reopen(db);
    assert_eq!(sorted(&fixture.keyspace(&db, "a")), [(b"k".to_vec(), b"v".to_vec())]);
}

pub fn a_clear_is_seen_through_every_handle_and_after_reopening(fixture: &Fixture) {
    let db = fixture.open();
    let (first, second) = (fixture.keyspace(&db, "a"), fixture.keyspace(&db, "a"));
    let clone = first.clone();
    for index in 0..50 {
        first.insert(key(index), "v").unwrap();
    }
    first.clear().unwrap();
    for handle in [&first, &second, &clone] {
        assert!(handle.is_empty().unwrap() && sorted(handle).is_empty());
        assert_eq!(get(handle, key(3)), None);
    }
    second.insert("k", "second's").unwrap();
    let mut batch = db.batch();
    batch.insert(&clone, "l", "clone's");
    batch.commit().unwrap();
    assert_eq!(first.len().unwrap(), 2);
    let expected = sorted(&second);
    drop((first, second, clone));
    let db = fixture.kill_and_reopen(db);
    assert_eq!(sorted(&fixture.keyspace(&db, "a")), expected);
    fixture.keyspace(&db, "a").clear().unwrap();
    let db = fixture.kill_and_reopen(db);
    assert!(fixture.keyspace(&db, "a").is_empty().unwrap());
}

pub fn a_lookup_does_not_create_a_keyspace(fixture: &Fixture) {
    let db = fixture.open();
    assert!(db.open_keyspace("a").unwrap().is_none());
    refused!(db.snapshot().unwrap().keyspace("a"), Error::KeyspaceNotFound { .. });
    assert!(!db.drop_keyspace("a").unwrap());
    assert!(db.keyspaces().is_empty());
}

pub fn many_keyspaces_live_side_by_side(fixture: &Fixture) {
    let count = 150;
    let mut db = fixture.open();
    for index in 0..count {
        let ks = if index % 3 == 0 {
            fixture.other_keyspace(&db, &key(index))
        } else {
            fixture.keyspace(&db, &key(index))
        };
        ks.insert("index", index.to_string()).unwrap();
    }
    for index in (0..count).step_by(5) {
        db.drop_keyspace(&key(index)).unwrap();
    }
    for crash in [true, false] {
        db = if crash { fixture.kill_and_reopen(db) } else { fixture.reopen(db) };
        assert_eq!(db.keyspaces().len(), count - count / 5);
        for index in (0..count).filter(|index| index % 5 != 0) {
            let ks = db.open_keyspace(&key(index)).unwrap().unwrap();
            assert_eq!(get(&ks, "index"), Some(index.to_string().into_bytes()));
        }
    }
}
