//! Wraps std's file calls, each after a fault point. Repeats interrupted reads and writes.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, PermissionsExt};
use std::path::Path;

use crate::error::OsError;
use crate::internal::sys::fault::{point, point_at};
use crate::units::PageSize;

pub fn open(path: &Path, options: &OpenOptions) -> io::Result<File> {
    point_at("open", path)?;
    options.open(path)
}

pub fn read_text(path: &Path) -> io::Result<String> {
    point_at("open", path)?;
    point("read")?;
    fs::read_to_string(path)
}

pub fn read_part(file: &mut File, buf: &mut [u8]) -> io::Result<usize> {
    loop {
        match point("read").and_then(|()| file.read(buf)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

pub fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<()> {
    point("pread")?;
    file.read_exact_at(buf, offset)
}

/// Returns the words at multiples of `stride` bytes, up to the file's end.
pub fn read_words_apart(file: &File, stride: u64) -> io::Result<Vec<u64>> {
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

/// Reads from an offset until `buf` is full or the file ends.
pub fn read_some_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
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

pub fn write(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    point("write")?;
    file.write_all(bytes)
}

pub fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    point("pwrite")?;
    file.write_all_at(bytes, offset)
}

pub fn sync_data(file: &File) -> io::Result<()> {
    point("fdatasync")?;
    file.sync_data()
}

pub fn set_len(file: &File, len: u64) -> io::Result<()> {
    point("ftruncate")?;
    file.set_len(len)
}

pub fn metadata(file: &File) -> io::Result<Metadata> {
    point("fstat")?;
    file.metadata()
}

pub fn metadata_of(path: &Path) -> io::Result<Metadata> {
    point_at("stat", path)?;
    fs::metadata(path)
}

pub fn link_metadata(path: &Path) -> io::Result<Metadata> {
    point_at("stat", path)?;
    fs::symlink_metadata(path)
}

pub fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    point("mkdir")?;
    DirBuilder::new().mode(mode).create(path)
}

pub fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    point("chmod")?;
    fs::set_permissions(path, Permissions::from_mode(mode))
}

pub fn exists(path: &Path) -> io::Result<bool> {
    point_at("stat", path)?;
    fs::exists(path)
}

pub fn names(dir: &Path) -> io::Result<Vec<String>> {
    point_at("open", dir)?;
    let entries = fs::read_dir(dir)?;
    point("readdir")?;
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry?.file_name().into_string());
    }
    Ok(names)
}

/// Removes a file; succeeds if it is missing.
pub fn remove(path: &Path) -> io::Result<()> {
    point("unlink")?;
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    point("rename")?;
    fs::rename(from, to)
}

pub fn text(path: impl AsRef<Path>) -> Result<String, OsError> {
    let path = path.as_ref();
    read_text(path).map_err(|source| OsError::new("read", path.display().to_string(), source))
}

pub fn strange(path: &Path, text: &str) -> OsError {
    let source = io::Error::new(io::ErrorKind::InvalidData, format!("{:?}", text.trim()));
    OsError::new("read", path.display().to_string(), source)
}

pub fn number(path: impl AsRef<Path>) -> Result<u64, OsError> {
    let text = text(&path)?;
    text.trim().parse().map_err(|_| strange(path.as_ref(), &text))
}

/// Returns the bracketed word, as in `always [madvise] never`.
pub fn chosen(path: impl AsRef<Path>) -> Result<String, OsError> {
    let text = text(&path)?;
    let inner = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    let (chosen, _) = inner.ok_or_else(|| strange(path.as_ref(), &text))?;
    Ok(chosen.to_owned())
}

pub fn put(path: impl AsRef<Path>, word: &str) -> Result<(), OsError> {
    let path = path.as_ref();
    let refused = |call, source| OsError::new(call, path.display().to_string(), source);
    let mut file = open(path, OpenOptions::new().write(true).truncate(true))
        .map_err(|source| refused("open", source))?;
    write(&mut file, word.as_bytes()).map_err(|source| refused("write", source))
}

pub fn check_writable(path: &Path) -> Result<(), OsError> {
    let opened = open(path, OpenOptions::new().write(true));
    opened.map(drop).map_err(|source| OsError::new("open", path.display().to_string(), source))
}

/// Returns the page sizes that `hugepages-NkB` directories name, largest first.
pub fn page_sizes(dir: &Path) -> Vec<PageSize> {
    let size = |name: &String| {
        let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        PageSize::new(kib.checked_mul(1 << 10)?)
    };
    let mut sizes: Vec<_> = names(dir).unwrap_or_default().iter().filter_map(size).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes
}
