//! Tests unsuitable files, and files that are cut while they are used.
//!
//! # Safety
//! System calls use descriptors of this test; the byte written is mapped.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{symlink, FileExt};
use std::path::{Path, PathBuf};

use glebe_testing::Scratch;
use glebe_volatile::{Error, Purger};

use super::*;
use glebe_testing::steered::{Process, SteeredEnd};

pub struct Tmpfs(PathBuf);

impl Tmpfs {
    pub fn new(test: &str) -> Option<Self> {
        let dir = Path::new("/dev/shm").join(format!("glebe-test-{}-{test}", std::process::id()));
        if let Err(error) = fs::create_dir(&dir) {
            println!("skipped: no tmpfs: {}: {error}", dir.display());
            return None;
        }
        Some(Self(dir))
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).expect("the directory is ours");
    }
}

fn memfd(flags: libc::c_uint) -> Option<File> {
    // SAFETY: a constant name; the `File` owns the new descriptor.
    unsafe {
        let fd = libc::memfd_create(c"test".as_ptr(), flags | libc::MFD_CLOEXEC);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd).into())
    }
}

fn refused(file: &File) -> String {
    let copy = || OwnedFd::from(file.try_clone().unwrap());
    let error = Shared::options().adopt(copy()).unwrap_err();
    let other = Purger::adopt(copy()).unwrap_err();
    assert_eq!(error.to_string(), other.to_string());
    let is_said =
        matches!(error, Error::UnsuitableFile(_) | Error::BadFile { .. } | Error::Truncated { .. });
    assert!(is_said, "{error:?}");
    error.to_string()
}

fn refused_at(path: &Path) -> String {
    let error = Shared::options().open(path).unwrap_err();
    assert_eq!(error.to_string(), Purger::open(path).unwrap_err().to_string());
    error.to_string()
}

#[test]
fn what_is_no_file_in_memory_is_refused() {
    let scratch = Scratch::new("shared-kinds");
    let path = |name: &str| scratch.path().join(name);
    let fifo = std::ffi::CString::new(path("fifo").to_str().unwrap()).unwrap();
    // SAFETY: `fifo` is a C string.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    symlink("/dev/null", path("link")).unwrap();
    for (path, what) in [
        (scratch.path().to_owned(), "a directory"),
        (path("fifo"), "a FIFO"),
        (path("link"), "a symbolic link"),
        (PathBuf::from("/dev/null"), "a device"),
        (PathBuf::from("/proc/self/status"), ""),
        (path("nothing"), "No such file"),
    ] {
        let said = refused_at(&path);
        assert!(said.contains(what), "{}: {said}", path.display());
    }
    assert!(refused(&File::open("/proc/self/status").unwrap()).contains("not on tmpfs"));
    assert!(refused(&File::open(scratch.path()).unwrap()).contains("directory"));
    if let Some(huge) = memfd(libc::MFD_HUGETLB) {
        assert!(refused(&huge).contains("not on tmpfs"));
    }
    let disk = File::options().read(true).write(true).create_new(true).open(path("disk")).unwrap();
    refused(&disk);
    match Shared::options().create_at(&path("made"), at(1)) {
        Ok(_) => println!("skipped: the scratch directory is on tmpfs"),
        Err(error) => {
            assert!(matches!(error, Error::UnsuitableFile(_)), "{error}");
            assert!(!path("made").exists(), "what was refused is left");
        }
    }
}

#[test]
fn a_file_of_another_content_or_access_is_refused() {
    let empty = memfd(libc::MFD_ALLOW_SEALING).unwrap();
    assert!(refused(&empty).contains("its length is 0x0"));
    empty.set_len(1 << 20).unwrap();
    assert!(refused(&empty).contains("the magic is 0x0"));
    let shared = filled(4);
    let path = format!("/proc/self/fd/{}", shared.fd().as_raw_fd());
    assert!(refused(&File::open(&path).unwrap()).contains("not open to read and write"));
    let mut header = [0; 128];
    File::open(&path).unwrap().read_exact_at(&mut header, 0).unwrap();
    let copy = || {
        let file = memfd(libc::MFD_ALLOW_SEALING).unwrap();
        file.set_len(shared.len().get() + (1 << 20)).unwrap();
        file.write_all_at(&header, 0).unwrap();
        file
    };
    Shared::options().adopt(copy().into()).unwrap();
    let word = |at: u64, value: u64| {
        let file = copy();
        file.write_all_at(&value.to_ne_bytes(), at * 8).unwrap();
        refused(&file)
    };
    assert!(word(0, u64::from_ne_bytes(*b"GLEBEVOL")).contains("the magic"));
    assert!(word(1, 2).contains("the version is 0x2, not 0x1"));
    assert!(word(2, 1 << 30).contains("the page"));
    assert!(word(3, 3).contains("the granule is 0x3"));
    assert!(word(4, 0).contains("the granules"));
    assert!(word(4, u64::MAX).contains("the granules"));
    assert!(word(5, 1 << 40).contains("the holders"));
    assert!(word(6, 0).contains("the data's offset"));
    assert!(word(7, 1 << 40).contains("the total"));
    let short = copy();
    short.set_len(at(3).get()).unwrap();
    assert!(refused(&short).contains("are needed"));
    let sealed = copy();
    // SAFETY: `sealed` is an open descriptor.
    let made =
        unsafe { libc::fcntl(sealed.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_FUTURE_WRITE) };
    assert_eq!(made, 0);
    assert!(refused(&sealed).contains("sealed against writing"));
}

#[test]
fn a_file_at_a_path_is_made_once_and_opened_by_others() {
    let Some(dir) = Tmpfs::new("made") else { return };
    let path = dir.join("cache");
    let made = Shared::options().granule(at(4)).holders(3).create_at(&path, at(9)).unwrap();
    assert_eq!((made.len(), made.granule()), (at(12), at(4)));
    assert!(Shared::options().create_at(&path, at(9)).unwrap_err().to_string().contains("exists"));
    symlink(&path, dir.join("link")).unwrap();
    assert!(refused_at(&dir.join("link")).contains("symbolic link"));
    made.pin(range(4, 4)).unwrap().write(at(1), b"x").unwrap();
    // The file decides the granule, not the opener.
    let other = Shared::options().granule(at(1)).open(&path).unwrap();
    assert_eq!((other.len(), other.granule()), (at(12), at(4)));
    let mut byte = [0];
    other.pin(range(4, 4)).unwrap().read(at(1), &mut byte).unwrap();
    assert_eq!(&byte, b"x");
    let fourth = [(); 2].map(|()| Shared::options().open(&path));
    assert!(matches!(fourth, [Ok(_), Err(Error::NoHolderLeft { holders: 3 })]));
}

fn cuts(len: u64) -> [u64; 4] {
    let page = page_size().bytes().get();
    [0, 1, len - page, len / 2]
}

#[test]
fn who_uses_a_file_that_is_cut_is_told_and_lives() {
    glebe_testing::alone!();
    let Some(dir) = Tmpfs::new("cut") else { return };
    for nth in 0..4 {
        let path = dir.join(&format!("cut-{nth}"));
        // Runs in a child, because an unhandled SIGBUS kills the process.
        let child = Process::start(|_| {
            let shared = Shared::options().create_at(&path, at(64)).unwrap();
            fill(&shared);
            let purger = Purger::open(&path).unwrap();
            let pin = shared.pin(range(60, 4)).unwrap();
            let file = File::options().write(true).open(&path).unwrap();
            file.set_len(cuts(file.metadata().unwrap().len())[nth]).unwrap();
            let mut buf = vec![0; at(4).as_usize()];
            let is_cut = |error: Error| {
                let said = matches!(error, Error::Truncated { .. } | Error::Os(_));
                assert!(said, "{error:?}");
            };
            pin.read(Bytes::ZERO, &mut buf).map_err(is_cut).unwrap_err();
            is_cut(pin.write(Bytes::ZERO, &buf).unwrap_err());
            is_cut(shared.mark(range(0, 64), Priority::NORMAL, Order::Fifo).unwrap_err());
            is_cut(shared.pin(range(0, 1)).map(drop).unwrap_err());
            is_cut(shared.unmark(range(0, 64)).map(drop).unwrap_err());
            is_cut(shared.purge(at(64), Priority::HIGHEST).map(drop).unwrap_err());
            is_cut(shared.drop_now(range(0, 64)).map(drop).unwrap_err());
            is_cut(pin.restored().unwrap_err());
            // The purger touches less of the file, so its calls may succeed.
            _ = purger.look().map_err(is_cut);
            _ = purger.purge(at(64), Priority::HIGHEST).map_err(is_cut);
            _ = shared.stats();
            // SAFETY: the memory is mapped while `shared` exists.
            unsafe { shared.as_ptr().add(buf.len()).write_volatile(1) };
            let next = Shared::options().open(&path).unwrap_err();
            assert!(matches!(next, Error::Truncated { .. } | Error::BadFile { .. }), "{next}");
        });
        assert_eq!(child.end(), SteeredEnd::Exit(0), "cut {nth}");
    }
}

#[test]
fn nobody_cuts_a_file_without_a_name() {
    let shared = filled(4);
    let file = File::from(shared.fd().try_clone_to_owned().unwrap());
    for len in [0, 1 << 40] {
        assert_eq!(file.set_len(len).unwrap_err().raw_os_error(), Some(libc::EPERM));
    }
}

#[test]
fn what_was_sealed_meanwhile_keeps_all() {
    let file = memfd(libc::MFD_ALLOW_SEALING).unwrap();
    let pattern = Shared::options().create(at(4)).unwrap();
    let path = format!("/proc/self/fd/{}", pattern.fd().as_raw_fd());
    let mut header = [0; 128];
    File::open(path).unwrap().read_exact_at(&mut header, 0).unwrap();
    file.set_len(1 << 20).unwrap();
    file.write_all_at(&header, 0).unwrap();
    let shared = Shared::options().adopt(file.try_clone().unwrap().into()).unwrap();
    fill(&shared);
    let other = purger(&shared);
    // SAFETY: `file` is an open descriptor.
    let made =
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_FUTURE_WRITE) };
    assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
    for refused in [
        shared.purge(at(4), Priority::HIGHEST).map(drop),
        shared.drop_now(range(0, 4)).map(drop),
        other.purge(at(4), Priority::HIGHEST).map(drop),
    ] {
        let Err(Error::Os(error)) = refused else { panic!("{refused:?}") };
        assert_eq!(error.errno(), Some(libc::EPERM), "{error}");
    }
    assert_eq!([0, 1, 2, 3].map(|granule| byte_of(&shared, granule)), [1, 2, 3, 4]);
    assert!(shared.unmark(range(0, 4)).unwrap().is_empty());
}

#[test]
fn a_file_that_cannot_be_opened_anew_is_refused() {
    glebe_testing::alone!();
    let child = Process::start(|_| {
        // SAFETY: constant strings; the mounts are in the child's own namespace.
        let hidden = unsafe {
            let none = std::ptr::null::<libc::c_char>();
            libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(
                    none,
                    c"/".as_ptr(),
                    none,
                    libc::MS_REC | libc::MS_PRIVATE,
                    std::ptr::null(),
                ) == 0
                && libc::mount(
                    c"none".as_ptr(),
                    c"/proc".as_ptr(),
                    c"tmpfs".as_ptr(),
                    0,
                    std::ptr::null(),
                ) == 0
        };
        if hidden {
            let error = Shared::options().create(at(1)).unwrap_err().to_string();
            assert!(error.contains("/proc/self/fd/"), "{error}");
        }
    });
    assert_eq!(child.end(), SteeredEnd::Exit(0));
}
