//! Memory of no hugetlb pool: transparent huge pages, base pages, buffers of a dma-heap.

use std::fs::File;
use std::sync::Arc;

use super::choose::{Built, Request};
use super::populate::{populate, Gate, Order, Reporter};
use super::{runs, Error, Source};
use crate::error::OsError;
use crate::mapping::{Mapping, Visibility};
use crate::sys::cgroup::Resource;
use crate::sys::dma_heap::{allocate, heaps};
use crate::sys::madvise::{mthp_mode, mthp_path};
use crate::sys::memfd::MemFile;
use crate::sys::page_size;
use crate::sys::pagemap::{frames_visible, Pagemap};
use crate::units::{Bytes, PageSize};

/// Base pages.
pub(super) fn plain(
    request: &Request<'_>,
    len: Bytes,
    reporter: &mut Reporter<'_>,
) -> Result<Built, Error> {
    let mapping = filled(request, len, page_size(), reporter, |_| Ok(()))?;
    let runs = runs::read(&mapping, page_size())?;
    Ok(Built::of(Source::Plain, mapping, runs))
}

/// Transparent huge pages smaller than the largest. Whether they came can be told by frames alone.
pub(super) fn small_transparent(
    request: &Request<'_>,
    len: Bytes,
    size: PageSize,
    reporter: &mut Reporter<'_>,
) -> Result<Built, Error> {
    let mode = mthp_mode(size)?;
    if mode == "never" {
        let (size, path) = (size.bytes(), mthp_path(size));
        return Err(Error::MthpOff { size, path, mode });
    }
    let mapping = filled(request, len, size, reporter, Mapping::prefer_huge_pages)?;
    let runs = runs::read(&mapping, page_size())?;
    Ok(Built::of(Source::Mthp(size), mapping, runs))
}

/// A buffer of a dma-heap. It is there when it is allocated, and touched for its page table.
pub(super) fn dma_heap(request: &Request<'_>, len: Bytes) -> Result<Built, Error> {
    let path = request.dma_heap.ok_or_else(|| Error::NoHeap { heaps: heaps() })?;
    Gate::new(Resource::Memory)?.check(len)?;
    shown(&allocate(path, len)?, len)
}

/// The bytes of a buffer, mapped and looked at.
fn shown(buffer: &File, len: Bytes) -> Result<Built, Error> {
    let page = page_size();
    let mapping = Mapping::window(buffer, Bytes::ZERO, len, page)?;
    let mut byte = [0];
    for at in (0..len.get()).step_by(page.bytes().as_usize()) {
        mapping.read(Bytes::new(at), &mut byte);
    }
    let runs = runs::read(&mapping, page)?;
    Ok(Built::of(Source::DmaHeap, mapping, runs))
}

/// Transparent huge pages of `huge`: some at least, and a note if not all.
pub(super) fn transparent(
    request: &Request<'_>,
    len: Bytes,
    huge: PageSize,
    reporter: &mut Reporter<'_>,
) -> Result<Built, Error> {
    let mapping = filled(request, len, huge, reporter, Mapping::prefer_huge_pages)?;
    // What a fault did not get the kernel may find now. The rest stays as it is.
    let map = Pagemap::open()?;
    if map.huge_bytes(mapping.addr(), len).is_ok_and(|huge| huge < len) {
        let _ = mapping.collapse();
    }
    let mut notes = Vec::new();
    // Small pages are never passed off as huge ones; a kernel before 6.7 cannot tell.
    let in_huge = match map.huge_bytes(mapping.addr(), len) {
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
    let runs = runs::read(&mapping, grain)?;
    Ok(Built { notes, ..Built::of(Source::Thp, mapping, runs) })
}

fn filled(
    request: &Request<'_>,
    len: Bytes,
    align: PageSize,
    reporter: &mut Reporter<'_>,
    prepare: impl FnOnce(&Mapping) -> Result<(), OsError>,
) -> Result<Mapping, Error> {
    let gate = Gate::new(Resource::Memory)?;
    gate.check(len)?;
    let mapping = if request.mappable {
        Mapping::shared(
            Arc::new(MemFile::new(len)?.not_for_children()?),
            align,
            Visibility::PRIVATE,
        )?
    } else {
        Mapping::aligned(len, align, Visibility::PRIVATE)?
    };
    if let Some(node) = request.node {
        mapping.bind(node)?;
    }
    prepare(&mapping)?;
    populate(&mapping, align, Order::Any, request.threads, &gate, reporter)?;
    Ok(mapping)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_shown_with_its_own_bytes_and_frames() {
        use std::io::{Seek, Write};
        // A file of tmpfs stands for a dma-buf: both are shared pages behind a descriptor.
        let Ok(mut file) = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(format!("/dev/shm/glebe-buffer-{}", std::process::id()))
        else {
            println!("skipped: no /dev/shm");
            return;
        };
        std::fs::remove_file(format!("/dev/shm/glebe-buffer-{}", std::process::id())).unwrap();
        let len = Bytes::new(page_size().bytes().get() * 5);
        file.write_all(&vec![3; len.as_usize()]).unwrap();
        file.rewind().unwrap();
        let built = shown(&file, len).unwrap();
        let mut last = [0];
        built.mapping.read(len - Bytes::new(1), &mut last);
        assert_eq!((last, built.parts[0].source), ([3], Source::DmaHeap));
        let covered: u64 = built.runs.iter().map(|run| run.pages.len()).sum();
        assert!(covered == 5 || (!frames_visible() && covered == 0), "{:?}", built.runs);
    }
}
