//! Tests that a low limit of a memory cgroup causes an error and no kill.
//!
//! The test runs itself as a child in a new group. The child runs the test as the user nobody,
//! because root could grow a pool of huge pages, which the group does not count.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use glebe::contig::{Contig, Error, Source};
use glebe::internal::sys::processes::process::effective_user;
use glebe::reserve::{self, Request, Reserve};
use glebe::units::Bytes;
use glebe_testing::process::child_of;
use glebe_testing::Scratch;

use glebe_testing::cgroup::{enter, Group};

const LIMIT: Bytes = Bytes::mib(300);
const GROUP: &str = "GLEBE_TEST_CGROUP";
const TEST: &str = "contig_cgroup::a_cgroup_limit_is_an_error_and_no_kill";
const NOBODY: u32 = 65534;

fn in_group(group: &Path) {
    enter(group);
    for source in [Source::Plain, Source::Thp] {
        let error = Contig::options().source(source).build(Bytes::gib(1)).unwrap_err();
        let Error::CgroupLimit { path, limit, usage, .. } = error else { panic!("{error}") };
        assert_eq!((path.parent(), limit), (Some(group), LIMIT));
        assert!(usage < LIMIT);
    }
    for threads in [1, 4] {
        let fits = Contig::options().source(Source::Plain).threads(threads).build(Bytes::mib(240));
        assert!(fits.is_ok(), "{fits:?}");
    }
    // The request fits until the callback allocates memory.
    let others = Arc::new(Mutex::new(Vec::new()));
    let taken = Arc::clone(&others);
    let crowd = move |_| {
        let mut taken = taken.lock().unwrap();
        if taken.is_empty() {
            *taken = vec![1_u8; Bytes::mib(130).as_usize()];
        }
    };
    let error = Contig::options()
        .source(Source::Plain)
        .threads(1)
        .progress(crowd)
        .build(Bytes::mib(240))
        .unwrap_err();
    assert!(matches!(error, Error::CgroupLimit { .. }), "{error}");
    // The group counts page cache as used, but the kernel drops page cache on demand, so the
    // request fits.
    drop(others);
    let scratch = Scratch::new("cgroup");
    let file = scratch.path().join("file");
    fs::write(&file, vec![0; Bytes::mib(100).as_usize()]).unwrap();
    fs::File::open(&file).and_then(|file| file.sync_all()).unwrap();
    let fits = Contig::options().source(Source::Plain).build(Bytes::mib(240));
    drop(scratch);
    assert!(fits.is_ok(), "{fits:?}");
    drop(fits);
    use_reserve();
    match child_of(TEST).env(GROUP, group).uid(NOBODY).gid(NOBODY).status() {
        Ok(status) => assert!(status.success()),
        Err(error) => println!("skipped: nobody cannot run this program: {error}"),
    }
}

fn use_reserve() {
    let contig = Contig::options().source(Source::Plain).build(Bytes::mib(240)).unwrap();
    let reserve = Reserve::options().build_on(contig).unwrap();
    let mut all = reserve.alloc(Request::new(reserve.len()).any()).unwrap();
    all.bytes_mut().unwrap().fill(1);
}

fn refuse_reserve() {
    match Reserve::new(Bytes::gib(1)) {
        Err(reserve::ReserveError::Contig(error)) => {
            assert!(matches!(error, Error::CgroupLimit { limit: LIMIT, .. }), "{error}");
        }
        Ok(reserve) if matches!(reserve.contig().source(), Source::Hugetlb(_)) => {
            println!("skipped: the pool had 1 GiB to spare, which the group does not count");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_cgroup_limit_is_an_error_and_no_kill() {
    if let Some(group) = std::env::var_os(GROUP) {
        return match effective_user() {
            NOBODY => refuse_reserve(),
            _ => in_group(Path::new(&group)),
        };
    }
    let group = match Group::make(LIMIT) {
        Ok(group) => group,
        Err(reason) => {
            println!("skipped: {reason}");
            return;
        }
    };
    // Reads the program first, so that its page cache is charged to the parent's group.
    let _ = fs::read(std::env::current_exe().unwrap()).unwrap();
    let passed = child_of(TEST).env(GROUP, group.dir()).status().unwrap().success();
    assert_eq!(group.kills(), 0);
    assert!(passed);
}
