//! [`Tree`]: the files of a kernel source tree, or of any other, as pages, one file after the
//! other.
//!
//! From a directory or from a tarball (`linux-*.tar.xz`, as Debian's `linux-source` packages have
//! it), where one is found or named. The pages are packed into a nameless file, so that a run reads
//! them by number and holds none. The last page of a file ends with zeros. Unit: base pages.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};

use glebe::error::OsError;
use glebe::sys::page_size;
use glebe::units::Bytes;
use lzma_rust2::XzReader;

use crate::interrupt;
use crate::pressure::nameless;

/// Removed in this order, as in the patch that merged size classes.
const DIRECTORIES: [&str; 9] =
    ["drivers", "arch", "fs", "sound", "include", "net", "Documentation", "kernel", "tools"];

/// Looked through without being told.
const USUAL: &str = "/usr/src";

/// What only whole sources have.
const MARK: &str = "kernel/fork.c";

/// Of a tree that is no kernel's so many equal parts go, and one more stays.
const PARTS: usize = DIRECTORIES.len();

/// Where files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Unpacked.
    Directory(PathBuf),
    /// Packed.
    Tarball(PathBuf),
}

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
    entries: Vec<Entry>,
    is_kernel: bool,
}

impl Place {
    /// The directory or tarball of that name, whatever is in it.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn named(path: &Path) -> io::Result<Self> {
        let is_dir = fs::metadata(path)?.is_dir();
        Ok(if is_dir { Self::Directory(path.into()) } else { Self::Tarball(path.into()) })
    }

    /// The first place below `dir`, or else below the usual one, that has sources; directories
    /// before tarballs, the last name first.
    pub(super) fn find(dir: Option<&Path>) -> Option<Self> {
        [dir, Some(Path::new(USUAL))].into_iter().flatten().find_map(Self::below)
    }

    fn below(dir: &Path) -> Option<Self> {
        let is_tree = |path: &PathBuf| path.join(MARK).is_file();
        let own = Some(dir.to_path_buf()).filter(is_tree).map(Self::Directory);
        let mut names: Vec<_> =
            fs::read_dir(dir).ok()?.flatten().map(|entry| entry.path()).collect();
        names.sort_by(|a, b| b.cmp(a));
        let tree = || names.iter().find(|path| is_tree(path)).cloned().map(Self::Directory);
        let packed = |path: &&PathBuf| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            name.is_some_and(|name| name.starts_with("linux-") && name.ends_with(".tar.xz"))
        };
        let tarball = || names.iter().find(packed).cloned().map(Self::Tarball);
        own.or_else(tree).or_else(tarball)
    }

    /// Its name.
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Directory(path) | Self::Tarball(path) => path,
        }
    }
}

impl Tree {
    /// Packs every `nth` file of `place` into a file in `scratch`.
    ///
    /// # Errors
    /// What the file system refuses, or a tarball that is none.
    pub(super) fn pack(place: &Place, nth: usize, scratch: &Path) -> Result<Self, OsError> {
        let failed = |e| OsError::new("read", place.path().display().to_string(), e);
        let mut packer = Packer::new(nameless(scratch, Bytes::ZERO)?, nth);
        match place {
            Place::Directory(dir) => packer.walk(dir, dir),
            Place::Tarball(path) => File::open(path).and_then(|file| packer.unpack(file)),
        }
        .map_err(failed)?;
        packer.finish().map_err(failed)
    }

    /// The files, in the order of their pages.
    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
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

struct Packer {
    out: BufWriter<File>,
    nth: usize,
    seen: usize,
    pages: usize,
    entries: Vec<Entry>,
    is_kernel: bool,
}

impl Packer {
    fn new(file: File, nth: usize) -> Self {
        let (out, entries) = (BufWriter::new(file), Vec::new());
        Self { out, nth, seen: 0, pages: 0, entries, is_kernel: false }
    }

    /// Adds a file if it is one of those to take.
    fn add(&mut self, name: &Path, contents: &mut dyn Read) -> io::Result<()> {
        interrupt::check();
        self.seen += 1;
        self.is_kernel |= name == Path::new(MARK);
        if self.seen % self.nth != 0 {
            return Ok(());
        }
        let page = page_size().bytes().as_usize();
        let len = io::copy(contents, &mut self.out)? as usize;
        let pages = len.div_ceil(page);
        self.out.write_all(&vec![0; pages * page - len])?;
        if pages > 0 {
            let first = self.pages;
            self.entries.push(Entry { first, pages, goes: directory(name) });
            self.pages += pages;
        }
        Ok(())
    }

    fn walk(&mut self, root: &Path, dir: &Path) -> io::Result<()> {
        let mut entries = fs::read_dir(dir)?.collect::<io::Result<Vec<_>>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let (path, kind) = (entry.path(), entry.file_type()?);
            if kind.is_dir() {
                self.walk(root, &path)?;
            } else if kind.is_file() {
                let name = path.strip_prefix(root).unwrap_or(&path);
                self.add(name, &mut File::open(&path)?)?;
            }
        }
        Ok(())
    }

    fn unpack(&mut self, file: File) -> io::Result<()> {
        self.add_all(&mut XzReader::new(BufReader::new(file), false))
    }

    fn add_all(&mut self, archive: &mut dyn Read) -> io::Result<()> {
        let mut archive = tar::Archive::new(archive);
        for entry in archive.entries()? {
            let mut entry = entry?;
            if entry.header().entry_type().is_file() {
                // Below one directory that has the name of the release.
                let name: PathBuf = entry.path()?.components().skip(1).collect();
                self.add(&name, &mut entry)?;
            }
        }
        Ok(())
    }

    fn finish(mut self) -> io::Result<Tree> {
        if self.entries.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if !self.is_kernel {
            for entry in &mut self.entries {
                let part = entry.first * (PARTS + 1) / self.pages;
                entry.goes = Some(part).filter(|part| *part < PARTS);
            }
        }
        let pages = self.out.into_inner().map_err(io::IntoInnerError::into_error)?;
        Ok(Tree { pages, entries: self.entries, is_kernel: self.is_kernel })
    }
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

    #[test]
    fn files_become_pages_in_the_order_of_their_names() {
        let dir = tempdir().unwrap();
        let page = page_size().bytes().as_usize();
        let root = dir.path().join("linux-9");
        for (name, len) in
            [("kernel/fork.c", page + 1), ("fs/empty.c", 0), ("arch/b.c", 3), ("COPYING", page)]
        {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, vec![name.len() as u8; len]).unwrap();
        }
        fs::write(dir.path().join("linux-8.tar.xz"), "").unwrap();
        let place = Place::find(Some(dir.path())).unwrap();
        assert_eq!(place, Place::Directory(root.clone()));
        assert_eq!(Place::find(Some(&root)), Some(place.clone()));

        let tree = Tree::pack(&place, 1, dir.path()).unwrap();
        let entry = |first, pages, goes| Entry { first, pages, goes };
        let expected = [entry(0, 1, None), entry(1, 1, Some(1)), entry(2, 2, Some(7))];
        assert_eq!(tree.entries(), expected);
        let mut bytes = vec![9; page];
        tree.read(3, &mut bytes).unwrap();
        assert_eq!((bytes[0], bytes[1]), ("kernel/fork.c".len() as u8, 0));
        assert!(tree.read(4, &mut bytes).is_err());

        assert_eq!(tree.removals(), DIRECTORIES);

        fs::remove_file(root.join(MARK)).unwrap();
        let packed = Place::find(Some(dir.path())).unwrap();
        assert_eq!(packed, Place::Tarball(dir.path().join("linux-8.tar.xz")));
        assert!(Tree::pack(&packed, 1, dir.path()).is_err(), "an empty file is no archive");
    }

    #[test]
    fn a_tarball_is_read_below_its_one_directory() {
        let mut archive = tar::Builder::new(Vec::new());
        for name in ["linux-9/drivers/a.c", "linux-9/kernel/fork.c", "linux-9/Makefile"] {
            let mut header = tar::Header::new_gnu();
            header.set_size(3);
            header.set_cksum();
            archive.append_data(&mut header, name, &b"abc"[..]).unwrap();
        }
        // Uncompressed, as what an xz reader gives.
        let bytes = archive.into_inner().unwrap();
        let dir = tempdir().unwrap();
        let mut packer = Packer::new(nameless(dir.path(), Bytes::ZERO).unwrap(), 1);
        packer.add_all(&mut &bytes[..]).unwrap();
        let tree = packer.finish().unwrap();
        let goes: Vec<_> = tree.entries().iter().map(|entry| entry.goes).collect();
        assert_eq!(goes, [Some(0), Some(7), None]);
    }

    #[test]
    fn any_directory_is_a_tree_of_which_a_tenth_stays() {
        let dir = tempdir().unwrap();
        write_files(dir.path(), 40);
        let root = dir.path().join("any");
        let place = Place::named(&root).unwrap();
        let tree = Tree::pack(&place, 1, dir.path()).unwrap();
        assert_eq!((tree.entries().len(), tree.removals().len()), (40, PARTS));
        for part in 0..PARTS {
            let goes = tree.entries().iter().filter(|entry| entry.goes == Some(part));
            assert_eq!(goes.map(|entry| entry.pages).sum::<usize>(), 4, "part {part}");
        }
        assert_eq!(tree.entries().iter().filter(|entry| entry.goes.is_none()).count(), 4);
        let file = Place::named(&root.join("d0/0"));
        assert!(matches!(file, Ok(Place::Tarball(_))), "{file:?}");
        assert!(Place::named(&root.join("none")).is_err());
    }

    /// Makes so many files of a page, some to a directory.
    fn write_files(dir: &Path, files: usize) {
        for file in 0..files {
            let dir = dir.join(format!("any/d{}", file / 7));
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join(file.to_string()), [file as u8]).unwrap();
        }
    }
}
