//! Leases: huge pages of the daemon that `glebe serve --leases` runs.
//!
//! Each lease has its own connection, so it ends with its handle, whatever other leases do.
#![allow(unsafe_code)] // exported names

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use glebe::lease::wire::Name;
use glebe::lease::{socket_path, Client, Flags, LeaseError, Wish};
use glebe::page_size;

use crate::abi::*;
use crate::boundary::{call, Array, In, Out};
use crate::failure::Failure;
use crate::process::{end, insert, with, Process};

/// Longest wait for a daemon that does not answer.
const LIMIT: Duration = Duration::from_secs(10);

fn wish(len_bytes: u64, asked: &glebe_lease_options, name: &str) -> Result<Wish, Failure> {
    let node = match Failure::flag("on_node", asked.on_node)? {
        true => Some(u32::try_from(asked.node).map_err(|_| Failure::bad("node", asked.node))?),
        false if asked.node != 0 => return Err(Failure::bad("node without on_node", asked.node)),
        false => None,
    };
    let flags = Flags {
        contiguous: Failure::flag("contiguous", asked.contiguous)?,
        one_file: Failure::flag("one_file", asked.one_file)?,
        revocable: Failure::flag("revocable", asked.revocable)?,
    };
    let (bytes, align, name) = (len_bytes, asked.align_bytes, Name::new(name));
    Ok(Wish { bytes, align, node, flags, name })
}

/// Returns the caller's name of the lease, else the program's.
fn name_of(given: &In<c_char>) -> String {
    match given.text() {
        Some(name) => name.to_string_lossy().into_owned(),
        None => {
            let program = PathBuf::from(std::env::args_os().next().unwrap_or_default());
            program.file_name().unwrap_or_default().to_string_lossy().into_owned()
        }
    }
}

#[no_mangle]
pub extern "C" fn glebe_lease_new(
    len_bytes: u64,
    options: In<glebe_lease_options>,
    lease: Out<glebe_lease>,
    limit_bytes: Out<u64>,
) -> c_int {
    call(|| {
        let (out, asked) = (lease.checked("lease")?, options.read()?);
        let name = name_of(&In::member(asked.name));
        let wish = wish(len_bytes, &asked, &name)?;
        let socket = In::member(asked.socket).path().map_or_else(socket_path, Path::to_owned);
        let make = || Ok([Client::connect_within(&socket, &name, LIMIT)?.lease(wish)?]);
        let made = insert(Process::create()?, make).inspect_err(|failure| {
            if let Failure::Lease(LeaseError::Refused { limit, .. }) = failure {
                limit_bytes.set(limit.get());
            }
        });
        Ok(out.set(made?))
    })
}

#[no_mangle]
pub extern "C" fn glebe_lease_free(lease: glebe_lease) -> c_int {
    call(|| end(lease))
}

#[no_mangle]
pub extern "C" fn glebe_lease_memory(
    lease: glebe_lease,
    address: Out<*mut c_void>,
    len_bytes: Out<u64>,
) -> c_int {
    call(|| {
        let (first, len) = with(lease, |of| Ok((of.as_ptr(), of.len())))?;
        address.set(first.cast());
        Ok(len_bytes.set(len.get()))
    })
}

#[no_mangle]
pub extern "C" fn glebe_lease_number(lease: glebe_lease, number: Out<u64>) -> c_int {
    call(|| {
        let out = number.checked("number")?;
        Ok(out.set(with(lease, |of| Ok(of.number()))?))
    })
}

#[no_mangle]
pub extern "C" fn glebe_lease_runs(
    lease: glebe_lease,
    runs: Out<glebe_run>,
    capacity: usize,
    count: Out<usize>,
) -> c_int {
    call(|| {
        let out = Array::new(runs, capacity, count, "runs")?;
        let page = page_size().bytes().get();
        let all = with(lease, |of| Ok(of.runs()))?;
        out.set(all.iter().map(|run| glebe_run {
            start_pages: run.offset.get() / page,
            len_pages: run.len.get() / page,
            pfn: run.physical.map_or(GLEBE_PFN_HIDDEN, |physical| physical / page),
        }));
        Ok(GLEBE_OK)
    })
}

#[no_mangle]
pub extern "C" fn glebe_lease_files(
    lease: glebe_lease,
    fds: Out<c_int>,
    capacity: usize,
    count: Out<usize>,
) -> c_int {
    call(|| {
        let out = Array::new(fds, capacity, count, "fds")?;
        with(lease, |of| Ok(out.set(of.files().map(|file| file.as_raw_fd()))))?;
        Ok(GLEBE_OK)
    })
}

#[no_mangle]
pub extern "C" fn glebe_lease_recalled(
    lease: glebe_lease,
    wait_ms: u64,
    left_ms: Out<u64>,
) -> c_int {
    call(|| {
        let asked = with(lease, |of| {
            let asked = of.recalled(Duration::from_millis(wait_ms))?;
            if asked.is_some() {
                // The daemon may have taken the memory since it asked.
                of.recalled(Duration::ZERO)?;
            }
            Ok(asked)
        })?;
        let Some(left) = asked else { return Ok(GLEBE_LEASE_KEPT) };
        left_ms.set(u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        Ok(GLEBE_LEASE_RECALLED)
    })
}
