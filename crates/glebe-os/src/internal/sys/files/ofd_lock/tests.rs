//! Tests the holder and the end of a lock.

use super::*;

use crate::internal::sys::memory::memfd;
use glebe_testing::child::in_child;

const BYTE: u64 = 1 << 62;
const NO_TIME: Duration = Duration::ZERO;

#[test]
fn descriptions_exclude_each_other_in_one_process() {
    let file = memfd::make(None).unwrap();
    let (one, two) = (Description::reopen(&file).unwrap(), Description::reopen(&file).unwrap());
    assert!(!is_locked(&file, BYTE..BYTE + 1).unwrap());
    assert!(one.try_lock(BYTE).unwrap() && one.try_lock(BYTE).unwrap());
    assert!(!two.lock(BYTE, NO_TIME).unwrap() && two.try_lock(BYTE + 1).unwrap());
    assert!(is_locked(&file, BYTE..BYTE + 1).unwrap());
    one.unlock(BYTE);
    assert!(two.lock(BYTE, NO_TIME).unwrap());
    drop(two);
    assert!(!is_locked(&file, BYTE..BYTE + 2).unwrap());
}

#[test]
fn a_tied_lock_ends_with_its_mapping_and_no_child_has_it() {
    let file = memfd::make(None).unwrap();
    let tied = Tied::try_take(&file, BYTE).unwrap().expect("nobody has it");
    assert!(Tied::try_take(&file, BYTE).unwrap().is_none());
    // SAFETY: the child only reads a word.
    assert!(!tied.is_inherited() && unsafe { in_child(|| tied.is_inherited()) });
    assert!(is_locked(&file, BYTE..BYTE + 1).unwrap());
    drop(tied);
    assert!(!is_locked(&file, BYTE..BYTE + 1).unwrap());
}

/// Checks that the locks of `hold` end with the killed process, though its child still runs.
fn is_killed_while_its_child_lives<T>(file: &File, bytes: Range<u64>, hold: impl FnOnce() -> T) {
    let (mut alive, mut ready) = ([0; 2], [0; 2]);
    // SAFETY: the children take no lock of another thread.
    unsafe {
        assert_eq!(libc::pipe(alive.as_mut_ptr()), 0);
        assert_eq!(libc::pipe(ready.as_mut_ptr()), 0);
        let mut byte = 0_u8;
        let parent = libc::fork();
        if parent == 0 {
            let _held = hold();
            // The grandchild sends a byte once its fork handlers have run.
            if libc::fork() == 0 {
                libc::close(alive[1]);
                libc::write(ready[1], (&raw const byte).cast(), 1);
                libc::read(alive[0], (&raw mut byte).cast(), 1);
                libc::_exit(0);
            }
            libc::read(ready[0], (&raw mut byte).cast(), 1);
            libc::raise(libc::SIGSTOP);
            libc::_exit(0);
        }
        let mut waited = 0;
        assert_eq!(libc::waitpid(parent, &raw mut waited, libc::WUNTRACED), parent);
        assert!(libc::WIFSTOPPED(waited));
        for byte in bytes.clone() {
            assert!(is_locked(file, byte..byte + 1).unwrap());
        }
        libc::kill(parent, libc::SIGKILL);
        assert_eq!(libc::waitpid(parent, &raw mut waited, 0), parent);
        let is_left = is_locked(file, bytes).unwrap();
        for end in alive.into_iter().chain(ready) {
            libc::close(end);
        }
        assert!(!is_left);
    }
}

#[test]
fn a_killed_process_has_no_lock_though_its_child_lives() {
    let file = memfd::make(None).unwrap();
    is_killed_while_its_child_lives(&file, BYTE..BYTE + 2, || {
        let tied = Tied::try_take(&file, BYTE).unwrap();
        let description = Description::reopen(&file).unwrap();
        assert!(description.try_lock(BYTE + 1).unwrap());
        (tied, description)
    });
}

#[test]
fn a_description_ends_with_its_process_also_where_that_dropped_an_inherited_one_later() {
    let file = memfd::make(None).unwrap();
    let inherited = Description::reopen(&file).unwrap();
    is_killed_while_its_child_lives(&file, BYTE..BYTE + 1, || {
        let own = Description::reopen(&file).unwrap();
        assert!(own.try_lock(BYTE).unwrap());
        drop(inherited);
        own
    });
}
