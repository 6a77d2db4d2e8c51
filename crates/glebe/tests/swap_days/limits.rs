//! Tests resource limits of the process, and filters of system calls.

use std::thread;

use glebe::swap::cache::SwapCache;
use glebe::swap::{Store, SwapError};
use glebe::units::{Bytes, Pages};
use glebe_testing::Scratch;

use super::descriptor::descriptors_in;
use super::{pages, Kind, Paged, KINDS, PAGES};

fn limit(resource: libc::__rlimit_resource_t, most: u64) {
    // SAFETY: uses only a local.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        assert_eq!(libc::getrlimit(resource, &raw mut limit), 0);
        limit.rlim_cur = most.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(resource, &raw const limit), 0);
    }
}

fn status(key: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() << 10
}

fn works(paged: &Paged) {
    paged.write_all(1);
    paged.check_all(&[1; PAGES as usize]);
}

fn large(kind: Kind) -> Result<(), SwapError> {
    let large = Bytes::gib(8);
    match kind {
        Kind::Store => Store::options().capacity(large).build(pages(16)).map(drop),
        Kind::Region => Store::options().build_region(large, pages(16)).map(drop),
        Kind::Area => {
            let cache = SwapCache::with_limit(Bytes::mib(1))?;
            let count = Pages::new(large.get() / pages(1).get());
            cache.area_without_file(count).map(drop)
        }
    }
}

#[test]
fn beyond_a_limit_on_addresses_the_error_names_it_and_what_fits_works() {
    glebe_testing::alone!();
    let scratch = Scratch::new("addresses");
    limit(libc::RLIMIT_AS, status("VmSize") + (1 << 30));
    for kind in KINDS {
        match large(kind) {
            Err(error) if error.to_string().contains("userfaultfd") => {}
            refused => {
                let text = refused.unwrap_err().to_string();
                assert!(text.contains("RLIMIT_AS"), "{kind:?}: {text}");
            }
        }
        Paged::new(kind, scratch.path(), PAGES, false).iter().for_each(works);
    }
}

/// RLIMIT_DATA counts writable private memory, like `vm.overcommit_memory=2`.
#[test]
fn beyond_a_limit_on_memory_too() {
    glebe_testing::alone!();
    let scratch = Scratch::new("data");
    limit(libc::RLIMIT_DATA, status("VmData") + (256 << 20));
    for kind in KINDS {
        if let Err(error) = large(kind) {
            let text = error.to_string();
            let is_told = text.contains("RLIMIT_DATA") || text.contains("userfaultfd");
            assert!(is_told && kind == Kind::Region, "{kind:?}: {text}");
        }
        Paged::new(kind, scratch.path(), PAGES, false).iter().for_each(works);
    }
}

#[test]
fn where_eight_files_may_be_open_they_work_or_say_what_could_not_be_opened() {
    glebe_testing::alone!();
    let scratch = Scratch::new("files");
    let mut taken = Vec::new();
    let (mut made, mut refused) = (0, 0);
    limit(libc::RLIMIT_NOFILE, 8);
    loop {
        for kind in KINDS {
            match Paged::build(kind, scratch.path(), PAGES, false) {
                Ok(paged) => {
                    works(&paged);
                    made += 1;
                }
                Err(SwapError::Os(error)) => {
                    let is_told = ["open", "userfaultfd"].contains(&error.call());
                    assert!(is_told, "{kind:?}: {error}");
                    refused += 1;
                }
                Err(error) => panic!("{kind:?}: {error}"),
            }
        }
        // Leaves one descriptor fewer to the next round.
        let Ok(file) = std::fs::File::open("/dev/null") else { break };
        taken.push(file);
    }
    println!("{made} made, {refused} refused");
    assert!(made > 0 && refused >= KINDS.len(), "{made} made, {refused} refused");
    drop(taken);
    assert!(descriptors_in(scratch.path()).is_empty());
}

fn instruction(code: u32, k: u32, jump_if_not: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: jump_if_not, k }
}

/// Makes the kernel refuse userfaultfd(2), and the ioctl that does the same, to this thread.
/// Returns false if the kernel refuses the filter.
fn deny_userfaultfd(errno: i32) -> bool {
    let word = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let is = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = |k| instruction(libc::BPF_RET | libc::BPF_K, k, 0);
    let refused = answer(libc::SECCOMP_RET_ERRNO | errno as u32);
    let (number, args) = (
        std::mem::offset_of!(libc::seccomp_data, nr),
        std::mem::offset_of!(libc::seccomp_data, args),
    );
    // The ioctl USERFAULTFD_IOC_NEW.
    let new_by_device = 0xAA00;
    let mut filter = [
        instruction(word, number as u32, 0),
        instruction(is, libc::SYS_userfaultfd as u32, 1),
        refused,
        instruction(is, libc::SYS_ioctl as u32, 3),
        instruction(word, args as u32 + 8, 0),
        instruction(is, new_by_device, 1),
        refused,
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program outlives the call; it filters only this thread.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    }
}

#[test]
fn where_a_filter_denies_userfaultfd_a_region_says_so_and_the_others_work() {
    for errno in [libc::EPERM, libc::ENOSYS] {
        let scratch = Scratch::new(&format!("filter-{errno}"));
        let denied = || {
            if !deny_userfaultfd(errno) {
                return println!("skipped: no filters");
            }
            for kind in [Kind::Store, Kind::Area] {
                works(&Paged::build(kind, scratch.path(), PAGES, false).unwrap());
            }
            let refused = Paged::build(Kind::Region, scratch.path(), PAGES, false).err();
            let Some(SwapError::Os(error)) = refused else { panic!("{refused:?}") };
            assert_eq!((error.call(), error.errno()), ("userfaultfd", Some(errno)), "{error}");
        };
        thread::scope(|scope| scope.spawn(denied).join().unwrap());
        assert!(descriptors_in(scratch.path()).is_empty());
    }
}
