//! Tests a file on a full tmpfs: calls return errors and raise no signal.
//!
//! # Safety
//! A child process mounts in its own mount namespace.

use std::fs;
use std::path::Path;
use std::ptr;

use glebe_testing::Scratch;
use glebe_volatile::{Error, Purger};

use super::*;
use glebe_testing::steered::{Process, SteeredEnd};

fn mount(dir: &Path, pages: u64) -> bool {
    let dir = std::ffi::CString::new(dir.to_str().unwrap()).unwrap();
    let options = std::ffi::CString::new(format!("nr_blocks={pages}")).unwrap();
    let none = ptr::null::<libc::c_char>();
    let kind = c"tmpfs".as_ptr();
    // SAFETY: takes no pointers.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let flags = libc::CLONE_NEWNS | if user == 0 { 0 } else { libc::CLONE_NEWUSER };
    // SAFETY: takes no pointers.
    if unsafe { libc::unshare(flags) } != 0 {
        return false;
    }
    if user != 0 {
        let put = |name: &str, text: String| fs::write(format!("/proc/self/{name}"), text).is_ok();
        let is_mapped = put("setgroups", "deny".to_owned())
            && put("uid_map", format!("{user} {user} 1"))
            && put("gid_map", format!("{group} {group} 1"));
        if !is_mapped {
            return false;
        }
    }
    // SAFETY: all strings are C strings.
    unsafe {
        let private = libc::MS_REC | libc::MS_PRIVATE;
        libc::mount(none, c"/".as_ptr(), none, private, ptr::null()) == 0
            && libc::mount(kind, dir.as_ptr(), kind, 0, options.as_ptr().cast()) == 0
    }
}

#[test]
fn on_a_full_file_system_calls_fail_and_purges_make_room() {
    glebe_testing::alone!();
    let scratch = Scratch::new("shared-full");
    let child = Process::start(|link| {
        if !mount(scratch.path(), 64) {
            return link.tell(0);
        }
        link.tell(1);
        let path = scratch.path().join("file");
        // The words and tables of all granules do not fit into the tmpfs.
        let shared = Shared::options().holders(4).create_at(&path, at(1 << 20)).unwrap();
        let purger = Purger::open(&path).unwrap();
        let full = |error: Error| match error {
            Error::Os(error) => assert_eq!(error.errno(), Some(libc::ENOSPC), "{error}"),
            error => panic!("{error:?}"),
        };
        full(shared.pin(range(0, 100)).map(drop).unwrap_err());
        let pinned = shared.stats().pinned;
        assert_eq!(pinned, Pages::ZERO);
        let count = (1..100).take_while(|n| shared.pin(range(n - 1, 1)).is_ok()).count() as u64;
        assert!(count > 16, "{count} granules fit");
        shared.mark(range(0, count), Priority::NORMAL, Order::Fifo).unwrap();
        fs::write(scratch.path().join("rest"), vec![1; at(64).as_usize()]).unwrap_err();
        // The words of these granules have no page yet.
        full(shared.pin(range(1 << 19, 1)).map(drop).unwrap_err());
        full(shared.mark(range(1 << 18, 1), Priority::NORMAL, Order::Fifo).unwrap_err());
        full(shared.unmark(range(1 << 17, 1)).map(drop).unwrap_err());
        assert_eq!(purger.look().unwrap().marked_bytes[4], at(count));
        assert_eq!(purger.purge(at(8), Priority::HIGHEST).unwrap(), at(8));
        drop(shared.pin(range(1 << 19, 1)).unwrap());
        assert_eq!(runs(&shared.unmark(range(0, count)).unwrap()), [(0, 8)]);
    });
    if child.link.hear() == 0 {
        println!("skipped: no mount of a tmpfs");
    }
    assert_eq!(child.end(), SteeredEnd::Exit(0));
}

#[test]
fn a_file_that_does_not_fit_leaves_no_name() {
    glebe_testing::alone!();
    let scratch = Scratch::new("shared-none");
    let child = Process::start(|link| {
        if !mount(scratch.path(), 8) {
            return link.tell(0);
        }
        link.tell(1);
        let (path, rest) = (scratch.path().join("file"), scratch.path().join("rest"));
        fs::write(&rest, vec![1; at(64).as_usize()]).unwrap_err();
        match Shared::options().create_at(&path, at(4)) {
            Err(Error::Os(error)) => assert_eq!(error.errno(), Some(libc::ENOSPC), "{error}"),
            other => panic!("{other:?}"),
        }
        assert!(!path.exists());
        fs::remove_file(&rest).unwrap();
        Shared::options().create_at(&path, at(4)).unwrap();
        assert_eq!(Shared::options().open(&path).unwrap().len(), at(4));
    });
    if child.link.hear() == 0 {
        println!("skipped: no mount of a tmpfs");
    }
    assert_eq!(child.end(), SteeredEnd::Exit(0));
}
