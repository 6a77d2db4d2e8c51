//! Tests that memory comes from the requested NUMA node, even if other nodes have idle pages.

use std::time::{Duration, Instant};

use glebe::contig::{Contig, Error, Node, Source};
use glebe::internal::sys::machine::kpage::{runs, uses, Use};
use glebe::internal::sys::machine::numa;
use glebe::internal::sys::page_size;
use glebe::units::{Bytes, Pages};
use glebe_testing::time::slowed;

use super::pool::Machine;
use crate::node_pool::{counts, is_all_on, is_on, several, Idle};
use glebe_testing::turn::{Turn, POOL};

const PAGES: u64 = 16;
const HUGE: u64 = 2 << 20;
/// Longest run; an emulated machine takes too long to zero more.
const RUN_MAX: Bytes = Bytes::mib(64);
const SEARCH: Duration = Duration::from_secs(6);

fn turn() -> Option<Option<Turn>> {
    let turn = Turn::alone(POOL);
    Machine::privileged().map(|_| turn)
}

fn take_beside(node: Node, idle_on: Node, is_file: bool) {
    let Some(_idle) = Idle::on(idle_on, PAGES) else { return };
    let before = [node, idle_on].map(counts);
    let options = Contig::options().source(Source::HUGETLB_2M).node(node);
    let options = if is_file { options.mappable() } else { options };
    let memory = options.build(Bytes::mib(64)).unwrap();
    assert!(is_all_on(&memory, node), "{node}, idle on {idle_on}: {:?}", memory.runs());
    if node != idle_on {
        assert_eq!(counts(idle_on), before[1], "idle pages of {idle_on} are not for {node}");
    }
    drop(memory);
    assert_eq!([node, idle_on].map(counts), before, "{node}, idle on {idle_on}");
}

#[test]
fn pages_of_each_node_are_had_whatever_lies_idle_on_which() {
    let Some(_turn) = turn() else { return };
    let Some(nodes) = several() else { return };
    for (node, idle_on) in nodes.iter().flat_map(|node| nodes.iter().map(move |idle| (node, idle)))
    {
        for is_file in [false, true] {
            take_beside(*node, *idle_on, is_file);
        }
    }
}

/// Returns the length of the longest run of free 2 MiB blocks on `node`, or `None` if frames are
/// hidden.
fn longest_free(node: Option<Node>) -> Option<Bytes> {
    let block = Pages::new(HUGE / page_size().bytes().get());
    let uses = uses(block).ok()?;
    let mut all = runs(&uses, block, |of| of == Use::Free);
    all.retain(|(first, _)| node.is_none_or(|node| is_on(first.get(), node)));
    Some(all.into_iter().map(|(_, len)| len.bytes(page_size())).max().unwrap_or_default())
}

/// Every other huge page of a series on a node. The pages between them are freed, so free memory is
/// fragmented.
struct Pieces(Vec<Contig>);

impl Pieces {
    fn of(node: Node, len: Bytes) -> Self {
        let piece = || {
            let options = Contig::options().source(Source::Thp).node(node).pin(false);
            options.build(Bytes::new(HUGE)).ok()
        };
        let all: Vec<Contig> = (0..len.get() / HUGE).map_while(|_| piece()).collect();
        let kept = all.into_iter().enumerate().filter(|(nth, _)| nth % 2 == 0);
        Self(kept.map(|(_, memory)| memory).collect())
    }
}

#[test]
fn a_run_that_is_free_on_a_node_is_had() {
    let Some(_turn) = turn() else { return };
    let nodes = numa::online();
    let pieces: Vec<Pieces> = nodes.iter().map(|node| Pieces::of(*node, Bytes::mib(512))).collect();
    println!("{:?} pieces are kept", pieces.iter().map(|of| of.0.len()).collect::<Vec<_>>());
    for node in nodes.into_iter().map(Some).chain([None]) {
        let Some(free) = longest_free(node).filter(|free| *free >= Bytes::mib(128)) else {
            println!("skipped: no run of 128 MiB is free on {node:?}");
            continue;
        };
        let len = Bytes::new(free.get() / 2 / HUGE * HUGE).min(RUN_MAX);
        let options = Contig::options().source(Source::HUGETLB_2M).require_run(len);
        let options = options.search_time(slowed(SEARCH));
        let began = Instant::now();
        let built = match node {
            Some(node) => options.node(node).build(len),
            None => options.build(len),
        };
        match built {
            Ok(memory) => {
                println!("{node:?}: {len} of {free} free in one run, {:?}", began.elapsed());
                assert_eq!(memory.runs().len(), 1, "{:?}", memory.runs());
                assert!(node.is_none_or(|node| is_all_on(&memory, node)), "{:?}", memory.runs());
            }
            // Another process may have split the run.
            Err(Error::NotContiguous { .. }) if longest_free(node) < Some(len) => {
                println!("skipped: the run is no longer free")
            }
            // The library refuses a search that would take too much memory.
            Err(error @ (Error::TooLarge { .. } | Error::CgroupLimit { .. })) => {
                println!("skipped: {error}")
            }
            Err(error @ Error::PoolShort { .. }) => println!("skipped: {error}"),
            Err(error) => panic!("{node:?} after {:?}: {error}", began.elapsed()),
        }
    }
}
