//! # Verbs of a served database, on a system without the server
//!
//! The server uses epoll, eventfd and sealed memory of Linux.

use std::ffi::OsString;

use clap::Args;

use crate::failure::{Failure, Result};

/// Arguments of `serve` and `call`, which are not read.
#[derive(Debug, Args)]
pub(crate) struct AnyArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    pub(crate) arguments: Vec<OsString>,
}

pub(crate) fn refuse(_: &AnyArgs) -> Result {
    Err(Failure::Refused("the server and its client work on Linux only".to_owned()))
}

pub(crate) mod serve {
    pub(crate) use super::{AnyArgs as Serve, refuse as run};
}

pub(crate) mod call {
    pub(crate) use super::{AnyArgs as Call, refuse as run};
}
