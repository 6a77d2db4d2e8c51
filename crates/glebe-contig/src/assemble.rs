//! Assembles several sources in one mapping, largest pages first.
//!
//! Lengths are bytes, positions base pages.

use super::{runs, Contig, Error, Part, Source};
use glebe_os::extent::Extent;
use glebe_os::internal::mapping::Mapping;
use glebe_os::internal::sys::machine::hugetlb::sizes;
use glebe_os::internal::sys::memory::madvise::transparent_huge_page;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, PageSize};

pub(super) fn build(
    len: Bytes,
    build: impl Fn(Source, Bytes) -> Result<Contig, Error>,
) -> Result<Contig, Error> {
    let (mut notes, mut blocks, mut left) = (Vec::new(), Vec::<Contig>::new(), len);
    for (source, page) in largest_first() {
        let most = left.pages_down(page).bytes(page);
        if most == Bytes::ZERO {
            continue;
        }
        let built = match build(source, most) {
            Err(Error::PoolShort { got, wanted, .. }) if got > 0 && got < wanted => {
                build(source, Bytes::new(got.saturating_mul(page.bytes().get())))
            }
            other => other,
        };
        match built {
            Ok(built) => {
                left = left - built.len();
                blocks.push(built);
            }
            Err(error) => notes.push(format!("{source}: {error}")),
        }
    }
    if left > Bytes::ZERO {
        blocks.push(build(Source::Plain, left)?);
    }
    join(blocks, notes)
}

fn largest_first() -> Vec<(Source, PageSize)> {
    let pools = sizes().into_iter().map(|size| (Source::Hugetlb(size), size));
    let thp = transparent_huge_page().ok().map(|size| (Source::Thp, size));
    // The stable sort keeps hugetlb before transparent huge pages of equal size, because the kernel
    // moves hugetlb pages less.
    let mut all: Vec<(Source, PageSize)> = pools.chain(thp).collect();
    all.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
    all
}

fn join(blocks: Vec<Contig>, mut notes: Vec<String>) -> Result<Contig, Error> {
    let (mut mappings, mut parts) = (Vec::new(), Vec::<Part>::new());
    let (mut align, mut tried) = (page_size(), None);
    for block in blocks {
        let source = block.source();
        let at = parts.last().map_or(0, |part| part.pages.end());
        let pages = Extent::new(at, block.len().pages_up(page_size()).get());
        parts.extend(pages.map(|pages| Part { pages, source }));
        align = align.max(source.page());
        mappings.push(block.mapping);
        notes.extend(block.why_not_better);
        tried = tried.or(block.tried);
    }
    let mapping = match <[Mapping; 1]>::try_from(mappings) {
        Ok([only]) => only,
        Err(mappings) => Mapping::joined(mappings, align)?,
    };
    let known = runs::read_parts(&mapping, &parts)?;
    let joined = Contig::of(Source::Divided, mapping, known);
    Ok(Contig { parts, tried, why_not_better: notes, ..joined })
}
