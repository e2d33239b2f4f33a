//! When a page of a replaced node may get another content.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use sheaf_platform::sync::epoch;

use super::fixture::level_store;
use crate::measure::{NumberedKey, insert};
use crate::tree::Level;

/// Number of collections after which every deferred function has run that no guard blocks.
const COLLECTIONS: usize = 200;

/// Regression: a step replaced a node, and then the last image with this node was superseded. Both
/// deferred a function: one removed the page from the cache, the other one freed it. The second one
/// could run first, while the thread with the first one was preempted. The page then got a new
/// inner node, which was in the cache only, and the first function removed that.
#[test]
fn a_page_is_free_only_after_its_old_node_has_left_the_cache() {
    let store = level_store(true);
    let keys: Vec<NumberedKey> = (0..60).map(|n| (format!("k{n:03}").into_bytes(), n)).collect();
    let (level, _) = insert(&store, &Level::default(), &keys, None).unwrap();
    let (root, height) = level.root.unwrap();
    assert!(height > 0, "an inner node");
    let save_image = || {
        store.space.sync_for_image().unwrap();
        store.space.image_published();
        store.space.image_superseded();
    };
    save_image();
    let free = || store.space.bytes().1;
    let before = free();

    let (entered, has_entered) = mpsc::channel();
    let (resume, resumed) = mpsc::channel();
    let has_run = Arc::new(AtomicBool::new(false));
    {
        let guard = &epoch::pin();
        // The epoch advances at most once while the guard is held. Functions that are deferred
        // afterwards are all due at the same time.
        (0..COLLECTIONS).for_each(|_| guard.flush());
        let has_run = Arc::clone(&has_run);
        guard.defer(move || {
            entered.send(()).unwrap();
            resumed.recv().unwrap();
            has_run.store(true, Ordering::Release);
        });
        // Stays in the same bag, so it runs after the function above and in the same thread.
        store.free_replaced_nodes(&[(root.page, u32::from(root.pages))], guard);
        save_image();
    }
    let collect_until_resumed = || {
        while !has_run.load(Ordering::Acquire) {
            epoch::pin().flush();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(collect_until_resumed);
        has_entered.recv().unwrap();
        (0..COLLECTIONS).for_each(|_| epoch::pin().flush());
        let (is_cached, now) = (store.cache.contains(root.page), free());
        resume.send(()).unwrap();
        assert!(is_cached, "the preempted function has not run");
        assert_eq!(now, before, "the page became free while its node was in the cache");
    });
    while free() == before {
        epoch::pin().flush();
    }
    assert!(!store.cache.contains(root.page));
}
