//! A fake tells a reserve that its memory is on two nodes, and each thread that it runs on one.

use std::cell::Cell;

use super::*;
use crate::contig::Source;
use crate::reserve::options::{with_nodes, with_writers};
use crate::reserve::{Block, Request, Reserve, Writers};
use glebe_os::internal::sys::page_size;
use glebe_os::internal::sys::processes::one_processor::OneProcessor;
use glebe_os::units::{Bytes, Pages};

thread_local! {
    static HERE: Cell<u32> = const { Cell::new(0) };
}

fn go_to(node: u32) {
    HERE.set(node);
}

fn here() -> Option<Node> {
    Some(Node(HERE.get()))
}

fn pages_of(contig: &Contig) -> u64 {
    contig.len().pages_down(page_size()).get()
}

fn halves(contig: &Contig) -> Result<Vec<(Extent, Node)>, OsError> {
    let half = pages_of(contig) / 2;
    let on = |start, node| (Extent::new(start, half).unwrap(), Node(node));
    Ok(vec![on(0, 0), on(half, 1)])
}

fn two_nodes(pages: NodesOf) -> NodeTeller {
    NodeTeller { machine: || vec![Node(0), Node(1)], pages, here }
}

fn len() -> Bytes {
    Pages::new(2048).bytes(page_size())
}

fn reserve(writers: Option<Writers>, teller: NodeTeller, room: Bytes) -> Reserve {
    let options = Reserve::options().memory(Contig::options().source(Source::Plain)).room(room);
    let options = with_nodes(options, teller);
    let options = match writers {
        Some(writers) => with_writers(options, writers),
        None => options,
    };
    options.build(len()).unwrap()
}

fn half() -> u64 {
    len().pages_down(page_size()).get() / 2
}

/// Returns the node of a block, which must be on one.
fn node_of(block: &Block) -> u32 {
    let (start, end) = (block.extent().start(), block.extent().end());
    assert!(end <= half() || start >= half(), "{:?} is on both nodes", block.extent());
    u32::from(start >= half())
}

#[test]
fn pages_and_blocks_are_on_the_callers_node_while_it_has_some() {
    for writers in [None, Some(Writers::Counted)] {
        let reserve = reserve(writers, two_nodes(halves), Bytes::ZERO);
        let one = Request::new(Pages::new(1));
        let three = Request::new(Pages::new(3)).any();
        let all = [one, one.zeroed(), three, three.zeroed(), three.align(Pages::new(4))];
        let mut held = Vec::new();
        for nth in 0..200 {
            let node = nth % 2;
            go_to(node);
            let request = all[nth as usize / 2 % all.len()];
            held.push(reserve.alloc(request).unwrap());
            assert_eq!(node_of(held.last().unwrap()), node, "{request:?}, {writers:?}");
        }
        drop(held);
        go_to(1);
        let mut own: Vec<Block> = (0..half()).map(|_| reserve.alloc(one).unwrap()).collect();
        assert!(own.iter().all(|block| node_of(block) == 1), "the node has {} pages", own.len());
        let far = [one, one.zeroed(), three, one].map(|request| reserve.alloc(request).unwrap());
        assert!(far.iter().all(|block| node_of(block) == 0));
        let back = own.pop().unwrap().extent();
        assert_eq!(reserve.alloc(one).unwrap().extent(), back, "first what is near again");
        go_to(0);
        assert_eq!(node_of(&reserve.alloc(one).unwrap()), 0);
        drop((own, far));
        assert_eq!(reserve.stats().held, Pages::ZERO);
        let whole = reserve.alloc(Request::new(reserve.len()).any()).unwrap();
        assert_eq!(whole.pages(), reserve.len(), "nothing is lost between the stocks");
        reserve.stats().check().unwrap();
    }
}

#[test]
fn a_page_that_is_given_back_elsewhere_serves_its_own_node() {
    let reserve = reserve(None, two_nodes(halves), Bytes::ZERO);
    go_to(1);
    let block = reserve.alloc(Pages::new(1)).unwrap();
    let page = block.extent();
    go_to(0);
    drop(block);
    assert_eq!(node_of(&reserve.alloc(Pages::new(1)).unwrap()), 0);
    go_to(1);
    assert_eq!(reserve.alloc(Pages::new(1)).unwrap().extent(), page);
}

#[test]
fn a_caller_on_another_node_has_the_pages_of_the_first() {
    let reserve = reserve(None, two_nodes(halves), Bytes::ZERO);
    go_to(7);
    assert_eq!(reserve.alloc(Pages::new(1)).unwrap().extent().start(), 0);
    let three = reserve.alloc(Request::new(Pages::new(3)).any()).unwrap();
    assert_eq!(node_of(&three), 0);
}

/// The first memory is on node 0, and what comes later is on node 1.
fn by_length(contig: &Contig) -> Result<Vec<(Extent, Node)>, OsError> {
    let node = Node(u32::from(contig.len() != len()));
    Ok(vec![(Extent::new(0, pages_of(contig)).unwrap(), node)])
}

#[test]
fn memory_that_came_later_serves_its_node() {
    let reserve = reserve(None, two_nodes(by_length), len() + len());
    let one = Pages::new(1);
    go_to(1);
    let before = reserve.alloc(one).unwrap();
    assert_eq!(before.extent().start(), 0, "no memory on the node yet");
    reserve.grow(Bytes::new(len().get() / 2)).unwrap();
    let first = len().pages_down(page_size()).get();
    let of = |start, len, node| (Extent::new(start, len).unwrap(), Node(node));
    assert_eq!(reserve.nodes().unwrap(), [of(0, first, 0), of(first, first / 2, 1)]);
    assert_eq!(reserve.certificate().unwrap().nodes, reserve.nodes().unwrap());
    let three = Request::new(Pages::new(3)).any();
    for request in [Request::new(one), three] {
        assert!(reserve.alloc(request).unwrap().extent().start() >= first, "{request:?}");
    }
    go_to(0);
    for request in [Request::new(one), three] {
        assert!(reserve.alloc(request).unwrap().extent().start() < first, "{request:?}");
    }
}

#[test]
fn memory_in_place_of_other_serves_its_node() {
    // The reserve has all its room, and can shrink and grow again.
    let reserve = reserve(None, two_nodes(by_length), len());
    let half_len = Bytes::new(len().get() / 2);
    reserve.shrink(half_len).unwrap();
    reserve.grow(half_len).unwrap();
    let on_second = |pages: &Extent| {
        let nodes = reserve.nodes().unwrap();
        nodes.iter().any(|(all, node)| *node == Node(1) && all.contains(*pages))
    };
    for node in [0, 1, 0] {
        go_to(node);
        let block = reserve.alloc(Pages::new(1)).unwrap();
        assert_eq!(on_second(&block.extent()), node == 1, "{:?}", block.extent());
    }
}

fn refused(_: &Contig) -> Result<Vec<(Extent, Node)>, OsError> {
    Err(OsError::new("move_pages", "a test", std::io::ErrorKind::PermissionDenied.into()))
}

#[test]
fn nodes_that_make_no_difference_cost_no_slots() {
    let slots = |teller, room| {
        let reserve = reserve(None, teller, room);
        let slots = reserve.inner.get().unwrap().busy.near.slots();
        (slots, reserve)
    };
    assert_eq!(slots(two_nodes(by_length), Bytes::ZERO).0, 0, "all is on one node, and stays so");
    let one_node = NodeTeller { machine: || vec![Node(0)], ..two_nodes(by_length) };
    assert_eq!(slots(one_node, len() + len()).0, 0);
    assert_eq!(slots(two_nodes(by_length), len() + len()).0, 2);
    for room in [Bytes::ZERO, len() + len()] {
        let (_, reserve) = slots(two_nodes(refused), room);
        go_to(1);
        let blocks: Vec<Block> =
            (0..reserve.len().get()).map(|_| reserve.alloc(Pages::new(1)).unwrap()).collect();
        assert_eq!(reserve.stats().free, Pages::ZERO, "{} blocks", blocks.len());
        assert!(reserve.nodes().is_err());
    }
}

/// Returns the nodes that have memory and a processor that this thread may use.
fn usable_nodes() -> Vec<Node> {
    let may_run = |node: &Node| OneProcessor::among(&numa::processors(*node)).is_some();
    let is_told = |node: &Node| {
        let _stays = OneProcessor::among(&numa::processors(*node));
        numa::here() == Some(*node)
    };
    numa::with_memory().into_iter().filter(may_run).filter(is_told).collect()
}

#[test]
fn the_kernel_says_that_blocks_are_on_the_callers_node() {
    let [first, second, ..] = usable_nodes()[..] else {
        return println!("skipped: the machine has no two nodes with memory and processors");
    };
    let stay = |node| OneProcessor::among(&numa::processors(node)).unwrap();
    // The calling thread populates, so the kernel takes pages of its node.
    let memory = Contig::options().source(Source::Plain).nodes([first, second]).threads(1);
    let on_first = stay(first);
    let reserve = Reserve::options().memory(memory).room(len() + len()).build(len()).unwrap();
    drop(on_first);
    let on_second = stay(second);
    reserve.grow(len()).unwrap();
    drop(on_second);
    let nodes = match reserve.nodes() {
        Ok(nodes) => nodes,
        Err(error) => return println!("skipped: {error}"),
    };
    let pages = len().pages_down(page_size()).get();
    let of = |start, node| (Extent::new(start, pages).unwrap(), node);
    if nodes != [of(0, first), of(pages, second)] {
        return println!("skipped: a node is full: {nodes:?}");
    }
    let mut held = Vec::new();
    for nth in 0..200 {
        let node = [second, first][nth % 2];
        let _stays = stay(node);
        let request = match nth / 2 % 3 {
            0 => Request::new(Pages::new(1)),
            1 => Request::new(Pages::new(5)).any(),
            _ => Request::new(Pages::new(2)).any().zeroed(),
        };
        let mut block = reserve.alloc(request).unwrap();
        for page in block.bytes_mut().unwrap().chunks_mut(page_size().bytes().as_usize()) {
            page[0] = 1;
            assert_eq!(numa::node_at(page.as_ptr().addr()), Some(node), "{request:?}");
        }
        held.push(block);
    }
    let _stays = stay(second);
    let mut near = 0;
    while let Ok(block) = reserve.alloc(Pages::new(1)) {
        let is_near = block.extent().start() >= pages;
        let granule = (pages * page_size().bytes().get() / (2 << 20)) as usize;
        let is_full = || reserve.usage()[granule..].iter().all(|of| of.free == Pages::ZERO);
        assert!(is_near || is_full(), "{second} has free pages");
        near += u64::from(is_near);
        held.push(block);
    }
    println!("{near} further pages of {second}, then those of {first}");
    assert_eq!(reserve.stats().free, Pages::ZERO);
}
