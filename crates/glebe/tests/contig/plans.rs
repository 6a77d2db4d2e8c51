//! Tests plans, alignment, fixed addresses, nodes and sources.

use glebe::contig::{Contig, Error, Node, Plan, Source};
use glebe::internal::sys::machine::hugetlb::sizes;
use glebe::page_size;
use glebe::units::{Bytes, Pages};

use super::{frames, lacks_thp, machine};

/// Length that is neither a power of two nor a multiple of a huge page.
const TALK: Bytes = Bytes::new(3072 << 10);

fn pages(len: Bytes) -> Pages {
    len.pages_up(page_size())
}

#[test]
fn the_talks_request_rounded_up_is_one_run_and_gives_the_spare_back() {
    let Some(_machine) = machine() else { return };
    let round_up = || Contig::options().plan(Plan::RoundUp);
    match round_up().source(Source::Thp).prefer_run(TALK).build(TALK) {
        Ok(memory) => {
            assert_eq!((memory.len(), memory.spare()), (TALK, Bytes::ZERO));
            let covered: u64 = memory.runs().iter().map(|run| run.pages.len()).sum();
            assert_eq!(covered, pages(TALK).get());
            assert!(memory.longest_run() >= pages(Bytes::mib(2)), "{:?}", memory.runs());
            if memory.longest_run() < pages(TALK) {
                println!("skipped: two huge pages that are no neighbours");
            }
            memory.mapping().write(TALK - Bytes::new(1), &[1]);
            assert_eq!(memory.verify().unwrap(), []);
        }
        Err(error @ Error::NotHuge { .. }) => println!("skipped: {error}"),
        Err(error) if lacks_thp(&error) => {}
        Err(error) => panic!("{error}"),
    }
    // A pool takes back whole pages only; `spare` reports the bytes that stay.
    match round_up().source(Source::HUGETLB_2M).require_run(TALK).build(TALK) {
        Ok(memory) => {
            assert_eq!((memory.len(), memory.spare()), (Bytes::mib(4), Bytes::mib(1)));
            assert_eq!(memory.longest_run(), pages(Bytes::mib(4)));
        }
        Err(error @ (Error::PoolShort { .. } | Error::NotContiguous { .. })) => {
            println!("skipped: {error}");
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn the_talks_request_divided_has_the_largest_block_first_and_nothing_spare() {
    let Some((machine, _turn)) = machine() else { return };
    machine.base_is_kept(|| {
        let memory = Contig::options().plan(Plan::Divide).build(TALK).unwrap();
        assert_eq!((memory.len(), memory.spare()), (TALK, Bytes::ZERO));
        let parts = memory.parts();
        assert!(parts.len() >= 2, "{parts:?}");
        let huge = pages(Bytes::mib(2)).get();
        assert_eq!((parts[0].pages.start(), parts[0].pages.len()), (0, huge));
        assert!(matches!(parts[0].source, Source::Hugetlb(_) | Source::Thp), "{parts:?}");
        assert_eq!(parts.last().unwrap().pages.end(), pages(TALK).get());
        assert!(parts.windows(2).all(|two| two[0].pages.end() == two[1].pages.start()));
        assert_eq!(memory.source(), Source::Divided);
        let seen = frames(memory.mapping().addr(), TALK.get());
        for run in memory.runs() {
            let first = run.pfn.unwrap().get();
            for n in 0..run.pages.len() {
                assert_eq!(seen[(run.pages.start() + n) as usize], first + n);
            }
        }
        assert!(memory.longest_run().get() >= huge);
        for at in [0, (2 << 20) - 1, 2 << 20, TALK.get() - 1] {
            memory.mapping().write(Bytes::new(at), &[7]);
        }
        assert_eq!(memory.verify().unwrap(), []);
    });
}

#[test]
fn memory_lies_where_it_is_wanted() {
    let page = page_size().bytes();
    for source in [Source::Plain, Source::Thp, Source::HUGETLB_2M] {
        let align = Bytes::mib(64);
        match Contig::options().source(source).align(align).build(Bytes::mib(4)) {
            Ok(memory) => {
                assert_eq!(memory.mapping().addr() % align.as_usize(), 0, "{source}");
                memory.mapping().write(memory.len() - Bytes::new(1), &[1]);
                let at = memory.mapping().addr();
                let taken = Contig::options().source(source).at(at).build(Bytes::mib(4));
                assert!(matches!(taken, Err(Error::Os(_) | Error::PoolShort { .. })), "{taken:?}");
                drop(memory);
                match Contig::options().source(source).at(at).build(Bytes::mib(4)) {
                    Ok(again) => assert_eq!(again.mapping().addr(), at),
                    Err(error) => println!("another thread has the place: {error}"),
                }
            }
            Err(error) => println!("skipped: {error}"),
        }
    }
    let odd = Contig::options().source(Source::Plain).align(Bytes::new(3)).build(page);
    assert!(matches!(odd, Err(Error::BadAlign { .. })), "{odd:?}");
    // The library meets each alignment, or names it in the error.
    for log in [31, 40, 48, 63] {
        let align = Bytes::new(1 << log);
        match Contig::options().source(Source::Plain).align(align).build(page) {
            Ok(memory) => assert_eq!(memory.mapping().addr() as u64 % align.get(), 0),
            Err(error) => {
                let is_told = matches!(&error, Error::NoAddresses { len, align: a, .. }
                    if *len == page && *a == align);
                assert!(is_told && log >= 40, "{error}");
                assert!(error.to_string().contains(&align.to_string()), "{error}");
            }
        }
    }
    let nowhere = Contig::options().source(Source::Plain).at(1).build(page);
    assert!(matches!(nowhere, Err(Error::Os(_))), "{nowhere:?}");
}

#[test]
fn a_node_that_is_there_gives_memory_and_one_that_is_not_is_named() {
    let absent = Node(4_000_000);
    let error = Contig::options().node(absent).build(Bytes::mib(1)).unwrap_err();
    assert!(matches!(error, Error::NoSuchNode { node, .. } if node == absent), "{error}");
    for source in [Source::Plain, Source::Thp, Source::HUGETLB_2M] {
        match Contig::options().source(source).node(Node(0)).build(Bytes::mib(2)) {
            Ok(memory) => memory.mapping().write(Bytes::ZERO, &[1]),
            Err(Error::NoSuchNode { online, .. }) => assert!(!online.contains(&Node(0))),
            Err(error) => println!("skipped: {error}"),
        }
    }
}

#[test]
fn a_source_that_the_machine_lacks_says_so() {
    let error = Contig::options().source(Source::DmaHeap).build(Bytes::mib(1)).unwrap_err();
    assert!(matches!(error, Error::NoHeap { .. }), "{error}");
    let path = "/dev/dma_heap/no-such-heap";
    let error = Contig::options().dma_heap(path).build(Bytes::mib(1)).unwrap_err();
    assert!(error.to_string().contains(path), "{error}");
    let error = Contig::options().dma_heap("/dev/zero").build(Bytes::mib(1)).unwrap_err();
    assert!(error.to_string().contains("DMA_HEAP_IOCTL_ALLOC"), "{error}");
}

#[test]
fn every_size_of_the_machine_is_a_source() {
    for size in sizes() {
        match Contig::options().source(Source::Hugetlb(size)).build(Bytes::new(1)) {
            Ok(memory) => {
                assert_eq!(memory.len(), size.bytes());
                assert_eq!(memory.longest_run(), pages(size.bytes()));
            }
            Err(error @ (Error::PoolShort { .. } | Error::TooLarge { .. })) => {
                println!("skipped: {error}");
            }
            Err(error) => panic!("{error}"),
        }
    }
}
