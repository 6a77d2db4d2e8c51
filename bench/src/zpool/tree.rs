//! [`Tree`]: the files of a kernel source tree, or of any other directory, as pages, one file after
//! the other.
//!
//! The pages are packed into a nameless file, so that a run reads them by number and holds none.
//! The last page of a file ends with zeros. Unit: base pages.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};

use glebe::error::OsError;
use glebe::sys::page_size;
use glebe::units::Bytes;

use crate::interrupt;
use crate::pressure::nameless;

/// Removed in this order, as in the patch that merged size classes.
const DIRECTORIES: [&str; 9] =
    ["drivers", "arch", "fs", "sound", "include", "net", "Documentation", "kernel", "tools"];

/// Looked through without being told.
const USUAL: &str = "/usr/src";

/// What only whole sources of a kernel have.
const MARK: &str = "kernel/fork.c";

/// Of a tree that is no kernel's so many equal parts go, and one more stays.
const PARTS: usize = DIRECTORIES.len();

/// A file of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its first page.
    pub(super) first: usize,
    /// How many it has, never 0.
    pub(super) pages: usize,
    /// Which of those that go it goes with.
    pub(super) goes: Option<usize>,
}

/// All files.
#[derive(Debug)]
pub(super) struct Tree {
    pages: File,
    /// In the order of their pages.
    pub(super) entries: Vec<Entry>,
    is_kernel: bool,
}

/// Kernel sources: `dir` itself or what lies in it, or else in the usual place; the last name
/// first.
pub(super) fn find(dir: Option<&Path>) -> Option<PathBuf> {
    let is_tree = |path: &PathBuf| path.join(MARK).is_file();
    [dir, Some(Path::new(USUAL))].into_iter().flatten().find_map(|dir| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.path()).collect();
        names.push(dir.to_path_buf());
        names.sort();
        names.into_iter().rev().find(is_tree)
    })
}

impl Tree {
    /// Packs every `nth` file of `dir` into a file in `scratch`.
    pub(super) fn pack(dir: &Path, nth: usize, scratch: &Path) -> Result<Self, OsError> {
        let failed = |e| OsError::new("read", dir.display().to_string(), e);
        let mut paths = Vec::new();
        list(dir, &mut paths).map_err(failed)?;
        let out = nameless(scratch, Bytes::ZERO)?;
        Self::of(dir, paths.into_iter().skip(nth - 1).step_by(nth), out).map_err(failed)
    }

    fn of(dir: &Path, paths: impl Iterator<Item = PathBuf>, out: File) -> io::Result<Self> {
        let page = page_size().bytes().as_usize();
        let (mut out, mut entries, mut first) = (BufWriter::new(out), Vec::new(), 0);
        for path in paths {
            interrupt::check();
            let len = io::copy(&mut File::open(&path)?, &mut out)? as usize;
            let pages = len.div_ceil(page);
            out.write_all(&vec![0; pages * page - len])?;
            if pages > 0 {
                let goes = directory(path.strip_prefix(dir).unwrap_or(&path));
                entries.push(Entry { first, pages, goes });
                first += pages;
            }
        }
        if entries.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let is_kernel = dir.join(MARK).is_file();
        for entry in entries.iter_mut().filter(|_| !is_kernel) {
            entry.goes = Some(entry.first * (PARTS + 1) / first).filter(|part| *part < PARTS);
        }
        let pages = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        Ok(Self { pages, entries, is_kernel })
    }

    /// What goes, one after the other: the patch's directories of a kernel, of any other tree what
    /// lies side by side.
    pub(super) fn removals(&self) -> Vec<String> {
        match self.is_kernel {
            true => DIRECTORIES.map(str::to_owned).into(),
            false => (1..=PARTS).map(|part| format!("part {part}")).collect(),
        }
    }

    /// Reads a page.
    pub(super) fn read(&self, nth: usize, page: &mut [u8]) -> io::Result<()> {
        self.pages.read_exact_at(page, nth as u64 * page.len() as u64)
    }
}

/// All files below `dir`, in the order of their names.
fn list(dir: &Path, paths: &mut Vec<PathBuf>) -> io::Result<()> {
    let mut entries = fs::read_dir(dir)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let kind = entry.file_type()?;
        if kind.is_dir() {
            list(&entry.path(), paths)?;
        } else if kind.is_file() {
            paths.push(entry.path());
        }
    }
    Ok(())
}

/// Which of the patch's directories a file is in.
fn directory(name: &Path) -> Option<usize> {
    let Component::Normal(top) = name.components().next()? else { return None };
    DIRECTORIES.iter().position(|dir| *dir == top)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::tempdir;

    fn write(path: &Path, len: usize) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, vec![7; len]).unwrap();
    }

    #[test]
    fn files_become_pages_in_the_order_of_their_names() {
        let dir = tempdir().unwrap();
        let page = page_size().bytes().as_usize();
        let root = dir.path().join("linux-9");
        for (name, len) in [(MARK, page + 1), ("fs/empty.c", 0), ("arch/b.c", 3), ("COPYING", page)]
        {
            write(&root.join(name), len);
        }
        for from in [dir.path(), &root] {
            assert_eq!(find(Some(from)), Some(root.clone()));
        }
        let tree = Tree::pack(&root, 1, dir.path()).unwrap();
        let entry = |first, pages, goes| Entry { first, pages, goes };
        assert_eq!(tree.entries, [entry(0, 1, None), entry(1, 1, Some(1)), entry(2, 2, Some(7))]);
        assert_eq!(tree.removals(), DIRECTORIES);
        let mut bytes = vec![9; page];
        tree.read(3, &mut bytes).unwrap();
        assert_eq!(bytes[..2], [7, 0]);
        assert!(tree.read(4, &mut bytes).is_err());
    }

    #[test]
    fn any_directory_is_a_tree_of_which_a_tenth_stays() {
        let dir = tempdir().unwrap();
        (0..40).for_each(|file| write(&dir.path().join(format!("{}/{file}", file / 7)), 1));
        let tree = Tree::pack(dir.path(), 1, dir.path()).unwrap();
        assert_eq!((tree.entries.len(), tree.removals().len()), (40, PARTS));
        for part in (0..PARTS).map(Some).chain([None]) {
            assert_eq!(tree.entries.iter().filter(|entry| entry.goes == part).count(), 4);
        }
        let empty = tempdir().unwrap();
        for none in [dir.path().join("none"), empty.path().to_path_buf()] {
            assert!(Tree::pack(&none, 1, dir.path()).is_err());
        }
    }
}
