//! # Owner: requests to the process that has a database open

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;

use sheaf::{AttachedOwner, Error};

use crate::boundary::callback::{report as progress_of, sheaf_finding_fn, sheaf_progress_fn};
use crate::boundary::code::{sheaf_code, sheaf_phase};
use crate::boundary::error::sheaf_error;
use crate::boundary::json;
use crate::boundary::memory::{handle_out, sheaf_bytes, sheaf_value};
use crate::boundary::{self, Exclusive, call, found, given};
use crate::keyspace_options::sheaf_keyspace_options;
use crate::maintenance::{backup_step, conversion_step, rate_of, tell};

/// A connection to the process that has a database open.
pub struct sheaf_owner(Exclusive<AttachedOwner>);

impl sheaf_owner {
    pub(crate) fn handle(owner: AttachedOwner) -> *mut sheaf_owner {
        Box::into_raw(Box::new(sheaf_owner(Exclusive::new(owner))))
    }
}

/// Connects to the process that has the database in the directory `path` open. Returns
/// `SHEAF_NOT_FOUND` if there is none.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_owner_connect(
    path: sheaf_bytes<'_>,
    owner: Option<&mut MaybeUninit<*mut sheaf_owner>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let owner = handle_out(owner, "owner")?;
        owner.write(sheaf_owner::handle(found(AttachedOwner::connect(path.path("path")?)?)?));
        Ok(())
    })
}

/// Returns the statistics of the database and of each keyspace, like `sheaf_db_overview`.
///
/// Threads: one at a time for each connection; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_owner_overview(
    owner: Option<&sheaf_owner>,
    overview: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let overview = handle_out(overview, "overview")?;
        let all = given(owner, "owner")?.0.lock("owner")?.overview()?;
        overview.write(json::handle(&json::overview(&all)));
        Ok(())
    })
}

/// Makes the owner back up the database, like `sheaf_db_backup`.
///
/// Threads: one at a time for each connection; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_owner_backup(
    owner: Option<&sheaf_owner>,
    dir: sheaf_bytes<'_>,
    base: Option<&sheaf_bytes<'_>>,
    verify: bool,
    bytes_per_second: u64,
    progress: sheaf_progress_fn,
    context: *mut c_void,
    report: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let mut owner = given(owner, "owner")?.0.lock("owner")?;
        let base = base.map(|base| base.path("base")).transpose()?;
        let done = owner.backup(dir.path("dir")?, base, verify, rate_of(bytes_per_second), |now| {
            let (phase, counts) = backup_step(&now);
            progress_of(progress, context, phase, counts)
        });
        json::write_report(report, done.map(|done| json::backup(&done)))
    })
}

/// Makes the owner convert the keyspace `name`, like `sheaf_db_convert`.
///
/// Threads: one at a time for each connection; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_owner_convert(
    owner: Option<&sheaf_owner>,
    name: sheaf_bytes<'_>,
    to: Option<&sheaf_keyspace_options>,
    progress: sheaf_progress_fn,
    context: *mut c_void,
    report: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let to = sheaf_keyspace_options::get(Some(given(to, "to")?))?;
        let mut owner = given(owner, "owner")?.0.lock("owner")?;
        let done = owner.convert(name.text("name")?, to, |now| {
            let (phase, counts) = conversion_step(now);
            progress_of(progress, context, phase, counts)
        });
        let done = done.and_then(|done| done.ok_or(Error::Cancelled));
        json::write_report(report, done.map(|done| json::conversion(&done)))
    })
}

/// Estimates a conversion, like `sheaf_db_estimate_conversion`.
///
/// Threads: one at a time for each connection; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_owner_estimate_conversion(
    owner: Option<&sheaf_owner>,
    name: sheaf_bytes<'_>,
    estimate: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let estimate = handle_out(estimate, "estimate")?;
        let mut owner = given(owner, "owner")?.0.lock("owner")?;
        let found = owner.estimate_conversion(name.text("name")?)?;
        estimate.write(json::handle(&json::conversion_estimate(&found)));
        Ok(())
    })
}

/// Makes the owner compact the keyspace `name` (NULL: all keyspaces), like
/// `sheaf_keyspace_compact`. The progress counts rewritten pairs.
///
/// Threads: one at a time for each connection; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_owner_compact(
    owner: Option<&sheaf_owner>,
    name: Option<&sheaf_bytes<'_>>,
    progress: sheaf_progress_fn,
    context: *mut c_void,
    report: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let name = name.map(|name| name.text("name")).transpose()?;
        let mut owner = given(owner, "owner")?.0.lock("owner")?;
        let done = owner.compact(name, |now| {
            let counts = (now.rewritten_pairs, now.rewritten_pairs);
            progress_of(progress, context, sheaf_phase::SHEAF_PHASE_COPYING, counts)
        });
        json::write_report(report, done.map(|done| json::compaction(&done)))
    })
}

/// Makes the owner verify the database, like `sheaf_db_verify`.
///
/// Threads: one at a time for each connection; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_owner_verify(
    owner: Option<&sheaf_owner>,
    finding: sheaf_finding_fn,
    context: *mut c_void,
    report: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let mut owner = given(owner, "owner")?.0.lock("owner")?;
        let done = owner.verify(|error| tell(finding, context, &error), |_| ControlFlow::Continue(()));
        json::write_report(report, done.map(|done| json::verification(&done)))
    })
}

/// Waits until all commits that the owner acknowledged before the call are on the device.
///
/// Threads: one at a time for each connection; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_owner_persist(
    owner: Option<&sheaf_owner>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || Ok(given(owner, "owner")?.0.lock("owner")?.persist()?))
}

/// Closes the connection. NULL is allowed.
///
/// Threads: any. No other call may use the connection.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_owner_free(owner: Option<Box<sheaf_owner>>) {
    boundary::release(owner);
}
