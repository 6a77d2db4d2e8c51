//! Memory that the kernel may move: transparent huge pages and base pages.

use super::options::{Built, Request};
use super::populate::{populate, Gate, Order, Reporter};
use super::{runs, Error};
use crate::error::OsError;
use crate::mapping::{Mapping, Visibility};
use crate::sys::cgroup::Resource;
use crate::sys::page_size;
use crate::sys::pagemap::{frames_visible, Pagemap};
use crate::units::{Bytes, PageSize};

/// Base pages.
pub(super) fn plain(
    request: &Request,
    len: Bytes,
    reporter: &mut Reporter<'_>,
) -> Result<Built, Error> {
    let mapping = filled(request, len, page_size(), reporter, |_| Ok(()))?;
    let (runs, proof) = runs::read(&mapping, page_size())?;
    Ok(Built { mapping, claim: None, runs, proof, notes: Vec::new() })
}

/// Transparent huge pages of `huge`: some at least, and a note if not all.
pub(super) fn transparent(
    request: &Request,
    len: Bytes,
    huge: PageSize,
    reporter: &mut Reporter<'_>,
) -> Result<Built, Error> {
    let mapping = filled(request, len, huge, reporter, Mapping::prefer_huge_pages)?;
    let mut notes = Vec::new();
    // Small pages are never passed off as huge ones; a kernel before 6.7 cannot tell.
    let in_huge = match Pagemap::open()?.huge_bytes(mapping.addr(), len) {
        Ok(bytes) if bytes == Bytes::ZERO => return Err(Error::NotHuge { huge: bytes, len }),
        Ok(bytes) => {
            if bytes < len {
                notes.push(format!("{bytes} of {len} are in transparent huge pages"));
            }
            bytes
        }
        Err(error) => {
            notes.push(format!("whether pages are huge cannot be told: {error}"));
            Bytes::ZERO
        }
    };
    let hidden_but_huge = in_huge == len && !frames_visible();
    let grain = if hidden_but_huge { huge } else { page_size() };
    let (runs, proof) = runs::read(&mapping, grain)?;
    Ok(Built { mapping, claim: None, runs, proof, notes })
}

fn filled(
    request: &Request,
    len: Bytes,
    align: PageSize,
    reporter: &mut Reporter<'_>,
    prepare: impl FnOnce(&Mapping) -> Result<(), OsError>,
) -> Result<Mapping, Error> {
    let gate = Gate::new(Resource::Memory)?;
    gate.check(len)?;
    let mapping = Mapping::aligned(len, align, Visibility::PRIVATE)?;
    prepare(&mapping)?;
    populate(&mapping, align, Order::Any, request.threads, &gate, reporter)?;
    Ok(mapping)
}
