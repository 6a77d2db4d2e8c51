//! Tests that a forked child's inherited handles refuse calls, and that the child changes nothing
//! for the parent.
//!
//! Each test runs in its own process, where only the forking thread uses the library.

use glebe::contig::{Contig, Source};
use glebe::internal::with_writers;
use glebe::page_size;
use glebe::reserve::served::{self, Form};
use glebe::reserve::{
    Block, Contiguity, LentObjectPool, LentObjectPoolStats, Namespace, Promise, Put, Request,
    Reserve, ReserveError, Stats, Writers,
};
use glebe::units::{Bytes, Pages};
use glebe::zpool::{self, Budget, Codec, Handle};
use glebe_testing::Scratch;

use glebe_testing::stressed::{in_child, ChildEnd};
use glebe_testing::turn::{Turn, POOL};

const ONE: Pages = Pages::new(1);
const LEN: Bytes = Bytes::mib(4);

fn refused<T>(result: Result<T, ReserveError>) -> bool {
    matches!(result, Err(ReserveError::Forked))
}

fn no_objects<T>(result: Result<T, zpool::Error>) -> bool {
    matches!(result, Err(zpool::Error::Forked))
}

struct Handles {
    reserve: Reserve,
    pool: Namespace,
    block: Block,
    promise: Promise,
    objects: LentObjectPool,
    object: Handle,
}

impl Handles {
    fn of(contig: Contig, writers: Option<Writers>) -> Self {
        let builder = Reserve::options();
        let builder = match writers {
            Some(writers) => with_writers(builder, writers),
            None => builder,
        };
        let reserve = builder.build_on(contig).expect("whole granules");
        let pool = reserve.page_cache().namespace("parent").unwrap();
        let mut block = reserve.alloc(Request::new(Pages::new(600)).any()).unwrap();
        block.bytes_mut().unwrap().fill(0xa5);
        let promise = reserve.promise(ONE).unwrap();
        assert_eq!(pool.put(1, 1, &page(7)).unwrap(), Put::Stored);
        // Inserts more objects than the staging area holds, so some are on lent pages.
        let objects = reserve.object_pool().staging(Bytes::new(1)).codec(Codec::None);
        let objects = objects.build().unwrap();
        let handles: Vec<Handle> = (0..300).map(|_| objects.insert(&[9; 1500]).unwrap()).collect();
        Self { reserve, pool, block, promise, objects, object: handles[0] }
    }

    fn number_not_refused(self) -> u8 {
        let Self { reserve, pool, mut block, promise, objects, object } = self;
        let mut buf = page(0);
        let again = reserve.clone();
        let calls = [
            refused(reserve.alloc(ONE)),
            refused(reserve.try_alloc(ONE)),
            refused(reserve.alloc(Request::new(ONE).any().zeroed())),
            refused(reserve.promise(ONE)),
            refused(again.largest_run()),
            refused(reserve.page_cache().namespace("parent")),
            refused(reserve.page_cache().namespace("child")),
            refused(pool.put(1, 1, &page(8))),
            refused(pool.get(1, 1, &mut buf)),
            refused(pool.invalidate_page(1, 1)),
            refused(pool.invalidate_object(1)),
            refused(pool.invalidate_all()),
            refused(block.bytes().map(|_| ())),
            refused(block.bytes_mut().map(|_| ())),
            no_objects(objects.insert(&[1])),
            no_objects(objects.read(object, &mut buf)),
            no_objects(objects.len_of(object)),
            no_objects(objects.replace(object, &[1])),
            no_objects(objects.remove(object)),
            no_objects(objects.compact(Budget::All)),
            no_objects(objects.sweep(1)),
            no_objects(reserve.object_pool().build()),
            objects.stats() == LentObjectPoolStats::default(),
            block.contiguity() == Contiguity::VirtualOnly,
            refused(promise.take()),
            reserve.stats() == Stats::default() && reserve.usage().is_empty(),
            reserve.len().bytes(page_size()) == LEN && reserve.contig().len() == LEN,
        ];
        drop((block, pool, reserve, again, objects));
        calls.iter().position(|refused| !refused).map_or(0, |at| at as u8 + 1)
    }

    fn assert_whole(self) {
        assert!(self.block.bytes().unwrap().iter().all(|byte| *byte == 0xa5));
        let mut buf = page(0);
        assert!(self.pool.get(1, 1, &mut buf).unwrap());
        assert_eq!(buf, page(7));
        let stats = self.reserve.stats();
        assert!(stats.live > ONE && stats.held == self.block.pages(), "{stats}");
        assert_eq!(self.objects.read(self.object, &mut buf).unwrap(), Some(1500));
        assert!(buf[..1500] == [9; 1500]);
        self.objects.stats().check().unwrap();
        drop(self.objects);
        assert_eq!(self.reserve.stats().live, ONE);
        stats.check().unwrap();
        let taken = self.promise.take().unwrap();
        assert!(!taken.extent().overlaps(self.block.extent()));
        drop((taken, self.block));
        let all = self.reserve.len();
        assert_eq!(self.reserve.alloc(Request::new(all).any()).unwrap().pages(), all);
    }
}

fn page(fill: u8) -> Vec<u8> {
    vec![fill; page_size().bytes().as_usize()]
}

fn plain() -> Contig {
    Contig::options().source(Source::Plain).build(LEN).expect("ordinary memory")
}

#[test]
fn a_child_is_refused_everything_and_drops_nothing_of_its_parents() {
    glebe_testing::alone!();
    for writers in [None, Some(Writers::Counted)] {
        let mut inherited = Some(Handles::of(plain(), writers));
        assert_eq!(
            in_child(|| inherited.take().unwrap().number_not_refused()),
            ChildEnd::Exit(0),
            "{writers:?}"
        );
        inherited.take().unwrap().assert_whole();
    }
}

#[test]
fn a_child_makes_a_reserve_of_its_own() {
    glebe_testing::alone!();
    let parents = Handles::of(plain(), None);
    let own = || {
        let handles = Handles::of(plain(), None);
        let of_own = in_child(|| 0) == ChildEnd::Exit(0) && refused(parents.reserve.largest_run());
        handles.assert_whole();
        u8::from(!of_own)
    };
    assert_eq!(in_child(own), ChildEnd::Exit(0));
    parents.assert_whole();
}

#[test]
fn a_child_leaves_the_socket_of_its_parents_statistics_alone_and_has_its_own() {
    glebe_testing::alone!();
    let scratch = Scratch::new("fork");
    let dir = scratch.path();
    let answers = || {
        let found = served::list(dir).unwrap();
        found.iter().filter(|one| one.read(Form::Json).unwrap().is_some()).count()
    };
    let reserve = Reserve::options().build_on(plain()).unwrap();
    reserve.serve_stats_in(dir).unwrap();
    let mut inherited = Some(reserve);
    let in_child = in_child(|| {
        let inherited = inherited.take().unwrap();
        let refused = refused(inherited.serve_stats_in(dir).map(|_| ()));
        drop(inherited);
        let own = Reserve::options().build_on(plain()).unwrap();
        own.serve_stats_in(dir).unwrap();
        let both = answers() == 2;
        std::mem::forget(own); // a process that exits at once leaves the socket
        u8::from(!refused || !both)
    });
    let (left, live) = (served::list(dir).unwrap().len(), answers());
    drop(inherited);
    let live_at_end = answers();
    assert_eq!((in_child, left, live, live_at_end), (ChildEnd::Exit(0), 2, 1, 0));
}

fn pool_pages() -> Option<u64> {
    let text = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
    text.ok()?.trim().parse().ok()
}

#[test]
fn a_child_leaves_the_huge_pages_and_their_pool_to_its_parent() {
    glebe_testing::alone!();
    let _turn = Turn::shared(POOL);
    let contig = match Contig::options().source(Source::HUGETLB_2M).build(LEN) {
        Ok(contig) => contig,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    let mut inherited = Some(Handles::of(contig, None));
    assert_eq!(in_child(|| inherited.take().unwrap().number_not_refused()), ChildEnd::Exit(0));
    // Other processes may use the pool, but cannot shrink it below the pages mapped here.
    let pages = LEN.get() / Bytes::mib(2).get();
    assert!(pool_pages().is_some_and(|all| all >= pages), "{:?} pages", pool_pages());
    inherited.take().unwrap().assert_whole();
}

#[test]
fn what_may_grow_and_shrink_stays_with_the_parent() {
    glebe_testing::alone!();
    let options = Contig::options().source(Source::Plain);
    let reserve = Reserve::options().room(LEN + LEN).memory(options).build(LEN).unwrap();
    reserve.grow(LEN).unwrap();
    reserve.shrink(LEN).unwrap();
    let code = in_child(|| {
        let all = [
            refused(reserve.grow(LEN)),
            refused(reserve.shrink(LEN)),
            refused(reserve.certificate()),
            refused(reserve.nodes()),
            refused(reserve.verify()),
            refused(reserve.locate(Bytes::ZERO)),
            reserve.len().bytes(page_size()) == LEN,
        ];
        drop(reserve.clone());
        all.iter().position(|is| !is).map_or(0, |at| at as u8 + 1)
    });
    assert_eq!(code, ChildEnd::Exit(0));
    let block = reserve.alloc(Request::new(reserve.len()).any()).unwrap();
    reserve.grow(LEN).unwrap();
    drop(block);
    reserve.stats().check().unwrap();
}
