//! Tests the program's own memory, shared with its children.
//!
//! # Safety
//! The mappings outlive all `Shared` made of them.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr;

use glebe_testing::Scratch;
use glebe_volatile::{Error, Refusal};

use super::files::Tmpfs;
use super::*;
use glebe_testing::steered::{sleep_on, Process, SteeredEnd};

struct Mapped(*mut libc::c_void, usize);

impl Mapped {
    fn new(granules: u64, flags: i32, file: Option<&File>) -> Self {
        Self::with(granules, libc::PROT_READ | libc::PROT_WRITE, flags, file)
    }

    fn with(granules: u64, access: i32, flags: i32, file: Option<&File>) -> Self {
        let (len, fd) = (at(granules).as_usize(), file.map_or(-1, AsRawFd::as_raw_fd));
        // SAFETY: the kernel chooses the address.
        let at = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Self(at, len)
    }

    fn shared(granules: u64) -> Self {
        Self::new(granules, libc::MAP_SHARED | libc::MAP_ANONYMOUS, None)
    }

    fn over(&self) -> Result<Shared, Error> {
        // SAFETY: the mapping outlives the value.
        unsafe { Shared::options().over(self.0.cast(), Bytes::new(self.1 as u64)) }
    }

    fn byte(&self, granule: u64) -> *mut u8 {
        self.0.cast::<u8>().wrapping_add(at(granule).as_usize())
    }

    fn touch(&self, granule: u64) -> u8 {
        // SAFETY: the byte is mapped.
        unsafe { self.byte(granule).read_volatile() }
    }

    fn put(&self, granule: u64, byte: u8) {
        // SAFETY: the byte is mapped.
        unsafe { self.byte(granule).write_volatile(byte) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: `mmap` returned this range.
        unsafe { libc::munmap(self.0, self.1) };
    }
}

fn is_shared_by_processes(memory: &Mapped) {
    for granule in [1, 2, 3, 5] {
        memory.put(granule, granule as u8 + 1);
    }
    let shared = memory.over().unwrap();
    assert_eq!((shared.len(), shared.as_ptr()), (at(8), memory.byte(0)));
    let marker = Process::start(|_| {
        shared.mark(range(0, 8), Priority::NORMAL, Order::Fifo).unwrap();
    });
    assert_eq!(marker.end(), SteeredEnd::Exit(0));
    assert_eq!(memory.touch(5), 6, "what was there before stays");
    let pinner = Process::start(|link| {
        let _pin = shared.pin(range(2, 1)).unwrap();
        link.tell(0);
        sleep_on();
    });
    pinner.link.hear();
    let purging = Process::start(|_| assert_eq!(purge_all(&shared), at(3)));
    assert_eq!(purging.end(), SteeredEnd::Exit(0));
    assert_eq!([1, 2, 3, 5].map(|granule| memory.touch(granule)), [0, 3, 0, 0]);
    let pin = shared.pin(range(0, 4)).unwrap();
    assert_eq!(runs(pin.lost()), [(1, 1), (3, 1)]);
    pin.write(at(3), &[9]).unwrap();
    pin.restored().unwrap();
    drop(pin);
    pinner.kill();
    assert_eq!(runs(&shared.unmark(range(0, 8)).unwrap()), [(5, 1)]);
    assert_eq!(purge_all(&shared), Bytes::ZERO);
    drop(shared);
    assert_eq!([2, 3].map(|granule| memory.touch(granule)), [3, 9], "left as it is");
}

#[test]
fn memory_of_the_program_is_shared_and_purged() {
    glebe_testing::alone!();
    is_shared_by_processes(&Mapped::shared(8));
}

#[test]
fn a_mapping_of_a_file_in_memory_is_shared_and_purged() {
    glebe_testing::alone!();
    let Some(dir) = Tmpfs::new("over") else { return };
    let file = File::options().read(true).write(true).create_new(true).open(dir.join("file"));
    let file = file.unwrap();
    file.set_len(at(8).get()).unwrap();
    is_shared_by_processes(&Mapped::new(8, libc::MAP_SHARED, Some(&file)));
}

#[test]
fn what_only_this_program_knows_nobody_adopts() {
    let memory = Mapped::shared(2);
    let shared = memory.over().unwrap();
    let file = shared.fd().try_clone_to_owned().unwrap();
    let error = Purger::adopt(file).unwrap_err();
    assert!(matches!(error, Error::BadFile { what: "the magic", .. }), "{error}");
}

#[test]
fn other_memory_is_refused() {
    // Another thread could map something where a page is gone.
    glebe_testing::alone!();
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let unsuitable = |memory: &Mapped| match memory.over().unwrap_err() {
        Error::Unsuitable(refusal) => refusal,
        error => panic!("{error:?}"),
    };
    assert!(matches!(unsuitable(&Mapped::new(2, private, None)), Refusal::Private { .. }));
    let read_only = Mapped::with(2, libc::PROT_READ, libc::MAP_SHARED | libc::MAP_ANONYMOUS, None);
    assert!(matches!(unsuitable(&read_only), Refusal::ReadOnly { .. }));
    let gone = Mapped::shared(3);
    // SAFETY: the page is in this test's mapping.
    unsafe { libc::munmap(gone.byte(1).cast(), at(1).as_usize()) };
    assert!(matches!(unsuitable(&gone), Refusal::Unmapped { .. }));
    let scratch = Scratch::new("shared-over");
    let path = scratch.path().join("disk");
    let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
    file.set_len(at(2).get()).unwrap();
    let on_disk = Mapped::new(2, libc::MAP_SHARED, Some(&file));
    match on_disk.over() {
        Err(Error::Unsuitable(Refusal::OnDisk { .. })) => {}
        other => println!("skipped: the scratch directory is on tmpfs: {other:?}"),
    }
    let memory = Mapped::shared(2);
    let page = at(1).get();
    for (offset, len) in [(1, page), (0, page + 1), (page / 2, page)] {
        let addr = memory.byte(0).wrapping_add(offset as usize);
        // SAFETY: the mapping outlives the value.
        let error = unsafe { Shared::options().over(addr, Bytes::new(len)) }.unwrap_err();
        let is_told = matches!(error, Error::Unaligned { .. });
        assert!(is_told, "{offset} {len}: {error}");
    }
    // SAFETY: the mapping outlives the value.
    let told = unsafe { Shared::options().sigbus(true).over(memory.byte(0), at(2)) }.unwrap_err();
    assert!(matches!(told, Error::BadOption { .. }), "{told}");
    // SAFETY: the call is refused before any touch.
    let beyond = unsafe { Shared::options().over(ptr::without_provenance_mut(!0xFFF), at(2)) };
    assert!(matches!(beyond.unwrap_err(), Error::Beyond { .. } | Error::Unaligned { .. }));
}
