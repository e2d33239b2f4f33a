//! # Options, comparators, filter policies, caches and environments
//!
//! Sheaf has no use for most of LevelDB's options; `docs/guide/c.md` lists their effect.

use std::ffi::{c_char, c_int, c_uchar, c_void};
use std::path::PathBuf;

use crate::memory::{allocate, guard};
use crate::snapshot::leveldb_snapshot_t;

/// Options for opening.
#[derive(Default)]
pub struct leveldb_options_t {
    pub(crate) has_comparator: bool,
    pub(crate) create_if_missing: bool,
    pub(crate) error_if_exists: bool,
    pub(crate) write_buffer_size: usize,
    pub(crate) max_open_files: c_int,
    pub(crate) cache_size: Option<usize>,
}

/// Options of a read.
#[derive(Default)]
pub struct leveldb_readoptions_t {
    pub(crate) snapshot: Option<leveldb_snapshot_t>,
}

/// Options of a write.
#[derive(Default)]
pub struct leveldb_writeoptions_t {
    pub(crate) sync: bool,
}

/// A cache; only its capacity is used.
pub struct leveldb_cache_t {
    capacity: usize,
}

/// The environment; there is only the default one.
pub struct leveldb_env_t {
    _private: u8,
}

/// A log of messages; Sheaf writes none.
pub struct leveldb_logger_t {
    _private: (),
}

/// Pointer of the caller, with the function that frees it.
struct CallerState {
    state: *mut c_void,
    destructor: Option<extern "C" fn(*mut c_void)>,
}

impl Drop for CallerState {
    fn drop(&mut self) {
        if let Some(destructor) = self.destructor {
            destructor(self.state);
        }
    }
}

/// A custom comparator. Opening a database with one is an error.
pub struct leveldb_comparator_t {
    _state: CallerState,
}

/// A filter policy. Sheaf has filters of its own, and ignores it.
pub struct leveldb_filterpolicy_t {
    _state: CallerState,
}

type CompareFn = extern "C" fn(*mut c_void, *const c_char, usize, *const c_char, usize) -> c_int;
type NameFn = extern "C" fn(*mut c_void) -> *const c_char;
type CreateFilterFn =
    extern "C" fn(*mut c_void, *const *const c_char, *const usize, c_int, *mut usize) -> *mut c_char;
type KeyMayMatchFn = extern "C" fn(*mut c_void, *const c_char, usize, *const c_char, usize) -> c_uchar;

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_options_create() -> Box<leveldb_options_t> {
    Box::default()
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_options_destroy(options: Option<Box<leveldb_options_t>>) {
    drop(options);
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_options_set_comparator(
    options: Option<&mut leveldb_options_t>,
    comparator: Option<&leveldb_comparator_t>,
) {
    set(options, |options| options.has_comparator = comparator.is_some());
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_options_set_filter_policy(
    _options: Option<&mut leveldb_options_t>,
    _policy: Option<&leveldb_filterpolicy_t>,
) {
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_options_set_create_if_missing(
    options: Option<&mut leveldb_options_t>,
    on: c_uchar,
) {
    set(options, |options| options.create_if_missing = on != 0);
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_options_set_error_if_exists(options: Option<&mut leveldb_options_t>, on: c_uchar) {
    set(options, |options| options.error_if_exists = on != 0);
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_options_set_paranoid_checks(
    _options: Option<&mut leveldb_options_t>,
    _on: c_uchar,
) {
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_options_set_env(
    _options: Option<&mut leveldb_options_t>,
    _env: Option<&leveldb_env_t>,
) {
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_options_set_info_log(
    _options: Option<&mut leveldb_options_t>,
    _log: Option<&leveldb_logger_t>,
) {
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_options_set_write_buffer_size(
    options: Option<&mut leveldb_options_t>,
    size: usize,
) {
    set(options, |options| options.write_buffer_size = size);
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_options_set_max_open_files(options: Option<&mut leveldb_options_t>, files: c_int) {
    set(options, |options| options.max_open_files = files);
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_options_set_cache(
    options: Option<&mut leveldb_options_t>,
    cache: Option<&leveldb_cache_t>,
) {
    set(options, |options| options.cache_size = cache.map(|cache| cache.capacity));
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_options_set_block_size(_options: Option<&mut leveldb_options_t>, _size: usize) {}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_options_set_block_restart_interval(
    _options: Option<&mut leveldb_options_t>,
    _interval: c_int,
) {
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_options_set_max_file_size(_options: Option<&mut leveldb_options_t>, _size: usize) {}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_options_set_compression(_options: Option<&mut leveldb_options_t>, _kind: c_int) {}

fn set<T>(options: Option<&mut T>, change: impl FnOnce(&mut T)) {
    if let Some(options) = options {
        change(options);
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_comparator_create(
    state: *mut c_void,
    destructor: Option<extern "C" fn(*mut c_void)>,
    _compare: Option<CompareFn>,
    _name: Option<NameFn>,
) -> Box<leveldb_comparator_t> {
    Box::new(leveldb_comparator_t { _state: CallerState { state, destructor } })
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_comparator_destroy(comparator: Option<Box<leveldb_comparator_t>>) {
    drop(comparator);
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_filterpolicy_create(
    state: *mut c_void,
    destructor: Option<extern "C" fn(*mut c_void)>,
    _create_filter: Option<CreateFilterFn>,
    _key_may_match: Option<KeyMayMatchFn>,
    _name: Option<NameFn>,
) -> Box<leveldb_filterpolicy_t> {
    Box::new(leveldb_filterpolicy_t { _state: CallerState { state, destructor } })
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_filterpolicy_create_bloom(_bits_per_key: c_int) -> Box<leveldb_filterpolicy_t> {
    Box::new(leveldb_filterpolicy_t { _state: CallerState { state: std::ptr::null_mut(), destructor: None } })
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_filterpolicy_destroy(policy: Option<Box<leveldb_filterpolicy_t>>) {
    drop(policy);
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_readoptions_create() -> Box<leveldb_readoptions_t> {
    Box::default()
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_readoptions_destroy(options: Option<Box<leveldb_readoptions_t>>) {
    guard(|| drop(options));
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_readoptions_set_verify_checksums(
    _options: Option<&mut leveldb_readoptions_t>,
    _on: c_uchar,
) {
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_readoptions_set_fill_cache(
    _options: Option<&mut leveldb_readoptions_t>,
    _on: c_uchar,
) {
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_readoptions_set_snapshot(
    options: Option<&mut leveldb_readoptions_t>,
    snapshot: Option<&leveldb_snapshot_t>,
) {
    guard(|| set(options, |options| options.snapshot = snapshot.cloned()));
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_writeoptions_create() -> Box<leveldb_writeoptions_t> {
    Box::default()
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_writeoptions_destroy(options: Option<Box<leveldb_writeoptions_t>>) {
    drop(options);
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_writeoptions_set_sync(options: Option<&mut leveldb_writeoptions_t>, sync: c_uchar) {
    set(options, |options| options.sync = sync != 0);
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_cache_create_lru(capacity: usize) -> Box<leveldb_cache_t> {
    Box::new(leveldb_cache_t { capacity })
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_cache_destroy(cache: Option<Box<leveldb_cache_t>>) {
    drop(cache);
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_create_default_env() -> Box<leveldb_env_t> {
    Box::new(leveldb_env_t { _private: 0 })
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_env_destroy(env: Option<Box<leveldb_env_t>>) {
    drop(env);
}

/// Returns the variable `TEST_TMPDIR`, or a directory of the user in the temporary directory, which
/// is created.
#[unsafe(no_mangle)]
pub extern "C" fn leveldb_env_get_test_directory(_env: Option<&leveldb_env_t>) -> *mut c_char {
    use std::os::unix::ffi::OsStrExt;
    let directory = guard(|| match std::env::var_os("TEST_TMPDIR").filter(|name| !name.is_empty()) {
        Some(directory) => PathBuf::from(directory),
        // SAFETY: `geteuid` has no conditions.
        None => std::env::temp_dir().join(format!("leveldbtest-{}", unsafe { libc::geteuid() })),
    });
    #[expect(clippy::disallowed_methods, reason = "a directory for tests of the caller, as in LevelDB")]
    let _ = std::fs::create_dir(&directory);
    allocate(directory.as_os_str().as_bytes())
}
