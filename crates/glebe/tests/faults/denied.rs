//! Tests a sandbox: a file that the library opens by path is missing or inaccessible. The library
//! still makes a reserve, a volatile region and a reclaimer. A source of memory that needs the file
//! may return an error.
//!
//! Each run of a test body is in a forked child, so that earlier runs do not affect it.
//!
//! # Safety
//! fork, waitpid and _exit are called in a process that runs one test.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::PathBuf;
use std::time::Duration;

use glebe::contig::{Contig, Options, Source};
use glebe::internal::sys::fault::{deny, record_paths, recorded_paths};
use glebe::reclaim::{Policy, Reclaimer};
use glebe::reserve::{Request, Reserve};
use glebe::units::{Bytes, Pages};
use glebe::volatile::{Priority, Region};
use glebe_testing::alone;

use super::{hugetlb, Outcome};

const LEN: Bytes = Bytes::mib(4);
const SEARCH: Duration = Duration::from_millis(50);

fn in_child(body: impl FnOnce() -> String) -> String {
    let (mut from_child, mut to_parent) = UnixStream::pair().expect("two sockets");
    // SAFETY: the test runs alone, so no other thread is in the library or the allocator.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork");
    if pid == 0 {
        let said = catch_unwind(AssertUnwindSafe(body));
        let is_said = said.is_ok_and(|said| to_parent.write_all(said.as_bytes()).is_ok());
        // SAFETY: ends the child without running destructors of the parent's values.
        unsafe { libc::_exit(i32::from(!is_said)) };
    }
    drop(to_parent);
    let (mut said, mut status) = (String::new(), 0);
    from_child.read_to_string(&mut said).expect("text");
    // SAFETY: writes to a local.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(status, 0, "the child panicked");
    said
}

fn paths_of(life: &dyn Fn() -> Outcome) -> BTreeSet<PathBuf> {
    let paths = in_child(|| {
        record_paths();
        life().expect("nothing is denied");
        let paths: Vec<_> =
            recorded_paths().iter().map(|path| path.display().to_string()).collect();
        paths.join("\n")
    });
    paths.lines().map(PathBuf::from).collect()
}

/// Runs `life` again for each file that it opens, and denies that file. With `may_fail`, a run may
/// return an error that names the file or says that hugetlb pages are lacking.
fn deny_each(name: &str, may_fail: bool, life: &dyn Fn() -> Outcome) -> BTreeSet<PathBuf> {
    let paths = paths_of(life);
    let mut refusals = 0;
    for path in &paths {
        for errno in [libc::ENOENT, libc::EACCES] {
            let said = in_child(|| {
                deny(path, errno);
                life().err().map_or(String::new(), |error| error.to_string())
            });
            let is_named = said.contains(&*path.to_string_lossy());
            let names = is_named || said.contains("no hugetlb pages of");
            let is_right = said.is_empty() || may_fail && names;
            assert!(is_right, "{name}, {} is {errno}: {said}", path.display());
            refusals += u32::from(!said.is_empty());
        }
    }
    println!("{name}: {} files, {refusals} refusals", paths.len());
    paths
}

fn reserve(options: Options) -> Outcome {
    let reserve = Reserve::options().memory(options).build(LEN)?;
    let pool = reserve.page_cache().namespace("denied")?;
    pool.put(1, 1, &vec![7; glebe::page_size().bytes().as_usize()])?;
    drop(reserve.alloc(Request::new(Pages::new(3)).any().zeroed())?);
    drop(reserve.certificate()?);
    Ok(())
}

fn searching() -> Options {
    Contig::options().search_time(SEARCH)
}

#[test]
fn a_reserve_is_had_without_each_file_that_it_opens() {
    alone!();
    let _pool = hugetlb::lock();
    let paths = deny_each("reserve", false, &|| reserve(searching()));
    let opened = |path: &str| paths.contains(&PathBuf::from(path));
    assert!(opened("/proc/meminfo") && opened("/proc/self/pagemap"), "{paths:?}");
    let plain = || reserve(Contig::options().source(Source::Plain));
    deny_each("base pages", false, &plain);
}

#[test]
fn a_source_that_needs_a_file_names_it() {
    alone!();
    let _pool = hugetlb::lock();
    for source in [Source::HUGETLB_2M, Source::Thp] {
        let life = || {
            drop(searching().source(source).build(LEN)?);
            Ok(())
        };
        match life() {
            Ok(()) => drop(deny_each(&source.to_string(), true, &life)),
            Err(why) => println!("skipped: {why}"),
        }
    }
}

#[test]
fn a_volatile_region_is_had_without_each_file_that_it_opens() {
    alone!();
    deny_each("volatile region", false, &|| {
        let region = Region::new(Bytes::mib(1))?;
        region.write(Bytes::ZERO, &[7; 100])?;
        region.mark(Bytes::ZERO..region.len(), Priority::NORMAL)?;
        drop(region.unmark(Bytes::ZERO..region.len())?);
        Ok(())
    });
}

#[test]
fn a_reclaimer_is_had_without_each_file_that_it_opens() {
    alone!();
    let paths = deny_each("reclaimer", false, &|| {
        let reclaimer = Reclaimer::new(Policy::default())?;
        reclaimer.add(&std::sync::Arc::new(Region::new(Bytes::mib(1))?))?;
        reclaimer.poll()?;
        Ok(())
    });
    assert!(paths.contains(&PathBuf::from("/proc/meminfo")), "{paths:?}");
}
