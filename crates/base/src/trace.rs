//! # Trace: spans and events for `tracing`, or nothing
//!
//! What takes long or is rare says so by [`span!`](crate::span) and [`event!`](crate::event):
//! openings, checkpoints, cleaning, sync rounds, backups, conversions, engines' own work; stalls,
//! poisoning, damage. Never a read or a write that does not wait.
//!
//! With the feature `tracing` they are spans and events of that crate, with the target `sheaf`.
//! Without it nothing is left of them but a check of their types, and the crate is not there.

#[cfg(feature = "tracing")]
#[doc(hidden)]
pub use tracing;

/// What [`span!`](crate::span) answers where there is no tracing: nothing happens when it goes.
#[cfg(not(feature = "tracing"))]
#[derive(Debug)]
pub struct NoSpan;

/// A span of the level and the name given, with fields, which is entered until the answer is
/// dropped.
#[cfg(feature = "tracing")]
#[macro_export]
macro_rules! span {
    ($level:ident, $name:literal $(, $field:ident = $value:expr)* $(,)?) => {
        $crate::trace::tracing::span!(
            target: "sheaf", $crate::trace::tracing::Level::$level, $name $(, $field = $value)*
        ).entered()
    };
}

/// An event of the level and with the text given, with fields.
#[cfg(feature = "tracing")]
#[macro_export]
macro_rules! event {
    ($level:ident, $text:literal $(, $field:ident = $value:expr)* $(,)?) => {
        $crate::trace::tracing::event!(
            target: "sheaf", $crate::trace::tracing::Level::$level, { $($field = $value,)* }, $text
        )
    };
}

/// A span of the level and the name given: nothing, without the feature `tracing`.
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

/// An event of the level and with the text given: nothing, without the feature `tracing`.
#[cfg(not(feature = "tracing"))]
#[macro_export]
macro_rules! event {
    ($level:ident, $text:literal $(, $field:ident = $value:expr)* $(,)?) => {
        if false {
            $(let _ = &$value;)*
        }
    };
}
