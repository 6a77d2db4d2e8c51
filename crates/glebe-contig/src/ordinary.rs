//! Makes memory outside hugetlb pools.

use std::fs::File;
use std::sync::Arc;

use super::options::Options;
use super::populate::{populate, populate_until, Gate, Order};
use super::{runs, Contig, Error, Source};
use glebe_os::error::OsError;
use glebe_os::internal::mapping::{Mapping, Visibility};
use glebe_os::internal::sys::machine::cgroup::Resource;
use glebe_os::internal::sys::memory::dma_heap::{allocate, heaps};
use glebe_os::internal::sys::memory::madvise::transparent_huge_page;
use glebe_os::internal::sys::memory::memfd::MemFile;
use glebe_os::internal::sys::memory::pagemap::{frames_visible, Pagemap};
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, PageSize};

pub(super) fn plain(options: &Options, len: Bytes) -> Result<Contig, Error> {
    let mapping = filled(options, len, page_size(), |_| Ok(()))?;
    let runs = runs::read(&mapping, page_size())?;
    Ok(Contig::of(Source::Plain, mapping, runs))
}

pub(super) fn dma_heap(options: &Options, len: Bytes) -> Result<Contig, Error> {
    let path = options.dma_heap.as_ref().ok_or_else(|| Error::NoHeap { heaps: heaps() })?;
    Gate::new(Resource::Memory)?.check(len)?;
    shown(&allocate(path, len)?, len)
}

/// Touches the buffer's pages, which fills the page table.
fn shown(buffer: &File, len: Bytes) -> Result<Contig, Error> {
    let page = page_size();
    let mapping = Mapping::window(buffer, len, page)?;
    let mut byte = [0];
    for at in (0..len.get()).step_by(page.bytes().as_usize()) {
        mapping.read(Bytes::new(at), &mut byte);
    }
    let runs = runs::read(&mapping, page)?;
    Ok(Contig::of(Source::DmaHeap, mapping, runs))
}

pub(super) fn transparent(options: &Options, len: Bytes) -> Result<Contig, Error> {
    let huge = transparent_huge_page()?;
    let mapping = filled(options, len, huge, Mapping::prefer_huge_pages)?;
    // `collapse` may find huge pages that the fault did not find.
    let huge_bytes = || Pagemap::open()?.huge_bytes(mapping.addr(), len);
    if huge_bytes().is_ok_and(|huge| huge < len) {
        let _ = mapping.collapse();
    }
    let mut notes = Vec::new();
    // Before Linux 6.7, or without its pagemap, a process cannot count huge pages.
    let in_huge = match huge_bytes() {
        Ok(bytes) if bytes == Bytes::ZERO => {
            return Err(Error::NotHuge { huge: bytes, len, elsewhere: None })
        }
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
    Ok(Contig { why_not_better: notes, ..Contig::of(Source::Thp, mapping, runs) })
}

fn filled(
    options: &Options,
    len: Bytes,
    align: PageSize,
    prepare: impl FnOnce(&Mapping) -> Result<(), OsError>,
) -> Result<Mapping, Error> {
    let gate = Gate::new(Resource::Memory)?.on(options.node_set());
    gate.check(len)?;
    let mapping = if options.mappable {
        Mapping::shared(
            Arc::new(MemFile::new(len)?.not_for_children()?),
            align,
            Visibility::PRIVATE,
        )?
    } else {
        Mapping::aligned(len, align, Visibility::PRIVATE)?
    };
    if let Some(nodes) = &options.nodes {
        mapping.bind(nodes)?;
    }
    prepare(&mapping)?;
    let (order, until) = (Order::Any, options.deadline());
    if !populate_until(until, &mapping, align, order, options, &gate)? {
        check_had(options, &mapping)?;
        populate(&mapping, align, order, options, &gate)?;
    }
    Ok(mapping)
}

fn check_had(options: &Options, mapping: &Mapping) -> Result<(), Error> {
    let (runs, _) = runs::read(mapping, page_size())?;
    let longest = runs::longest(&runs).bytes(page_size());
    match options.required.filter(|wanted| *wanted > longest) {
        Some(wanted) => {
            let tried = options.search_time.map(|time| format!("ended by its limit of {time:?}"));
            Err(Error::NotContiguous { wanted, longest, tried })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_shown_with_its_own_bytes_and_frames() {
        use std::io::{Seek, Write};
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
