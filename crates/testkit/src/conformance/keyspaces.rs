//! # Keyspaces: names, engines, lives

use super::{bytes, get, key, refused, sorted};
use crate::stage::Stage;
use sheaf::{BackupOptions, Database, Error, KeyspaceOptions, LoadOptions, OptionSpec};
use std::ops::ControlFlow;
use std::sync::Arc;

pub fn an_engine_is_remembered_and_another_refused(stage: &Stage) {
    let (engine, other) = (stage.subject.engine, stage.subject.other);
    let mut db = stage.open();
    stage.keyspace(&db, "a").insert("k", "v").unwrap();
    for life in 0..3 {
        let wrong = KeyspaceOptions::default().engine(other);
        refused!(db.keyspace("a", wrong), Error::EngineMismatch { name, found, asked } if name == "a" && found == engine && asked == other);
        let ks = stage.keyspace(&db, "a");
        assert_eq!((ks.engine(), ks.name().as_str()), (engine, "a"));
        assert_eq!(get(&ks, "k").as_deref(), Some(&b"v"[..]), "nothing was touched");
        drop(ks);
        db = if life == 0 { stage.crash(db) } else { stage.reopen(db) };
    }
}

pub fn a_keyspace_without_an_engine_opens_as_what_it_is(stage: &Stage) {
    let db = stage.open();
    stage.keyspace(&db, "a").insert("k", "v").unwrap();
    let ks = db.keyspace("a", KeyspaceOptions::default()).unwrap();
    assert_eq!(ks.engine(), stage.subject.engine);
    assert_eq!(get(&ks, "k").as_deref(), Some(&b"v"[..]));
    let new = db.keyspace("b", KeyspaceOptions::default()).unwrap();
    assert_eq!(new.engine(), sheaf::DEFAULT_ENGINE);
}

pub fn an_unknown_engine_is_refused(stage: &Stage) {
    let db = stage.open();
    let unknown = KeyspaceOptions::default().engine("no such engine");
    refused!(db.keyspace("a", unknown.clone()), Error::Invalid { .. });
    assert!(db.keyspaces().is_empty());
    let _ks = stage.keyspace(&db, "a");
    refused!(db.keyspace("a", unknown), Error::EngineMismatch { .. } | Error::Invalid { .. });
}

pub fn an_option_that_the_engine_does_not_have_is_refused(stage: &Stage) {
    let (engine, db) = (stage.subject.engine, stage.open());
    let unknown = || stage.subject.options().option("no such option", 1);
    let says = |why: &str| why.contains("no such option") && why.contains(engine);
    refused!(db.keyspace("a", unknown()), Error::Invalid { what: "option", why } if says(&why));
    assert!(db.keyspaces().is_empty());
    stage.keyspace(&db, "a").insert("k", "v").unwrap();
    refused!(db.keyspace("a", unknown()), Error::Invalid { what: "option", why } if says(&why));
    refused!(
        db.convert("a", unknown(), |_| ControlFlow::Continue(())),
        Error::Invalid { what: "option", .. }
    );
    let load = LoadOptions::default().engine(engine).option("no such option", 1).replace(true);
    refused!(db.bulk_load("a", load), Error::Invalid { what: "option", .. });
    assert_eq!(get(&stage.keyspace(&db, "a"), "k").as_deref(), Some(&b"v"[..]), "nothing was touched");
}

pub fn values_beyond_the_range_of_an_option_are_refused(stage: &Stage) {
    let (engine, db) = (stage.subject.engine, stage.open());
    for spec in sheaf::engine_options(engine) {
        assert!(spec.allows(spec.default) && spec.allows(spec.least) && spec.allows(spec.most), "{spec}");
        for value in [0, spec.least - 1, spec.most + 1, u64::MAX] {
            let asked = KeyspaceOptions::from(engine).option(spec.name, value);
            let says = |why: &str| {
                let parts = [spec.name.to_owned(), spec.least.to_string(), spec.most.to_string()];
                parts.iter().all(|part| why.contains(part)) && why.contains(&spec.default.to_string())
            };
            refused!(db.keyspace("a", asked), Error::Invalid { what: "option", why } if says(&why));
        }
    }
    assert!(db.keyspaces().is_empty());
}

/// Of each option of an engine a value that is not the default.
fn others(engine: &str) -> Vec<(&'static str, u64)> {
    let other = |spec: &OptionSpec| if spec.least == spec.default { spec.most } else { spec.least };
    sheaf::engine_options(engine).iter().map(|spec| (spec.name, other(spec))).collect()
}

fn with(engine: &str, chosen: &[(&'static str, u64)]) -> KeyspaceOptions {
    let options = KeyspaceOptions::from(engine);
    chosen.iter().fold(options, |options, (name, value)| options.option(name, *value))
}

/// What a database says was chosen.
fn chosen(db: &Database, name: &str) -> Vec<(String, u64)> {
    let info = db.keyspaces().into_iter().find(|info| info.name == name).expect("it is listed");
    let options = db.existing_keyspace(name).unwrap().expect("it is there").options();
    assert_eq!(info.options, options);
    options.iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn owned(chosen: &[(&'static str, u64)]) -> Vec<(String, u64)> {
    let mut all: Vec<_> = chosen.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    all.sort();
    all
}

fn versions_of_root(stage: &Stage) -> [u8; 2] {
    ["ROOT.0", "ROOT.1"].map(|slot| stage.read_file(&stage.path().join(slot))[8])
}

pub fn what_was_chosen_stays_through_every_life(stage: &Stage) {
    let engine = stage.subject.engine;
    let all = others(engine);
    let mut db = stage.open();
    stage.other(&db, "beside").insert("k", "v").unwrap();
    assert_eq!(versions_of_root(stage), [6, 6], "older builds read what has no options");
    let ks = db.keyspace("a", with(engine, &all)).unwrap();
    assert_eq!(versions_of_root(stage), if all.is_empty() { [6, 6] } else { [7, 7] }, "and not what has");
    for index in 0..200 {
        ks.insert(key(index), bytes(50, index as u64)).unwrap();
    }
    let pairs = sorted(&ks);
    drop(ks);
    for life in 0..5 {
        assert_eq!(chosen(&db, "a"), owned(&all), "life {life}");
        assert_eq!(chosen(&db, "beside"), []);
        // All of it, a part of it, and nothing is what it is; anything else is not.
        for asked in [&all[..], &all[..all.len().min(1)], &[]] {
            assert_eq!(sorted(&db.keyspace("a", with(engine, asked)).unwrap()), pairs);
        }
        for spec in sheaf::engine_options(engine) {
            let usual = with(engine, &[(spec.name, spec.default)]);
            refused!(db.keyspace("a", usual.clone()), Error::EngineMismatch { asked, .. } if asked.contains(spec.name));
            drop(db.keyspace(&format!("usual {}", spec.name), usual).unwrap());
        }
        db = match life {
            0 | 3 => stage.crash(db),
            _ => stage.reopen(db),
        };
    }
    db.verify(|damage| panic!("{damage}")).unwrap();
}

pub fn what_was_chosen_stays_through_clearings_and_loads_and_not_through_drops(stage: &Stage) {
    let engine = stage.subject.engine;
    let all = others(engine);
    let mut db = stage.open();
    let ks = db.keyspace("a", with(engine, &all)).unwrap();
    for index in 0..60 {
        ks.insert(key(index), "v").unwrap();
    }
    ks.clear().unwrap();
    ks.insert("after", "all").unwrap();
    assert_eq!((chosen(&db, "a"), ks.len().unwrap()), (owned(&all), 1));
    drop(ks);
    db = stage.crash(db);
    let mut load = db.bulk_load("a", LoadOptions::default().replace(true)).unwrap();
    (0..100).for_each(|index| load.push(format!("{index:04}"), "loaded").unwrap());
    load.finish().unwrap();
    db = stage.crash(db);
    assert_eq!(
        (chosen(&db, "a"), db.existing_keyspace("a").unwrap().unwrap().len().unwrap()),
        (owned(&all), 100)
    );
    if let Some((name, value)) = all.first() {
        db.existing_keyspace("a").unwrap().unwrap().clear().unwrap();
        let usual = sheaf::engine_options(engine)[0].default;
        let load = LoadOptions::default().engine(engine);
        refused!(db.bulk_load("a", load.clone().option(name, usual)), Error::EngineMismatch { .. });
        db.bulk_load("a", load.clone().option(name, *value)).unwrap().finish().unwrap();
        let meanwhile = db.bulk_load("b", LoadOptions::default().engine(engine)).unwrap();
        drop(db.keyspace("b", with(engine, &all)).unwrap());
        refused!(meanwhile.finish(), Error::EngineMismatch { .. });
        assert_eq!(chosen(&db, "b"), owned(&all));
        db.bulk_load("a", load.option(name, usual).replace(true)).unwrap().finish().unwrap();
        assert_eq!(db.existing_keyspace("a").unwrap().unwrap().options().get(name), Some(usual));
    }
    db.drop_keyspace("a").unwrap();
    drop(db.keyspace("a", KeyspaceOptions::from(engine)).unwrap());
    assert_eq!(chosen(&stage.reopen(db), "a"), []);
}

pub fn a_conversion_changes_what_was_chosen(stage: &Stage) {
    let (engine, other) = (stage.subject.engine, stage.subject.other);
    let all = others(engine);
    let mut db = stage.open();
    let ks = stage.keyspace(&db, "a");
    for index in 0..150 {
        ks.insert(key(index), bytes(40, index as u64)).unwrap();
    }
    let pairs = sorted(&ks);
    drop(ks);
    let usual: Vec<_> = sheaf::engine_options(engine).iter().map(|spec| (spec.name, spec.default)).collect();
    let first = &usual[..usual.len().min(1)];
    let mixed: Vec<_> = first.iter().chain(all.iter().skip(1)).copied().collect();
    let steps = [
        (with(engine, &all), &all),
        (with(engine, first), &mixed),           // the others stay
        (KeyspaceOptions::from(engine), &mixed), // nothing to do
        (KeyspaceOptions::from(other), &Vec::new()),
        (with(engine, &all), &all),
    ];
    for (number, (to, expected)) in steps.into_iter().enumerate() {
        let done = db.convert("a", to, |_| ControlFlow::Continue(())).unwrap().expect("nobody gave it up");
        let has_work = number != 2 && !(all.is_empty() && number < 2);
        assert_eq!(done.copied > 0, has_work, "step {number}");
        for is_kill in [false, true] {
            let mut now = chosen(&db, "a");
            now.retain(|(name, _)| expected.iter().any(|(other, _)| other == name));
            assert_eq!(
                (now, sorted(&db.existing_keyspace("a").unwrap().unwrap())),
                (owned(expected), pairs.clone())
            );
            db = if is_kill { stage.crash(db) } else { stage.reopen(db) };
        }
    }
}

pub fn what_was_chosen_is_in_a_backup(stage: &Stage) {
    let all = others(stage.subject.engine);
    let db = stage.open();
    let ks = db.keyspace("a", with(stage.subject.engine, &all)).unwrap();
    for index in 0..150 {
        ks.insert(key(index), bytes(40, index as u64)).unwrap();
    }
    let beside = |name: &str| stage.path().with_file_name(name);
    db.backup(beside("copy"), BackupOptions::default()).unwrap();
    stage.builder_on(Arc::clone(stage.disk())).restore(beside("copy"), beside("again"), None).unwrap();
    let again = stage.builder_on(Arc::clone(stage.disk())).open(beside("again")).unwrap();
    assert_eq!(chosen(&again, "a"), owned(&all));
    assert_eq!(sorted(&again.existing_keyspace("a").unwrap().unwrap()), sorted(&ks));
}

pub fn names_are_any_text_of_1_to_255_bytes(stage: &Stage) {
    let db = stage.open();
    refused!(db.keyspace("", KeyspaceOptions::default()), Error::Invalid { .. });
    let long = "n".repeat(256);
    refused!(
        db.keyspace(&long, KeyspaceOptions::default()),
        Error::Invalid { .. } | Error::TooLarge { what: "name", got: 256, max: 255 }
    );
    let wide = "é".repeat(128);
    refused!(db.keyspace(&wide, KeyspaceOptions::default()), Error::Invalid { .. } | Error::TooLarge { .. });
    assert!(db.keyspaces().is_empty());
    let longest = "n".repeat(255);
    let names =
        ["a", "A", " ", "../../up", "a/b", "\0", "\n\t", "schlüssel", "🌾", "ROOT.0", "LOCK", &longest];
    for name in names {
        stage.keyspace(&db, name).insert("name", name).unwrap();
    }
    let db = stage.reopen(db);
    assert_eq!(db.keyspaces().len(), names.len());
    for name in names {
        let ks = db.existing_keyspace(name).unwrap().unwrap();
        assert_eq!(ks.name(), name);
        assert_eq!(get(&ks, "name").as_deref(), Some(name.as_bytes()));
        assert_eq!(ks.len().unwrap(), 1);
    }
}

pub fn keyspaces_are_listed_by_name_and_survive_reopening(stage: &Stage) {
    let mut db = stage.open();
    assert!(db.keyspaces().is_empty());
    for name in ["m", "z", "a"] {
        drop(stage.keyspace(&db, name));
    }
    drop(stage.other(&db, "b"));
    let expected = ["a", "b", "m", "z"];
    for life in 0..4 {
        let list = db.keyspaces();
        assert!(list.iter().map(|info| info.name.as_str()).eq(expected), "{list:?}");
        for info in &list {
            let engine = if info.name == "b" { stage.subject.other } else { stage.subject.engine };
            assert_eq!((info.engine, &info.damage), (engine, &None));
        }
        let mut ids: Vec<_> = list.iter().map(|info| info.id).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 4, "ids are their own");
        db = if life % 2 == 0 { stage.crash(db) } else { stage.reopen(db) };
    }
}

pub fn keyspaces_do_not_see_each_other(stage: &Stage) {
    let db = stage.open();
    let (a, b, c) = (stage.keyspace(&db, "a"), stage.keyspace(&db, "b"), stage.other(&db, "c"));
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

pub fn a_dropped_keyspace_is_gone_and_its_handles_say_so(stage: &Stage) {
    let db = stage.open();
    let ks = stage.keyspace(&db, "a");
    ks.insert("k", "v").unwrap();
    assert!(db.drop_keyspace("a").unwrap());
    assert!(!db.drop_keyspace("a").unwrap());
    assert!(!db.drop_keyspace("never there").unwrap());
    refused!(ks.get("k"), Error::NoKeyspace { name } if name == "a");
    refused!(ks.insert("k", "v"), Error::NoKeyspace { .. });
    refused!(ks.remove("k"), Error::NoKeyspace { .. });
    refused!(ks.contains_key("k"), Error::NoKeyspace { .. });
    refused!(ks.multi_get(["k"]), Error::NoKeyspace { .. });
    refused!(ks.update("k", |_| None), Error::NoKeyspace { .. });
    refused!(ks.compare_and_swap("k", None, None), Error::NoKeyspace { .. });
    refused!(ks.iter(), Error::NoKeyspace { .. });
    refused!(ks.keys(), Error::NoKeyspace { .. });
    refused!(ks.len(), Error::NoKeyspace { .. });
    refused!(ks.clear(), Error::NoKeyspace { .. });
    refused!(ks.stats(), Error::NoKeyspace { .. });
    assert!(db.keyspaces().is_empty());
    assert!(db.existing_keyspace("a").unwrap().is_none());
    drop(ks);
    let db = stage.crash(db);
    assert!(db.keyspaces().is_empty(), "a drop is durable");
}

pub fn a_recreated_keyspace_is_empty_also_after_reopening(stage: &Stage) {
    let mut db = stage.open();
    for life in 0..6 {
        let ks = if life % 2 == 0 { stage.keyspace(&db, "a") } else { stage.other(&db, "a") };
        assert!(ks.is_empty().unwrap() && sorted(&ks).is_empty(), "life {life}");
        for index in 0..30 {
            ks.insert(key(index), bytes(50, life)).unwrap();
        }
        ks.insert("large", bytes(stage.setting.stage_above() + 1, life)).unwrap();
        drop(ks);
        if life % 3 == 1 {
            db = stage.crash(db);
        }
        assert!(db.drop_keyspace("a").unwrap());
        if life % 3 == 2 {
            db = stage.crash(db);
        }
    }
    let ks = stage.keyspace(&db, "a");
    ks.insert("k", "v").unwrap();
    drop(ks);
    let db = stage.reopen(db);
    assert_eq!(sorted(&stage.keyspace(&db, "a")), [(b"k".to_vec(), b"v".to_vec())]);
}

pub fn a_clear_is_seen_through_every_handle_and_after_reopening(stage: &Stage) {
    let db = stage.open();
    let (first, second) = (stage.keyspace(&db, "a"), stage.keyspace(&db, "a"));
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
    let db = stage.crash(db);
    assert_eq!(sorted(&stage.keyspace(&db, "a")), expected);
    stage.keyspace(&db, "a").clear().unwrap();
    let db = stage.crash(db);
    assert!(stage.keyspace(&db, "a").is_empty().unwrap());
}

pub fn a_missing_keyspace_is_not_created_by_looking(stage: &Stage) {
    let db = stage.open();
    assert!(db.existing_keyspace("a").unwrap().is_none());
    refused!(db.snapshot().unwrap().keyspace("a"), Error::NoKeyspace { .. });
    assert!(!db.drop_keyspace("a").unwrap());
    assert!(db.keyspaces().is_empty());
}

pub fn many_keyspaces_live_side_by_side(stage: &Stage) {
    let count = 150;
    let mut db = stage.open();
    for index in 0..count {
        let ks =
            if index % 3 == 0 { stage.other(&db, &key(index)) } else { stage.keyspace(&db, &key(index)) };
        ks.insert("index", index.to_string()).unwrap();
    }
    for index in (0..count).step_by(5) {
        db.drop_keyspace(&key(index)).unwrap();
    }
    for crash in [true, false] {
        db = if crash { stage.crash(db) } else { stage.reopen(db) };
        assert_eq!(db.keyspaces().len(), count - count / 5);
        for index in (0..count).filter(|index| index % 5 != 0) {
            let ks = db.existing_keyspace(&key(index)).unwrap().unwrap();
            assert_eq!(get(&ks, "index"), Some(index.to_string().into_bytes()));
        }
    }
}
