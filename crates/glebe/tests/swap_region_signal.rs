//! Tests touches of pages that cannot be loaded: the program's own SIGBUS handler gets address and
//! reason, and may repair the device or map another page.
#![allow(unsafe_code)] // Safety: a handler of atomics and one system call, mmap(2) or dup2(2).

use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use glebe::page_size;
use glebe::swap::{Store, SwapError};
use glebe::units::{Bytes, Pages};
use glebe_testing::Scratch;

use crate::swap_days::descriptor::{descriptors_in, Device};

static ADDR: AtomicUsize = AtomicUsize::new(0);
static REASON: AtomicI32 = AtomicI32::new(0);
/// Descriptor of the refusing device; `WORKS` is one that works.
static REFUSES: AtomicI32 = AtomicI32::new(-1);
static WORKS: AtomicI32 = AtomicI32::new(-1);

unsafe extern "C" fn on_sigbus(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's `info` is valid, and the page has no references.
    unsafe {
        let addr = (*info).si_addr().addr();
        ADDR.store(addr, Ordering::Relaxed);
        REASON.store((*info).si_errno, Ordering::Relaxed);
        if (*info).si_errno == libc::EIO {
            libc::dup2(WORKS.load(Ordering::Relaxed), REFUSES.load(Ordering::Relaxed));
            return;
        }
        let page = page_size().bytes().as_usize();
        let at = ptr::with_exposed_provenance_mut(addr / page * page);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let mapped = libc::mmap(at, page, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        if mapped == libc::MAP_FAILED {
            libc::abort();
        }
    }
}

fn own_action() -> libc::sigaction {
    // SAFETY: an all-zero `sigaction` is valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_sigbus as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    action
}

fn set_action(action: &libc::sigaction) -> libc::sigaction {
    let mut old = own_action();
    // SAFETY: the action is valid, and nothing touches the region meanwhile.
    assert_eq!(unsafe { libc::sigaction(libc::SIGBUS, action, &raw mut old) }, 0);
    old
}

#[test]
fn a_damaged_page_is_an_error_of_calls_and_a_signal_of_touches() {
    glebe_testing::alone!();
    let mine = own_action();
    set_action(&mine);
    let scratch = Scratch::new("region-signal");
    let page = page_size().bytes();
    let made = Store::options()
        .pool_limit(Bytes::new(256 << 10))
        .file_in(scratch.path(), Bytes::mib(64))
        .build_region(Bytes::mib(16), Bytes::mib(1));
    let region = match made {
        Err(SwapError::Os(error)) if error.call() == "userfaultfd" => {
            return println!("skipped: {error}")
        }
        made => made.unwrap(),
    };
    let mut noise = 1_u64;
    for at in (0..region.len().get()).step_by(8) {
        noise = noise.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        region.write_at(Bytes::new(at), &noise.to_ne_bytes()).unwrap();
    }
    assert!(region.stats().spilled > 1000);
    let files = descriptors_in(scratch.path());
    let file = files[0].open(std::fs::OpenOptions::new().write(true));
    // Makes reads fail; some of the first pages are in the file.
    files[0].set(Device::RefusesReads);
    let (refuses, works) = files[0].numbers();
    REFUSES.store(refuses, Ordering::Relaxed);
    WORKS.store(works, Ordering::Relaxed);
    let mut at = 0;
    while REASON.load(Ordering::Relaxed) == 0 {
        let offset = Pages::new(at).bytes(page_size()).as_usize();
        // SAFETY: the word is in a live region; the kernel repeats the touch after the handler.
        let word = unsafe { region.as_ptr().wrapping_add(offset).cast::<u64>().read_volatile() };
        let mut expected = [0; 8];
        region.read_at(Bytes::new(offset as u64), &mut expected).unwrap();
        assert_eq!(word, u64::from_ne_bytes(expected));
        at += 1;
    }
    assert_eq!(REASON.load(Ordering::Relaxed), libc::EIO);
    assert_eq!(
        ADDR.load(Ordering::Relaxed),
        region.as_ptr().addr() + (at as usize - 1) * page.as_usize()
    );
    // SAFETY: `file` is an open descriptor.
    assert_eq!(unsafe { libc::ftruncate(file.as_raw_fd(), 0) }, 0);
    let damaged: Vec<u64> = (0..64)
        .filter(|at| {
            let read = region.read_at(Pages::new(*at).bytes(page_size()), &mut [0; 8]);
            assert!(matches!(read, Ok(()) | Err(SwapError::LostPage { .. })), "{read:?}");
            read.is_err()
        })
        .collect();
    let at = *damaged.first().expect("the first pages were in the file");
    let offset = Pages::new(at).bytes(page_size());
    let said = region.resident(offset, page);
    assert!(
        matches!(said, Err(SwapError::LostPage { offset: told, .. }) if told == offset),
        "{said:?}"
    );
    let told = said.map(drop).unwrap_err().to_string();
    assert!(told.contains(&format!("{:#x}", offset.get())), "{told}");
    let word = region.as_ptr().wrapping_add(offset.as_usize() + 24).cast::<u64>();
    // SAFETY: the word is in a live region; the handler maps a page there.
    assert_eq!(unsafe { word.read_volatile() }, 0);
    assert_eq!(ADDR.load(Ordering::Relaxed), word.addr());
    assert_eq!(REASON.load(Ordering::Relaxed), libc::EBADMSG);
    // The touch does not count a damaged page a second time.
    assert_eq!(region.stats().damaged, damaged.len() as u64);
    region.stats().check().unwrap();
    let last = region.as_ptr().addr() + region.len().as_usize() - page.as_usize();
    let is_mapped = || {
        // SAFETY: `msync` writes nothing here.
        unsafe {
            libc::msync(ptr::without_provenance_mut(last), page.as_usize(), libc::MS_ASYNC) == 0
        }
    };
    assert!(is_mapped());
    // Replaces glebe's handler by one that perhaps does not call glebe's.
    let glebes = set_action(&mine);
    assert!(matches!(region.arm_thread(), Err(SwapError::HandlerCovered)));
    let made = Store::options().build_region(page, Bytes::mib(1));
    assert!(matches!(made, Err(SwapError::HandlerCovered)), "{made:?}");
    set_action(&glebes);
    region.arm_thread().unwrap();
    drop(region);
    assert!(!is_mapped());
}
