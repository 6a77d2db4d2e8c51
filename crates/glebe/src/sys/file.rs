//! Files of `/proc`, `/sys`, the lock's directory and the sockets': every call on one passes here.
//!
//! Thin: what std does, with a fault point before each call. A call that a signal interrupts is
//! made again, by std or here.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, PermissionsExt};
use std::path::Path;

use super::fault::{point, point_at};
use crate::error::OsError;
use crate::units::PageSize;

/// Opens with `options`.
pub(crate) fn open(path: &Path, options: &OpenOptions) -> io::Result<File> {
    point_at("open", path)?;
    options.open(path)
}

/// All of a file, which is text.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    point_at("open", path)?;
    point("read")?;
    fs::read_to_string(path)
}

/// Some bytes of an open file, from where it stands; none at its end.
pub(crate) fn read_part(file: &mut File, buf: &mut [u8]) -> io::Result<usize> {
    loop {
        match point("read").and_then(|()| file.read(buf)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// As many bytes as `buf` has, from an offset.
pub(crate) fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<()> {
    point("pread")?;
    file.read_exact_at(buf, offset)
}

/// The word at every `stride`-th byte, up to the end. One call in the eyes of a test that has calls
/// fail: there are thousands, and all are alike.
pub(crate) fn read_words_apart(file: &File, stride: u64) -> io::Result<Vec<u64>> {
    point("pread")?;
    let mut words = Vec::new();
    loop {
        let mut word = [0; size_of::<u64>()];
        match file.read_at(&mut word, words.len() as u64 * stride) {
            Ok(read) if read == word.len() => words.push(u64::from_ne_bytes(word)),
            Ok(_) => return Ok(words),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Up to as many bytes as `buf` has, from an offset; fewer at the end alone.
pub(crate) fn read_some_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        point("pread")?;
        match file.read_at(&mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Writes all of `bytes`, in one call where the kernel takes them.
pub(crate) fn write(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    point("write")?;
    file.write_all(bytes)
}

/// Writes all of `bytes` at an offset, in one call where the kernel takes them.
pub(crate) fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    point("pwrite")?;
    file.write_all_at(bytes, offset)
}

/// Waits until the bytes of a file are on the device.
pub(crate) fn sync_data(file: &File) -> io::Result<()> {
    point("fdatasync")?;
    file.sync_data()
}

/// Sets a file's length.
pub(crate) fn set_len(file: &File, len: u64) -> io::Result<()> {
    point("ftruncate")?;
    file.set_len(len)
}

/// What an open file is.
pub(crate) fn metadata(file: &File) -> io::Result<Metadata> {
    point("fstat")?;
    file.metadata()
}

/// What `path` is, links followed.
pub(crate) fn metadata_of(path: &Path) -> io::Result<Metadata> {
    point_at("stat", path)?;
    fs::metadata(path)
}

/// Metadata of a path, of the link itself where it is one.
pub(crate) fn link_metadata(path: &Path) -> io::Result<Metadata> {
    point_at("stat", path)?;
    fs::symlink_metadata(path)
}

/// Makes a directory of this mode.
pub(crate) fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    point("mkdir")?;
    DirBuilder::new().mode(mode).create(path)
}

/// Sets a file's mode.
pub(crate) fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    point("chmod")?;
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Whether something is at `path`.
pub(crate) fn exists(path: &Path) -> io::Result<bool> {
    point_at("stat", path)?;
    fs::exists(path)
}

/// The names in a directory that are text.
pub(crate) fn names(dir: &Path) -> io::Result<Vec<String>> {
    point_at("open", dir)?;
    let entries = fs::read_dir(dir)?;
    point("readdir")?;
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry?.file_name().into_string());
    }
    Ok(names)
}

/// Removes a file; none is no error.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    point("unlink")?;
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Puts `from` in the place of `to`.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    point("rename")?;
    fs::rename(from, to)
}

/// All of a text file of the kernel's.
pub(crate) fn text(path: impl AsRef<Path>) -> Result<String, OsError> {
    let path = path.as_ref();
    read_text(path).map_err(|source| OsError::new("read", path.display().to_string(), source))
}

/// That the text of a file is none that it should have.
pub(crate) fn strange(path: &Path, text: &str) -> OsError {
    let source = io::Error::new(io::ErrorKind::InvalidData, format!("{:?}", text.trim()));
    OsError::new("read", path.display().to_string(), source)
}

/// The number that a file holds and nothing else.
pub(crate) fn number(path: impl AsRef<Path>) -> Result<u64, OsError> {
    let text = text(&path)?;
    text.trim().parse().map_err(|_| strange(path.as_ref(), &text))
}

/// The choice in brackets of a file such as `always [madvise] never`.
pub(crate) fn chosen(path: impl AsRef<Path>) -> Result<String, OsError> {
    let text = text(&path)?;
    let inner = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    let (chosen, _) = inner.ok_or_else(|| strange(path.as_ref(), &text))?;
    Ok(chosen.to_owned())
}

/// Writes one word to a file of the kernel's, in one call.
pub(crate) fn put(path: impl AsRef<Path>, word: &str) -> Result<(), OsError> {
    let path = path.as_ref();
    let refused = |call, source| OsError::new(call, path.display().to_string(), source);
    let mut file = open(path, OpenOptions::new().write(true).truncate(true))
        .map_err(|source| refused("open", source))?;
    write(&mut file, word.as_bytes()).map_err(|source| refused("write", source))
}

/// Whether a file may be opened for writing, which writes nothing.
pub(crate) fn check_writable(path: &Path) -> Result<(), OsError> {
    let opened = open(path, OpenOptions::new().write(true));
    opened.map(drop).map_err(|source| OsError::new("open", path.display().to_string(), source))
}

/// The sizes that the `hugepages-NkB` directories below `dir` name, largest first.
pub(crate) fn page_sizes(dir: &Path) -> Vec<PageSize> {
    let size = |name: &String| {
        let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        PageSize::new(kib.checked_mul(1 << 10)?)
    };
    let mut sizes: Vec<_> = names(dir).unwrap_or_default().iter().filter_map(size).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes
}
