//! Starts the library's own threads. Source: clone(2), pthread_create(3).

use std::io;
use std::thread::{Builder, JoinHandle, Scope};

use crate::internal::sys::fault::point;

pub fn start(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    point("clone")?;
    Builder::new().name(name.to_owned()).spawn(body).map(drop)
}

pub fn start_joined(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    point("clone")?;
    Builder::new().name(name.to_owned()).spawn(body)
}

pub fn start_within<'scope>(
    scope: &'scope Scope<'scope, '_>,
    body: impl FnOnce() + Send + 'scope,
) -> io::Result<()> {
    point("clone")?;
    Builder::new().spawn_scoped(scope, body).map(drop)
}
