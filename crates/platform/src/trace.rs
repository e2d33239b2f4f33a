//! # Trace: spans and events for `tracing`
//!
//! Slow or rare operations are reported by [`span!`](crate::span) and [`event!`](crate::event):
//! openings, checkpoints, GC, sync rounds, backups, conversions, background work of engines,
//! stalls, poisoning and damage. Reads and writes that do not wait are never reported.
//!
//! With the feature `tracing` these are spans and events of that crate, with the target `sheaf`.
//! Without the feature, only a type check of their fields remains, and the crate is not linked.

/// Whether spans and events are compiled in.
pub const IS_ENABLED: bool = cfg!(feature = "tracing");

#[cfg(feature = "tracing")]
#[doc(hidden)]
pub use tracing;

/// Result of [`span!`](crate::span) without the feature `tracing`. Dropping it has no effect.
#[cfg(not(feature = "tracing"))]
#[derive(Debug)]
pub struct NoSpan;

/// Enters a span with the given level, name and fields. It ends when the result is dropped.
#[cfg(feature = "tracing")]
#[macro_export]
macro_rules! span {
    ($level:ident, $name:literal $(, $field:ident = $value:expr)* $(,)?) => {
        $crate::trace::tracing::span!(
            target: "sheaf", $crate::trace::tracing::Level::$level, $name $(, $field = $value)*
        ).entered()
    };
}

/// Emits an event with the given level, text and fields.
#[cfg(feature = "tracing")]
#[macro_export]
macro_rules! event {
    ($level:ident, $text:literal $(, $field:ident = $value:expr)* $(,)?) => {
        $crate::trace::tracing::event!(
            target: "sheaf", $crate::trace::tracing::Level::$level, { $($field = $value,)* }, $text
        )
    };
}

/// Replaces the span by nothing, without the feature `tracing`.
#[cfg(not(feature = "tracing"))]
#[macro_export]
macro_rules! span {
    ($level:ident, $name:literal $(, $field:ident = $value:expr)* $(,)?) => {{
        if false {
            $(let _ = &$value;)*
        }
        $crate::trace::NoSpan
    }};
}

/// Replaces the event by nothing, without the feature `tracing`.
#[cfg(not(feature = "tracing"))]
#[macro_export]
macro_rules! event {
    ($level:ident, $text:literal $(, $field:ident = $value:expr)* $(,)?) => {
        if false {
            $(let _ = &$value;)*
        }
    };
}
