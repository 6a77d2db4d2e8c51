//! Memory of several sources in one mapping: the largest blocks first, smaller ones for the rest.
//!
//! Each part is had by itself, populated and read, and then moved beside the others; pages stay
//! in their frames while their addresses change. Lengths are bytes, positions base pages.

use super::choose::{build as build_one, Built, Request};
use super::populate::Reporter;
use super::{runs, Error, Part, Source};
use crate::extent::Extent;
use crate::mapping::Mapping;
use crate::sys::hugetlb::sizes;
use crate::sys::madvise::{mthp_sizes, transparent_huge_page};
use crate::sys::page_size;
use crate::units::{Bytes, PageSize};

/// Maps `len` bytes, whole base pages.
pub(super) fn build(
    request: &Request<'_>,
    len: Bytes,
    reporter: &mut Reporter<'_>,
) -> Result<Built, Error> {
    let mut notes = Vec::new();
    let mut blocks: Vec<Built> = Vec::new();
    let mut left = len;
    for source in largest_first() {
        let unit = source.1.bytes();
        let most = left.pages_down(source.1).bytes(source.1);
        if most == Bytes::ZERO {
            continue;
        }
        match block(source.0, most, unit, request, reporter) {
            Ok(built) => {
                left = left - built.mapping.len();
                blocks.push(built);
            }
            Err(error) => notes.push(format!("{}: {error}", source.0)),
        }
        if left == Bytes::ZERO {
            break;
        }
    }
    if left > Bytes::ZERO {
        blocks.push(build_one(Source::Plain, &Request { len: left, ..copy(request) }, reporter)?);
    }
    join(blocks, notes)
}

/// The sources whose pages are blocks, with their pages, largest first.
fn largest_first() -> Vec<(Source, PageSize)> {
    let mut all: Vec<(Source, PageSize)> =
        sizes().into_iter().map(|size| (Source::Hugetlb(size), size)).collect();
    all.extend(transparent_huge_page().ok().map(|size| (Source::Thp, size)));
    all.extend(mthp_sizes().into_iter().map(|size| (Source::Mthp(size), size)));
    // Of one size the pool's first: its pages stay in their frames.
    all.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
    all
}

/// Up to `most` bytes of one source: as much as its pool has.
fn block(
    source: Source,
    most: Bytes,
    unit: Bytes,
    request: &Request<'_>,
    reporter: &mut Reporter<'_>,
) -> Result<Built, Error> {
    let had = build_one(source, &Request { len: most, ..copy(request) }, reporter);
    match had {
        Err(Error::PoolShort { got, wanted, .. }) if got > 0 && got < wanted => {
            let len = Bytes::new(got.saturating_mul(unit.get()));
            build_one(source, &Request { len, ..copy(request) }, reporter)
        }
        other => other,
    }
}

fn copy<'a>(request: &Request<'a>) -> Request<'a> {
    Request { place: request.place.clone(), ..*request }
}

/// Puts the blocks side by side and lists what lies in which.
fn join(blocks: Vec<Built>, mut notes: Vec<String>) -> Result<Built, Error> {
    let (page, mut at) = (page_size(), 0);
    let (mut mappings, mut grown_by, mut parts) = (Vec::new(), 0, Vec::new());
    let (mut align, mut tried) = (page, None);
    for block in blocks {
        let pages = block.mapping.len().pages_up(page).get();
        let Some(place) = Extent::new(at, pages) else { continue };
        let source = block.parts.first().map_or(Source::Plain, |part| part.source);
        parts.push(Part { pages: place, source });
        align = align.max(unit_of(source));
        at = place.end();
        mappings.push(block.mapping);
        grown_by += block.grown_by;
        notes.extend(block.notes);
        tried = tried.or(block.tried);
    }
    let mapping = match <[Mapping; 1]>::try_from(mappings) {
        Ok([only]) => only,
        Err(mappings) => Mapping::joined(mappings, align)?,
    };
    let (runs, proof) = runs::read_parts(&mapping, &parts)?;
    Ok(Built { mapping, blocks: None, grown_by, parts, runs, proof, tried, notes })
}

fn unit_of(source: Source) -> PageSize {
    match source {
        Source::Hugetlb(size) | Source::Mthp(size) => size,
        Source::Thp => transparent_huge_page().unwrap_or(page_size()),
        Source::Plain | Source::DmaHeap | Source::Blocks | Source::Divided => page_size(),
    }
}
