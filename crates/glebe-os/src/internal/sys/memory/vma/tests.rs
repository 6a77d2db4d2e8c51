//! Tests the parser of smaps with texts, and its callers with real mappings.
#![allow(unsafe_code)] // Safety: every mapping is the test's own.

use std::ffi::CStr;
use std::ptr;

use proptest::prelude::*;

use super::eligible::check;
use super::*;
use crate::internal::sys::machine::hugetlb::Pool;
use crate::internal::sys::memory::mmap::map_file;
use crate::internal::sys::page_size;
use crate::units::PageSize;

const EVERYTHING: Range<usize> = 0..usize::MAX;

fn entry(header: &str, fields: &str) -> String {
    format!(
        "{header}\nSize: 8 kB\nKernelPageSize:        4 kB\nRss:  8 kB\nLazyFree:  4 kB\n\
         Swap:  12 kB\nSwapPss: 99 kB\n{fields}"
    )
}

fn plain() -> String {
    entry("1000-3000 rw-p 00000000 00:00 0 ", "THPeligible:    0\nVmFlags: rd wr mr mw me ac \n")
}

#[test]
fn an_entry_is_read_field_by_field() {
    let vmas = read(plain().as_bytes(), &EVERYTHING).unwrap();
    let wanted = Vma {
        start: 0x1000,
        end: 0x3000,
        permissions: *b"rw-p",
        offset: 0,
        device: 0,
        inode: 0,
        path: String::new(),
        flags: "rd wr mr mw me ac".to_owned(),
        kernel_page: Bytes::new(4 << 10),
        rss: Bytes::new(8 << 10),
        lazy_free: Bytes::new(4 << 10),
    };
    assert_eq!(vmas, [wanted]);
    assert!(vmas[0].has("mw") && !vmas[0].has("lo") && !vmas[0].has("m") && !vmas[0].has(""));
}

#[test]
fn only_entries_of_the_range_are_kept_and_nothing_behind_it_is_read() {
    let flags = "VmFlags: rd\n";
    let text = [
        entry("1000-3000 rw-p 00000000 00:00 0 ", flags),
        entry("3000-4000 r--s 00000000 fe:01 7    /a b\\012VmFlags: lo", flags),
        entry("5000-6000 ---p 00000000 00:00 0    [anon:5000-6000 rw-p]", flags),
        "this is no line of smaps\n".to_owned(),
    ]
    .concat();
    let found = |range: Range<usize>| {
        read(text.as_bytes(), &range)
            .map(|vmas| vmas.iter().map(|vma| vma.start).collect::<Vec<_>>())
    };
    assert_eq!(found(0..0x1000).unwrap(), []);
    assert_eq!(found(0x2fff..0x3000).unwrap(), [0x1000]);
    assert_eq!(found(0x2fff..0x3001).unwrap(), [0x1000, 0x3000]);
    assert_eq!(found(0x4000..0x5000).unwrap(), []);
    assert!(found(0x4000..0x5001).unwrap_err().to_string().contains("this is no line"));
    let vmas = read(text.as_bytes(), &(0x3000..0x5000)).unwrap();
    assert_eq!((vmas[0].path.as_str(), vmas[0].inode), ("/a b\\012VmFlags: lo", 7));
    assert!(!vmas[0].has("lo") && !vmas[0].is_private());
}

#[test]
fn what_is_no_smaps_is_an_error() {
    let cases: [(&str, &str); 12] = [
        ("a field before any entry", "Rss: 8 kB\n"),
        ("cut before its flags", "1000-2000 rw-p 0 00:00 0\nRss: 8 kB\n"),
        ("no range", "1000 rw-p 0 00:00 0\nVmFlags: rd\n"),
        ("an empty range", "1000-1000 rw-p 0 00:00 0\nVmFlags: rd\n"),
        ("a signed address", "+1000-2000 rw-p 0 00:00 0\nVmFlags: rd\n"),
        ("an address of 65 bits", "1000-1ffffffffffffffff rw-p 0 00:00 0\nVmFlags: rd\n"),
        ("five permissions", "1000-2000 rw-ps 0 00:00 0\nVmFlags: rd\n"),
        ("permissions that are none", "1000-2000 rwzp 0 00:00 0\nVmFlags: rd\n"),
        ("no inode", "1000-2000 rw-p 0 00:00\nVmFlags: rd\n"),
        ("an amount too large", "1000-2000 rw-p 0 00:00 0\nRss: 18446744073709551615 kB\n"),
        ("another unit", "1000-2000 rw-p 0 00:00 0\nRss: 1 MB\nVmFlags: rd\n"),
        ("no amount", "1000-2000 rw-p 0 00:00 0\nLazyFree\nVmFlags: rd\n"),
    ];
    for (what, text) in cases {
        assert!(read(text.as_bytes(), &EVERYTHING).is_err(), "{what}");
    }
    let not_text = b"1000-2000 rw-p 0 00:00 0 /\xff\xfe\nVmFlags: rd\n";
    assert_eq!(read(&not_text[..], &EVERYTHING).unwrap()[0].path, "/\u{fffd}\u{fffd}");
}

proptest! {
    #[test]
    fn no_text_brings_it_down(
        text in proptest::collection::vec(any::<u8>(), 0..200),
        cut in 0..400_usize,
    ) {
        let _ = read(&text[..], &EVERYTHING);
        let mut torn = plain().into_bytes();
        torn.truncate(cut);
        torn.extend_from_slice(&text);
        let _ = read(&torn[..], &EVERYTHING);
    }
}

#[test]
fn sums_of_a_part_of_a_mapping_are_bounds() {
    let vmas = read(plain().as_bytes(), &EVERYTHING).unwrap();
    let kib = |n: u64| Bytes::new(n << 10);
    let whole = RangeUsage::of(&vmas, &(0x1000..0x3000));
    let wanted = RangeUsage { rss: kib(8), lazy_free: kib(4) };
    assert_eq!(whole, wanted);
    let half = RangeUsage::of(&vmas, &(0x2000..0x3000));
    assert_eq!(half, RangeUsage { rss: kib(4), lazy_free: kib(4) });
}

#[test]
fn the_first_address_that_cannot_be_is_told() {
    let entry = |bounds: &str, flags: &str| entry(&format!("{bounds} rw-p 0 00:00 0"), flags);
    let text = entry("1000-3000", "VmFlags: rd wr\n")
        + &entry("3000-5000", "VmFlags: rd wr lo\n")
        + &entry("6000-8000", "VmFlags: rd wr\n");
    let of = |range: Range<usize>| check(&read(text.as_bytes(), &range).unwrap(), &range, &[]);
    of(0x1000..0x3000).unwrap();
    of(0x6000..0x8000).unwrap();
    assert!(matches!(of(0..0x8000), Err(Refusal::Unmapped { at: 0 })));
    assert!(matches!(of(0x2000..0x8000), Err(Refusal::Locked { at: 0x3000 })));
    assert!(matches!(of(0x4000..0x8000), Err(Refusal::Locked { at: 0x4000 })));
    assert!(matches!(of(0x5000..0x8000), Err(Refusal::Unmapped { at: 0x5000 })));
    assert!(matches!(of(0x7000..0x9000), Err(Refusal::Unmapped { at: 0x8000 })));
    assert!(matches!(of(0x9000..0xa000), Err(Refusal::Unmapped { at: 0x9000 })));
}

struct Mapped {
    at: usize,
    len: usize,
}

impl Mapped {
    fn new(len: usize, protection: i32, flags: i32, fd: i32) -> Option<Self> {
        // SAFETY: the kernel chooses the address.
        let at = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, fd, 0) };
        (at != libc::MAP_FAILED).then(|| Self { at: at.expose_provenance(), len })
    }

    fn anonymous(protection: i32) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        Self::new(two_pages(), protection, flags, -1).unwrap()
    }

    fn ptr(&self) -> *mut libc::c_void {
        ptr::with_exposed_provenance_mut(self.at)
    }

    fn classify(&self) -> Result<(), Refusal> {
        classify(&(self.at..self.at + self.len))
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is its own, and nothing refers to it.
        unsafe { libc::munmap(self.ptr(), self.len) };
    }
}

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn two_pages() -> usize {
    2 * page_size().bytes().as_usize()
}

fn memfd(name: &CStr) -> i32 {
    // SAFETY: a terminated name; the descriptor stays open.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: a new descriptor.
    assert_eq!(unsafe { libc::ftruncate(fd, two_pages() as i64) }, 0);
    fd
}

#[test]
fn ordinary_memory_can_be_volatile() {
    Mapped::anonymous(READ_WRITE).classify().unwrap();
    let heap = vec![1_u8; 1 << 20];
    classify(&(heap.as_ptr().addr()..heap.as_ptr().addr() + heap.len())).unwrap();
    let on_stack = 1_u8;
    let at = (&raw const on_stack).addr();
    classify(&(at..at + 1)).unwrap();
}

#[test]
fn unmapped_memory_is_named_by_its_first_address() {
    let mut mapped = Mapped::anonymous(READ_WRITE);
    let both = mapped.at..mapped.at + mapped.len;
    let page = mapped.len / 2;
    // Another test may map memory at the second page, so the drop must not unmap it.
    mapped.len = page;
    // SAFETY: the page is this test's.
    unsafe { libc::munmap(mapped.ptr().byte_add(page), page) };
    for _ in 0..100 {
        match classify(&both) {
            Err(Refusal::Unmapped { at }) => return assert_eq!(at, mapped.at + page),
            other => println!("not yet: {other:?}"),
        }
    }
    panic!("never seen unmapped");
}

#[test]
fn locked_memory_is_refused() {
    let mapped = Mapped::anonymous(READ_WRITE);
    let page = mapped.len / 2;
    // SAFETY: its own page.
    if unsafe { libc::mlock(mapped.ptr().byte_add(page), page) } != 0 {
        println!("skipped: mlock: {}", io::Error::last_os_error());
        return;
    }
    let refused = mapped.classify().unwrap_err();
    assert!(matches!(refused, Refusal::Locked { at } if at == mapped.at + page), "{refused:?}");
    assert!(refused.to_string().contains("mlock"));
    // SAFETY: its own pages.
    unsafe { libc::munlock(mapped.ptr(), mapped.len) };
    mapped.classify().unwrap();
}

#[test]
fn hugetlb_memory_is_refused() {
    let size = PageSize::new(2 << 20).unwrap();
    let free = Pool::of(size).and_then(|pool| pool.counts().ok()).map_or(0, |it| it.available());
    // With MAP_NORESERVE a mapping needs no free page until the touch.
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
    let flags = flags | libc::MAP_HUGE_2MB | libc::MAP_NORESERVE;
    let Some(mapped) = Mapped::new(2 << 20, READ_WRITE, flags, -1) else {
        println!("skipped: no hugetlb mapping of 2 MiB ({free} pages are free)");
        return;
    };
    let refused = mapped.classify().unwrap_err();
    let is_told =
        matches!(refused, Refusal::Hugetlb { at, page } if at == mapped.at && page == size.bytes());
    assert!(is_told, "{refused:?}");
}

#[test]
fn shared_memory_is_refused() {
    let anonymous = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let unnamed = Mapped::new(two_pages(), READ_WRITE, anonymous, -1).unwrap();
    assert!(matches!(unnamed.classify(), Err(Refusal::Shared { at, .. }) if at == unnamed.at));
    let fd = memfd(c"a: b\nVmFlags: rd");
    let named = Mapped::new(two_pages(), READ_WRITE, libc::MAP_SHARED, fd).unwrap();
    let refused = named.classify().unwrap_err();
    let is_told = matches!(&refused, Refusal::Shared { name, .. } if name.contains("a: b\\012Vm"));
    assert!(is_told, "{refused:?}");
}

#[test]
fn a_private_file_is_refused() {
    let fd = memfd(c"file-private");
    let mapped = Mapped::new(two_pages(), READ_WRITE, libc::MAP_PRIVATE, fd).unwrap();
    let refused = mapped.classify().unwrap_err();
    let is_told = matches!(&refused, Refusal::FilePrivate { at, inode, name }
        if *at == mapped.at && *inode != 0 && name.contains("file-private"));
    assert!(is_told, "{refused:?}");
}

#[test]
fn memory_without_writing_is_refused() {
    for (protection, shown) in [(libc::PROT_READ, "r--p"), (libc::PROT_NONE, "---p")] {
        let mapped = Mapped::anonymous(protection);
        let refused = mapped.classify().unwrap_err();
        let is_told = matches!(&refused, Refusal::ReadOnly { at, permissions }
            if *at == mapped.at && permissions == shown);
        assert!(is_told, "{refused:?}");
    }
}

#[test]
fn special_mappings_are_refused() {
    let all = among(&EVERYTHING).unwrap();
    let mut seen = 0;
    for vma in all.iter().filter(|vma| ["[vvar]", "[vdso]"].contains(&vma.path.as_str())) {
        let refused = classify(&(vma.start..vma.end)).unwrap_err();
        let is_told = matches!(&refused, Refusal::Special { at, name, .. }
            if *at == vma.start && *name == vma.path);
        assert!(is_told, "{refused:?}");
        seen += 1;
    }
    if seen == 0 {
        println!("skipped: the kernel maps neither [vvar] nor [vdso]");
    }
    /// Since Linux 6.11.
    const MAP_DROPPABLE: i32 = 0x08;
    let flags = MAP_DROPPABLE | libc::MAP_ANONYMOUS;
    let Some(droppable) = Mapped::new(two_pages(), READ_WRITE, flags, -1) else {
        println!("skipped: no MAP_DROPPABLE");
        return;
    };
    let refused = droppable.classify().unwrap_err();
    assert!(matches!(refused, Refusal::Special { flag: "dp", .. }), "{refused:?}");
}

#[test]
fn memory_that_a_userfaultfd_watches_is_refused() {
    use crate::internal::sys::memory::uffd::Uffd;
    let mapped = Mapped::anonymous(READ_WRITE);
    let uffd = match Uffd::open_sigbus() {
        Ok(uffd) => uffd,
        Err(error) => return println!("skipped: no userfaultfd: {error}"),
    };
    // SAFETY: the mapping is this test's, and nobody touches it.
    unsafe { uffd.register(mapped.ptr().addr(), Bytes::new(mapped.len as u64)).unwrap() };
    let refused = mapped.classify().unwrap_err();
    assert!(matches!(refused, Refusal::Watched { flag: "um", .. }), "{refused:?}");
    classify_watched(&(mapped.at..mapped.at + mapped.len)).unwrap();
    drop(uffd);
    // Another test's forked child may hold the descriptor for a while.
    let begin = std::time::Instant::now();
    while mapped.classify().is_err() && begin.elapsed().as_secs() < 30 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    mapped.classify().unwrap();
}

#[test]
fn what_the_kernel_may_take_is_counted() {
    let mapped = Mapped::anonymous(READ_WRITE);
    let range = mapped.at..mapped.at + mapped.len;
    // SAFETY: its own pages.
    unsafe {
        libc::madvise(mapped.ptr(), mapped.len, libc::MADV_NOHUGEPAGE);
        ptr::write_bytes(mapped.ptr().cast::<u8>(), 1, mapped.len);
    }
    let before = usage(&range).unwrap();
    assert!(before.rss.get() >= mapped.len as u64, "{before:?}");
    let mut after = before;
    // The kernel marks pages in batches per processor, so further marks flush a batch.
    for _ in 0..1000 {
        // SAFETY: its own page, whose contents may be lost.
        unsafe { libc::madvise(mapped.ptr(), mapped.len / 2, libc::MADV_FREE) };
        after = usage(&range).unwrap();
        if after.lazy_free > Bytes::ZERO {
            break;
        }
        let other =
            Mapped::new(64 * two_pages(), READ_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
                .unwrap();
        // SAFETY: its own pages.
        unsafe {
            libc::madvise(other.ptr(), other.len, libc::MADV_NOHUGEPAGE);
            ptr::write_bytes(other.ptr().cast::<u8>(), 1, other.len);
            libc::madvise(other.ptr(), other.len, libc::MADV_FREE);
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert!(after.lazy_free > Bytes::ZERO, "{after:?}");
    assert!(after.lazy_free <= after.rss, "{after:?}");
}

#[test]
fn a_mount_of_tmpfs_is_known_by_its_device() {
    let mount = "24 1 0:22 / /a\\040-\\040tmpfs rw,nosuid shared:4 - tmpfs shm rw,size=4k";
    let device = device("0:16");
    assert!(eligible::is_tmpfs_of(mount, device) && !eligible::is_tmpfs_of(mount, device + 1));
    for other in [
        mount.replace("- tmpfs ", "- ext4 "),
        mount.replace("0:22", "0:0x16"),
        mount.replace("0:22", "22"),
        "24 1 0:22".to_owned(),
        String::new(),
    ] {
        assert!(!eligible::is_tmpfs_of(&other, device), "{other:?}");
    }
}

#[test]
fn a_file_on_tmpfs_without_a_name_is_in_memory() {
    let Some(folder) = Some(Path::new("/dev/shm")).filter(|folder| folder.exists()) else {
        println!("skipped: a file on tmpfs (there is no /dev/shm)");
        return;
    };
    let path = folder.join(format!("glebe-vma-{}", std::process::id()));
    let file =
        crate::internal::sys::memory::memory_file::MemoryFile::new_for(&path, page_size().bytes());
    let file = file.unwrap().unwrap();
    // SAFETY: the kernel chooses the address.
    let at = map_file(file.as_file(), Bytes::ZERO, page_size().bytes()).unwrap();
    let found = shared_at(at).unwrap();
    assert_eq!(found.range, at..at + page_size().bytes().as_usize());
    assert_eq!(found.device, file.device().unwrap());
}

#[test]
fn a_memfd_of_this_library_is_its_own() {
    let len = page_size().bytes();
    let file = crate::internal::sys::memory::memory_file::MemoryFile::new(len).unwrap();
    // SAFETY: the kernel chooses the address.
    let at = map_file(file.as_file(), Bytes::ZERO, len).unwrap();
    let refused = shared_at(at).unwrap_err();
    assert!(matches!(refused, Refusal::Own { at: told } if told == at), "{refused}");
}
