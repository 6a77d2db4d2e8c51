//! [`Tree`]: the files of a kernel source tree or another directory as pages, one file after the
//! other.
//!
//! A nameless file holds the pages, to save memory. Zeros fill a file's last page. Unit: base
//! pages.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use glebe::page_size;
use glebe::units::Bytes;
use walkdir::{DirEntry, WalkDir};

use crate::pressure::nameless;
use crate::{interrupt, Outcome};

/// Directories to remove one after the other, as in the test of the Linux patch that merged
/// zsmalloc's size classes.
pub(super) const DIRECTORIES: [&str; 9] =
    ["drivers", "arch", "fs", "sound", "include", "net", "Documentation", "kernel", "tools"];

/// A file that only complete kernel sources have.
const MARK: &str = "kernel/fork.c";

pub(super) struct Tree {
    contents: File,
    /// Pages of each file, and the index of its directory in [`DIRECTORIES`].
    pub(super) files: Vec<(Range<usize>, Option<usize>)>,
}

/// Finds kernel sources in `dir`: the last entry by name that is a kernel tree, or `dir` itself.
/// Without a kernel tree in `dir`, searches /usr/src in the same way.
pub(super) fn find(dir: Option<&Path>) -> Option<PathBuf> {
    let is_tree = |path: &PathBuf| path.join(MARK).is_file();
    [dir, Some(Path::new("/usr/src"))].into_iter().flatten().find_map(|dir| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.path()).collect();
        names.push(dir.to_path_buf());
        names.sort();
        names.into_iter().rev().find(is_tree)
    })
}

impl Tree {
    /// Packs every `nth` file by name, up to about `most` pages. Skips files that cannot be opened.
    pub(super) fn pack(dir: &Path, nth: usize, most: usize, scratch: &Path) -> Outcome<Self> {
        let entries = WalkDir::new(dir).sort_by_file_name().into_iter().flatten();
        let paths = entries.filter(|entry| entry.file_type().is_file()).map(DirEntry::into_path);
        let page = page_size().bytes().as_usize();
        let mut out = BufWriter::new(nameless(scratch, Bytes::ZERO)?);
        let (mut files, mut first) = (Vec::new(), 0);
        for path in paths.skip(nth - 1).step_by(nth) {
            interrupt::check();
            let Ok(mut file) = File::open(&path) else { continue };
            let len = io::copy(&mut file, &mut out)? as usize;
            let pages = first..first + len.div_ceil(page);
            out.write_all(&vec![0; pages.len() * page - len])?;
            first = pages.end;
            let goes_with = DIRECTORIES.iter().position(|name| path.starts_with(dir.join(name)));
            if !pages.is_empty() {
                files.push((pages, goes_with));
            }
            if first >= most {
                break;
            }
        }
        if files.is_empty() {
            return Err(format!("{}: no file", dir.display()).into());
        }
        Ok(Self { contents: out.into_inner()?, files })
    }

    pub(super) fn read(&self, nth: usize, page: &mut [u8]) -> io::Result<()> {
        self.contents.read_exact_at(page, nth as u64 * page.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::tempdir;

    #[test]
    fn files_become_pages_in_the_order_of_their_names() {
        let dir = tempdir().unwrap();
        let page = page_size().bytes().as_usize();
        let root = dir.path().join("linux-9");
        assert!(Tree::pack(&root, 1, usize::MAX, dir.path()).is_err());
        for (name, len) in [(MARK, page + 1), ("fs/empty.c", 0), ("arch/b.c", 3), ("COPYING", page)]
        {
            fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
            fs::write(root.join(name), vec![7; len]).unwrap();
        }
        for from in [dir.path(), &root] {
            assert_eq!(find(Some(from)), Some(root.clone()));
        }
        let tree = Tree::pack(&root, 1, usize::MAX, dir.path()).unwrap();
        assert_eq!(tree.files, [(0..1, None), (1..2, Some(1)), (2..4, Some(7))]);
        assert_eq!(Tree::pack(&root, 1, 2, dir.path()).unwrap().files.len(), 2);
        let mut bytes = vec![9; page];
        tree.read(3, &mut bytes).unwrap();
        assert_eq!(bytes[..2], [7, 0]);
        assert!(tree.read(4, &mut bytes).is_err());
    }
}
