//! [`run`] executes bytes as calls on a pool on lent pages. Each read must return the bytes that a
//! map remembers, unless the object is lost.
//!
//! The first bytes choose the pool's options; each call takes a few more. Bytes beyond the end read
//! as zero.

use std::collections::HashMap;

use glebe::contig::{Contig, Source};
use glebe::page_size;
use glebe::reserve::{Block, LentObjectPool, OnRecall, Request, Reserve};
use glebe::units::{Bytes, Pages};
use glebe::zpool::{Budget, Codec, Error, Handle, Zstd};

#[allow(clippy::duplicate_mod)] // a fuzz target includes only this file
#[path = "../../../glebe-zpool/tests/zpool_oracle/calls.rs"]
mod calls;

use calls::{object, Program};

/// Two granules.
const LEN: Bytes = Bytes::mib(4);

struct Both {
    reserve: Reserve,
    pool: LentObjectPool,
    map: HashMap<Handle, Vec<u8>>,
    order: Vec<Handle>,
    blocks: Vec<(Block, u8)>,
    seed: u64,
    buf: Vec<u8>,
}

impl Both {
    fn new(program: &mut Program) -> Self {
        let memory = Contig::options().source(Source::Plain).build(LEN).expect("memory");
        let reserve = Reserve::options().build_on(memory).expect("a reserve");
        let codec = [Codec::None, Codec::Lz4, Codec::Zstd(Zstd::default())];
        let on_recall = [OnRecall::Discard, OnRecall::Move][program.below(2)];
        let options = reserve.object_pool().staging(Bytes::new(1)).on_recall(on_recall);
        let pool = options.codec(codec[program.below(3)].clone()).build().expect("a pool");
        let buf = vec![0; page_size().bytes().as_usize()];
        let (map, order, blocks) = (HashMap::new(), Vec::new(), Vec::new());
        Self { reserve, pool, map, order, blocks, seed: 0, buf }
    }

    fn one(&self, program: &mut Program) -> Option<Handle> {
        let at = program.below(self.order.len());
        self.order.get(at).copied()
    }

    fn fresh(&mut self, len: usize) -> Vec<u8> {
        self.seed += 1;
        object(self.seed as u8, self.seed, len)
    }

    fn insert(&mut self, many: usize, len: usize) {
        for _ in 0..many {
            let bytes = self.fresh(len);
            match self.pool.insert(&bytes) {
                Ok(handle) => {
                    assert!(self.map.insert(handle, bytes).is_none(), "a handle twice");
                    self.order.push(handle);
                }
                Err(Error::Full { .. }) => assert!(!self.blocks.is_empty(), "nothing is held"),
                Err(other) => panic!("{other}"),
            }
        }
    }

    fn read(&mut self, handle: Handle) {
        match self.pool.read(handle, &mut self.buf) {
            Ok(Some(len)) => assert!(self.buf[..len] == self.map[&handle], "other bytes"),
            Ok(None) => {
                assert!(matches!(self.pool.read(handle, &mut self.buf), Err(Error::Stale)));
            }
            Err(Error::Stale) => {}
            Err(other) => panic!("{other}"),
        }
    }

    fn step(&mut self, program: &mut Program) {
        let page = self.buf.len();
        match program.next() % 12 {
            0..=3 => {
                let (many, len) = (1 + program.below(64), 1 + program.below(page));
                self.insert(many, len);
            }
            4 | 5 => {
                if let Some(handle) = self.one(program) {
                    self.read(handle);
                }
            }
            6 => {
                if let Some(handle) = self.one(program) {
                    self.order.retain(|other| *other != handle);
                    self.map.remove(&handle);
                    let removed = self.pool.remove(handle);
                    assert!(matches!(removed, Ok(()) | Err(Error::Stale)), "{removed:?}");
                    let again = self.pool.read(handle, &mut self.buf);
                    assert!(matches!(again, Err(Error::Stale)));
                }
            }
            7 => {
                let len = 1 + program.below(page);
                let Some(handle) = self.one(program) else { return };
                let bytes = self.fresh(len);
                match self.pool.replace(handle, &bytes) {
                    Ok(()) => drop(self.map.insert(handle, bytes)),
                    Err(Error::Full { .. }) => assert!(!self.blocks.is_empty()),
                    Err(Error::Stale) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            8 => {
                let pages = Pages::new(1 + program.below(1023) as u64);
                if let Ok(mut block) = self.reserve.alloc(Request::new(pages).any()) {
                    let fill = program.next();
                    block.bytes_mut().expect("not forked").fill(fill);
                    self.blocks.push((block, fill));
                }
            }
            9 => {
                let at = program.below(self.blocks.len());
                if at < self.blocks.len() {
                    let (block, fill) = self.blocks.swap_remove(at);
                    let bytes = block.bytes().expect("not forked");
                    assert!(bytes.iter().all(|byte| *byte == fill), "a block was written");
                }
            }
            10 => drop(self.pool.compact(Budget::All).expect("a budget")),
            _ => self.pool.sweep(program.next().into()).expect("not forked"),
        }
    }
}

/// Runs a program.
///
/// # Panics
/// If the pool returns wrong bytes, a block changes, or statistics are inconsistent.
pub fn run(bytes: &[u8]) {
    let mut program = Program(bytes);
    let mut both = Both::new(&mut program);
    while !program.0.is_empty() {
        both.step(&mut program);
        both.pool.stats().check().expect("the pool's identities");
        both.reserve.stats().check().expect("the reserve's identities");
    }
    for handle in both.order.clone() {
        both.read(handle);
    }
    both.blocks.clear();
    drop(both.pool);
    assert_eq!(both.reserve.stats().live, Pages::ZERO);
}
