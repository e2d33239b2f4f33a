//! # Expiry: the time at which a pair ends

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sheaf_platform::clock::UnixMillis;
use sheaf_store::Expires;

/// The examples of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/expiry.md")]
struct Guide;

/// Time at which a pair expires, in whole milliseconds of the system clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Expiry {
    /// The pair expires at this time. From then on every read treats it as missing.
    At(SystemTime),
    /// The pair stays until it is removed.
    Never,
}

impl Expiry {
    pub(crate) fn from_stored(time: Option<UnixMillis>) -> Expiry {
        // A stored time is at most the end of the year 9999, which every platform can represent.
        let at = time.and_then(|time| UNIX_EPOCH.checked_add(Duration::from_millis(time.0)));
        at.map_or(Expiry::Never, Expiry::At)
    }

    /// Returns the value that a commit takes. A time before 1970 is zero, which the commit refuses.
    pub(crate) fn to_expires(self) -> Expires {
        let Expiry::At(time) = self else { return Expires::Never };
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let ms = since.as_nanos().div_ceil(1_000_000);
        Expires::At(UnixMillis(u64::try_from(ms).unwrap_or(u64::MAX)))
    }
}
