//! Tests on this machine's memory.

use std::time::Duration;

use super::*;
use glebe_os::internal::sync::{MappedWord, Ordering};
use glebe_os::internal::sys::machine::hugetlb::Pool;
use glebe_os::internal::sys::memory::pagemap::frames_visible;

fn privileged() -> bool {
    let can = frames_visible()
        && Pool::of(PageSize::new(2 << 20).unwrap()).is_some_and(|pool| pool.is_writable());
    if !can {
        println!("skipped: frames are hidden or the 2 MiB pool cannot be changed");
    }
    can
}

#[test]
fn nothing_and_too_much_are_errors() {
    assert!(matches!(Contig::options().build(Bytes::ZERO), Err(Error::ZeroLength)));
    for len in [u64::MAX, 1 << 63, (1 << 63) - 1, 1 << 50] {
        for source in [Source::HUGETLB_2M, Source::Thp, Source::Plain] {
            let error = Contig::options().source(source).build(Bytes::new(len)).unwrap_err();
            let told = matches!(
                error,
                Error::TooLarge { .. } | Error::PoolShort { .. } | Error::CgroupLimit { .. }
            );
            let told = told || source == Source::Thp && error.to_string().contains("[never]");
            assert!(told, "{len:#x} {source}: {error}");
        }
        let error = Contig::options().build(Bytes::new(len)).unwrap_err();
        assert!(matches!(error, Error::TooLarge { .. } | Error::CgroupLimit { .. }), "{error}");
    }
}

#[test]
fn a_size_that_no_machine_has_is_named() {
    let size = PageSize::new(1 << 40).unwrap();
    let error = Contig::options().source(Source::Hugetlb(size)).build(Bytes::new(1)).unwrap_err();
    assert!(matches!(error, Error::NoSuchSize { .. }), "{error}");
}

#[test]
fn plain_memory_is_populated_and_claims_no_more_than_it_shows() {
    let memory =
        Contig::options().source(Source::Plain).pin(false).build(Bytes::new(100_001)).unwrap();
    assert_eq!(memory.len().get() % page_size().bytes().get(), 0);
    assert!(memory.len().get() >= 100_001 && memory.held_by() == HeldBy::Nothing);
    memory.mapping().write(Bytes::new(100_000), &[9]);
    let covered: u64 = memory.runs().iter().map(|run| run.pages.len()).sum();
    match memory.proof() {
        Proof::Frames => assert_eq!(covered, memory.len().pages_up(page_size()).get()),
        Proof::Within(pages) => assert_eq!((pages.get(), covered), (1, 0)),
    }
}

#[test]
fn a_run_that_cannot_be_had_is_an_error_with_the_longest() {
    let (len, wanted) = (Bytes::mib(1), Bytes::gib(1 << 10));
    let error = Contig::options().source(Source::Plain).require_run(wanted).build(len).unwrap_err();
    let Error::NotContiguous { wanted: told, longest, .. } = error else { panic!("{error}") };
    assert_eq!(told, wanted);
    assert!(longest >= page_size().bytes() && longest <= len);
    let memory = Contig::options().source(Source::Plain).prefer_run(wanted).build(len).unwrap();
    assert_eq!(memory.why_not_better().len(), 1);
}

#[test]
fn ordered_pages_are_as_few_runs_as_the_pool_allows() {
    if !privileged() {
        return;
    }
    let ascends = |_| {
        let memory = match Contig::options().source(Source::HUGETLB_2M).build(Bytes::mib(64)) {
            Ok(memory) => memory,
            Err(error @ Error::PoolShort { .. }) => {
                println!("disturbed: {error}");
                return false;
            }
            Err(error) => panic!("{error}"),
        };
        assert!(memory.held_by() == HeldBy::HugetlbPool);
        assert_eq!((memory.proof(), memory.verify().unwrap()), (Proof::Frames, vec![]));
        memory.runs().is_sorted_by_key(|run| run.pfn)
    };
    assert!((0..10).any(ascends), "never in the order of frames");
}

fn longest_free() -> Option<Bytes> {
    let block = Bytes::mib(2).pages_down(page_size());
    let uses = glebe_os::internal::sys::machine::kpage::uses(block).ok()?;
    let is_free = |of| of == glebe_os::internal::sys::machine::kpage::Use::Free;
    let runs = glebe_os::internal::sys::machine::kpage::runs(&uses, block, is_free);
    Some(runs.iter().map(|(_, len)| len.bytes(page_size())).max().unwrap_or_default())
}

#[test]
fn a_run_that_is_free_is_had() {
    if !privileged() {
        return;
    }
    if std::path::Path::new("/sys/devices/system/node/node1").exists() {
        // The kernel grows the pool on every node in turn, and the search may miss the run.
        return println!("skipped: on several nodes a search may miss a run that is free");
    }
    let len = Bytes::mib(64);
    // An emulated machine needs far longer than the usual limit.
    let options =
        || Contig::options().source(Source::HUGETLB_2M).search_time(Duration::from_secs(60));
    let mut refused = None;
    for _ in 0..4 {
        match longest_free() {
            Some(free) if free >= Bytes::new(2 * len.get()) => {}
            free => return println!("skipped: the longest free run is {free:?}"),
        }
        match options().require_run(len).build(len) {
            Ok(memory) => {
                assert_eq!(
                    (memory.longest_run().bytes(page_size()), memory.runs().len()),
                    (len, 1)
                );
                return assert!(memory.verify().unwrap().is_empty());
            }
            Err(error @ Error::NotContiguous { .. }) => refused = Some(error),
            Err(error) => panic!("{error}"),
        }
    }
    let refused = refused.unwrap();
    let Error::NotContiguous { ref tried, .. } = refused else { panic!("{refused}") };
    assert!(tried.is_some(), "{refused}");
    panic!("never had: {refused}");
}

#[test]
fn a_search_ends_with_its_time_and_says_what_it_tried() {
    if !privileged() {
        return;
    }
    let options = || Contig::options().source(Source::HUGETLB_2M).search_time(Duration::ZERO);
    match options().require_run(Bytes::mib(64)).build(Bytes::mib(64)) {
        Ok(memory) => println!("the first pages were one run: {:?}", memory.runs()),
        Err(error) => {
            let text = error.to_string();
            let ended = text.contains("ended by its limit of");
            assert!(ended || text.contains("to be had in"), "{text}");
        }
    }
}

#[test]
fn a_run_that_cannot_be_had_in_its_time_costs_no_more_than_a_slice_of_zeroing() {
    let slices = Arc::new(MappedWord::new(0));
    let told = Arc::clone(&slices);
    let options = Contig::options().require_run(Bytes::gib(1 << 10)).search_time(Duration::ZERO);
    // Progress below 64 MiB does not count, because `build` first populates idle pages that other
    // tests left.
    let options = options.progress(move |progress| {
        told.fetch_add(u64::from(progress.done >= Bytes::mib(64)), Ordering::Relaxed);
    });
    match options.build(Bytes::mib(256)) {
        Err(Error::NotContiguous { wanted, .. }) => assert_eq!(wanted, Bytes::gib(1 << 10)),
        other => panic!("{other:?}"),
    }
    let slices = slices.load(Ordering::Relaxed);
    assert!(slices <= 1, "{slices} slices of 64 MiB, of one source after the other");
}

#[test]
fn pools_below_a_large_transparent_huge_page_are_used_and_lengths_not_rounded_up_to_one() {
    let size = |bytes: Bytes| PageSize::new(bytes.get()).unwrap();
    let sizes = |all: &[Bytes]| all.iter().map(|bytes| size(*bytes)).collect::<Vec<_>>();
    let (kib64, mib) = (Bytes::new(64 << 10), Bytes::mib);
    let four = sizes(&[Bytes::gib(1), mib(2)]);
    assert_eq!(large(four.clone(), Some(size(mib(2)))), four);
    let all = sizes(&[Bytes::gib(1), mib(32), mib(2), kib64]);
    assert_eq!(large(all.clone(), Some(size(mib(32)))), all[..3]);
    let all = sizes(&[Bytes::gib(16), mib(512), mib(2)]);
    assert_eq!(large(all.clone(), Some(size(mib(512)))), all);
    let small = sizes(&[Bytes::gib(2), mib(1), kib64]);
    assert_eq!(large(small.clone(), Some(size(mib(1)))), small[..2]);
    assert_eq!(large(small.clone(), None), small[..1]);

    assert_eq!(rounds_to(Source::Thp, size(mib(2))), size(mib(2)));
    assert_eq!(rounds_to(Source::Thp, size(mib(32))), page_size(), "34 MiB do not become 64");
    assert_eq!(rounds_to(Source::HUGETLB_1G, size(Bytes::gib(1))), size(Bytes::gib(1)));
}

fn faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    // The first field after the name is field 3 of proc(5).
    let field = stat.rsplit_once(") ").unwrap().1.split(' ').nth(10 - 3).unwrap();
    field.parse().unwrap()
}

#[test]
fn order_costs_no_second_zeroing() {
    if !privileged() {
        return;
    }
    const PAGES: u64 = 64;
    // The test grows the pool, because `build` would also split larger pages.
    let (lock, pool) =
        (PoolLock::acquire().unwrap(), Pool::of(PageSize::new(2 << 20).unwrap()).unwrap());
    let measured = lock.with_pages(&pool, 2 * PAGES, |came| {
        match came {
            came if came < 2 * PAGES => println!("skipped: {came} pages could be had"),
            _ => costs_no_second_zeroing(PAGES),
        }
        Ok::<_, OsError>(())
    });
    measured.unwrap();
}

fn costs_no_second_zeroing(pages: u64) {
    let len = Bytes::mib(2 * pages);
    let standing = || Contig::options().source(Source::HUGETLB_2M).grow_pool(false).threads(1);
    let cost = |options: Options| {
        let before = faults();
        match options.build(len) {
            Ok(memory) => {
                assert!(memory.verify().unwrap().is_empty());
                Some(faults() - before)
            }
            Err(error) => {
                println!("skipped: {error}");
                None
            }
        }
    };
    // A search looks at a quarter more.
    let least = |options: &dyn Fn() -> Options| (0..16).filter_map(|_| cost(options())).min();
    let Some(order) = least(&standing) else { return };
    if order == 0 {
        return println!("skipped: this kernel does not count faults of pages populated by a call");
    }
    assert!((pages..pages + pages / 2).contains(&order), "{order}");
    let Some(run) = least(&|| standing().prefer_run(Bytes::mib(2))) else { return };
    assert!((pages..2 * pages).contains(&run), "{run}");
}

const CHILD: &str = "GLEBE_TEST_CHILD";

#[test]
fn nobody_may_use_pages_that_are_free_in_the_pool() {
    use std::os::unix::process::CommandExt;
    if std::env::var_os(CHILD).is_some() {
        match Contig::options().source(Source::HUGETLB_2M).build(Bytes::mib(8)) {
            Ok(memory) => {
                let grain = Bytes::mib(2).pages_up(page_size());
                assert_eq!((memory.runs().len(), memory.proof()), (4, Proof::Within(grain)));
                assert_eq!(memory.longest_run(), grain);
                assert!(memory.held_by() != HeldBy::Nothing && memory.verify().unwrap().is_empty());
            }
            Err(error @ Error::PoolShort { .. }) => println!("skipped: {error}"),
            Err(error) => panic!("{error}"),
        }
        return;
    }
    if !privileged() || glebe_os::internal::sys::processes::process::effective_user() != 0 {
        println!("skipped: only root can become nobody");
        return;
    }
    let pool = Pool::of(PageSize::new(2 << 20).unwrap()).unwrap();
    // Holds the lock, so that no other test takes the child's pages.
    let status = PoolLock::acquire().unwrap().with_pages(&pool, 4, |_| {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let test = "tests::nobody_may_use_pages_that_are_free_in_the_pool";
        let child = child.args(["--exact", test, "--nocapture"]).env(CHILD, "1").uid(65534);
        Ok::<_, OsError>(child.output())
    });
    match status.unwrap() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("1 passed"), "{said}");
        }
        Err(error) => println!("skipped: nobody cannot run this program: {error}"),
    }
}

/// Root's lock is refused here, because any user may write its directory.
#[test]
fn idle_pages_are_had_though_the_lock_cannot_be() {
    use std::os::unix::fs::PermissionsExt;
    if !privileged() {
        return;
    }
    let root = std::env::temp_dir().join(format!("glebe-no-lock-{}", std::process::id()));
    std::fs::create_dir_all(&root).unwrap();
    std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o777)).unwrap();
    let place = pool::Place { locks: vec![root.join("lock")], ..pool::Place::default() };
    let map = |options: Options, pages: u64| {
        let options = Options { place: place.clone(), ..options };
        options.source(Source::HUGETLB_2M).build(Bytes::mib(2 * pages))
    };
    let pool = Pool::of(PageSize::new(2 << 20).unwrap()).unwrap();
    let lock = PoolLock::acquire().unwrap();
    let had = lock.with_pages(&pool, 8, |came| {
        if came < 8 {
            println!("skipped: {came} pages could be had");
            return Ok(());
        }
        for options in [Contig::options(), Contig::options().mappable()] {
            match map(options, 4) {
                Ok(memory) => assert_eq!(memory.len(), Bytes::mib(8)),
                Err(error @ (Error::PoolShort { .. } | Error::Os(_))) => println!("{error}"),
                Err(error) => panic!("{error}"),
            }
        }
        let more = pool.counts()?.available() + 64;
        let error = map(Contig::options(), more).unwrap_err().to_string();
        assert!(error.contains("mode 40777") || error.contains("available"), "{error}");
        Ok::<_, OsError>(())
    });
    drop(lock);
    std::fs::remove_dir_all(&root).unwrap();
    had.unwrap();
}

#[test]
fn physical_memory_shows_pages_of_the_pool() {
    use glebe_os::internal::sys::machine::kpage::{runs, uses, Use};
    if !privileged() {
        return;
    }
    let size = PageSize::new(2 << 20).unwrap();
    let block = size.bytes().pages_down(page_size());
    let memory = match Contig::options().source(Source::HUGETLB_2M).build(Bytes::mib(8)) {
        Ok(memory) => memory,
        Err(error) => {
            println!("skipped: {error}");
            return;
        }
    };
    let shown = uses(block).unwrap();
    for run in memory.runs() {
        let first = run.pfn.unwrap().get() / block.get();
        for at in first..first + run.pages.len() / block.get() {
            assert_eq!(shown[at as usize], Use::PoolInUse);
        }
        let whole = |(pfn, len): &(Pfn, Pages)| {
            *pfn <= run.pfn.unwrap()
                && run.pfn.unwrap().plus(memory.longest_run()) <= pfn.plus(*len)
        };
        assert!(
            run.pages.len() < memory.longest_run().get()
                || runs(&shown, block, Use::is_pool).iter().any(whole)
        );
    }
    let lock = PoolLock::acquire().unwrap();
    let pool = Pool::of(size).unwrap();
    let mut seen = Vec::new();
    let shows = |_| {
        let look = |grown| {
            let idle = uses(block)?.iter().filter(|of| **of == Use::PoolIdle).count() as u64;
            Ok::<_, OsError>((idle, grown))
        };
        let (idle, grown) = lock.with_pages(&pool, 4, look).unwrap();
        seen.push((idle, grown));
        idle >= grown
    };
    assert!((0..20).any(shows), "{seen:?}");
}
