//! Tests that dropped memory is freed although a forked child still has descriptors of its files,
//! and that a child's drop frees nothing.
//!
//! # Safety
//! The children of fork and of a raw clone only sleep, or drop what they inherited.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use glebe::contig::{Contig, Source};
use glebe::extent::Extent;
use glebe::page_size;
use glebe::units::Bytes;
use glebe::vmap::{MemFile, Space};

use glebe_testing::turn::{Turn, POOL};

fn files() -> BTreeMap<u64, File> {
    let paths = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let is_ours = |path: &std::path::PathBuf| {
        fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:glebe"))
    };
    let files = paths.filter(is_ours).filter_map(|path| File::open(path).ok());
    files.map(|file| (file.metadata().unwrap().ino(), file)).collect()
}

fn present(file: &File) -> Bytes {
    Bytes::new(file.metadata().unwrap().blocks() * 512)
}

struct Sleeper(libc::pid_t);

impl Sleeper {
    fn forked() -> Self {
        // SAFETY: the child only sleeps.
        Self::of(|| unsafe { libc::fork() })
    }

    /// Makes a child without the C library's fork handlers.
    fn cloned() -> Self {
        // SAFETY: without a new stack, clone acts as a fork, and the child only sleeps.
        Self::of(|| unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32 })
    }

    fn of(make: impl FnOnce() -> libc::pid_t) -> Self {
        let pid = make();
        assert!(pid >= 0, "{}", std::io::Error::last_os_error());
        if pid == 0 {
            loop {
                // SAFETY: `pause` takes no arguments.
                unsafe { libc::pause() };
            }
        }
        Self(pid)
    }

    fn lives(&self) -> bool {
        // SAFETY: `waitpid` writes nothing through null.
        unsafe { libc::waitpid(self.0, std::ptr::null_mut(), libc::WNOHANG) == 0 }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // SAFETY: the child is this process's own and not yet waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// Asserts that the file of `make`'s result has pages, and has none after a drop, although children
/// live on.
fn goes<T, E: std::fmt::Display>(make: impl FnOnce() -> Result<T, E>) {
    let before = files();
    let made = match make() {
        Ok(made) => made,
        Err(error) => return println!("skipped: {error}"),
    };
    let mut new = files();
    new.retain(|inode, _| !before.contains_key(inode));
    let files: Vec<File> = new.into_values().collect();
    let [file] = &files[..] else { panic!("{} files", files.len()) };
    let children = [Sleeper::forked(), Sleeper::cloned()];
    assert!(present(file) > Bytes::ZERO);
    drop(made);
    assert!(children.iter().all(Sleeper::lives));
    assert_eq!(present(file), Bytes::ZERO, "still there while children live");
}

#[test]
fn contiguous_memory_that_can_be_mapped_goes() {
    glebe_testing::alone!();
    let _turn = Turn::shared(POOL);
    for source in [Source::Plain, Source::Thp, Source::HUGETLB_2M] {
        goes(|| Contig::options().source(source).mappable().build(Bytes::mib(4)));
    }
}

#[test]
fn a_file_goes_with_its_last_view() {
    glebe_testing::alone!();
    let space = Space::new(Bytes::mib(16)).unwrap();
    goes(|| {
        let file = Arc::new(MemFile::new(Bytes::mib(1))?);
        let view = space.view(&file, &[Extent::new(3, 4).unwrap()])?;
        view.write(Bytes::ZERO, b"kept")?;
        drop(file);
        let mut seen = [0; 4];
        view.read(Bytes::ZERO, &mut seen)?;
        assert_eq!(&seen, b"kept", "lost with the file's own handle");
        Ok::<_, glebe::vmap::Error>(view)
    });
}

#[test]
fn a_child_that_drops_what_it_inherited_takes_nothing_away() {
    glebe_testing::alone!();
    let space = Space::new(Bytes::mib(16)).unwrap();
    let file = Arc::new(MemFile::new(Bytes::mib(1)).unwrap());
    let view = space.view(&file, &[Extent::new(0, 1).unwrap()]).unwrap();
    view.write(Bytes::ZERO, b"kept").unwrap();
    let mut inherited = Some((view, file));
    // SAFETY: the child only drops what it inherited, and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        drop(inherited.take());
        // SAFETY: `_exit` ends only the child.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: `waitpid` writes a local.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0);
    let (view, _file) = inherited.unwrap();
    let mut seen = [0; 4];
    view.read(Bytes::ZERO, &mut seen).unwrap();
    assert_eq!(&seen, b"kept");
}

#[test]
fn an_adopted_file_stays_the_callers() {
    // SAFETY: the name is constant, the descriptor is checked, and only this handle owns it.
    let owned: OwnedFd = unsafe {
        let fd = libc::memfd_create(c"adopted".as_ptr(), libc::MFD_CLOEXEC);
        assert!(fd >= 0);
        std::os::fd::FromRawFd::from_raw_fd(fd)
    };
    let file = File::from(owned);
    std::os::unix::fs::FileExt::write_all_at(&file, b"kept", 0).unwrap();
    file.set_len(page_size().bytes().get()).unwrap();
    drop(MemFile::adopt(file.as_fd().try_clone_to_owned().unwrap()).unwrap());
    assert!(present(&file) > Bytes::ZERO);
    let mut seen = [0; 4];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut seen, 0).unwrap();
    assert_eq!(&seen, b"kept");
}
