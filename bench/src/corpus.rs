//! [`Corpus`]: real files, read page by page at the price a program without a cache would pay.
//!
//! Files below one directory, the same ones in the same order each time, up to a number of bytes.
//! A page is read by one of two paths: *direct*, a `pread` with `O_DIRECT`, which the page cache
//! does not make cheaper; or *decompress*, from a copy of the file that was deflated page by page
//! into ordinary memory at the start, as programs keep tiles and database pages. One page is one
//! block there, so that a reader never pays for bytes it did not ask for.
//!
//! To check a cache, each page's hash is kept from its first read. A file that is seen to change is
//! excluded from then on: its pages are neither right nor wrong. Seen means: fewer or more bytes
//! than at first, another hash, or on a mismatch another size or time of change.
//!
//! Units: base pages (index within a file), bytes. Cost: a system call and the device, or one
//! inflate of a page. No lock; any number of threads. It does not know what the host of a virtual
//! machine caches below the device.

mod direct;
mod hash;
mod packed;
mod walk;

use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::Mutex;

use glebe::error::OsError;
use glebe::sys::page_size;
use glebe::units::{Bytes, Pages};

use packed::Packed;
use walk::Candidate;

/// Directories that Linux machines have, tried in this order.
const DEFAULT_DIRS: [&str; 4] = ["/usr/lib", "/usr/share", "/usr", "/etc"];

/// Most files kept; of a direct corpus also at most half the descriptors this process may open.
const FILES_MAX: usize = 4096;

/// How pages are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPath {
    /// Direct where the directory allows it, else decompress.
    Auto,
    /// From the device; a file whose file system refuses that is decompressed.
    Direct,
    /// From deflated copies in memory.
    Decompress,
}

/// Names a page for a cache: the same page of the same file has the same key in every run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageKey {
    /// Device number of the file system.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Page within the file.
    pub index: u64,
}

/// What comparing bytes with a file's page gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// They are the page's bytes.
    Same,
    /// The file has changed, so nothing can be said; it is excluded from now on.
    Changed,
    /// The file has not changed, and these are not its bytes.
    Wrong,
}

/// Why there is no corpus.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CorpusError {
    /// Nothing there, or nothing that may be read.
    #[error("no file with contents that can be read below {dirs}")]
    Empty {
        /// Where it was looked for.
        dirs: String,
    },
    /// The kernel refused the directory itself.
    #[error(transparent)]
    Os(#[from] OsError),
}

/// A set of files to read pages from.
#[derive(Debug)]
pub struct Corpus {
    dir: PathBuf,
    files: Vec<CorpusFile>,
}

/// One file of a corpus, as it was when chosen.
#[derive(Debug)]
pub struct CorpusFile {
    path: PathBuf,
    stamp: Stamp,
    pages: u64,
    source: Source,
    /// By page; 0 is not read yet.
    hashes: Vec<AtomicU64>,
    excluded: AtomicBool,
}

#[derive(Debug)]
enum Source {
    Direct(File),
    Packed(Packed),
}

/// What tells that a file is the one it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    len: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(meta: &Metadata) -> Self {
        Self {
            device: meta.dev(),
            inode: meta.ino(),
            len: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }
}

impl Corpus {
    /// Chooses files below `dir`, or below the first directory of a short list that has any, up to
    /// `cap`; the last file is cut to fit. Of too many files the largest are taken. Symbolic links
    /// are not followed and other file systems not entered; what cannot be read is passed over.
    /// In the decompress path this reads and deflates all of it, on every processor.
    ///
    /// # Errors
    /// If `dir` cannot be listed, or no readable file with contents was found.
    pub fn open(dir: Option<&Path>, mode: ReadPath, cap: Bytes) -> Result<Self, CorpusError> {
        if let Some(dir) = dir {
            let corpus = Self::below(dir, mode, cap)?;
            return corpus.ok_or_else(|| CorpusError::Empty { dirs: dir.display().to_string() });
        }
        for dir in DEFAULT_DIRS {
            if let Ok(Some(corpus)) = Self::below(Path::new(dir), mode, cap) {
                return Ok(corpus);
            }
        }
        Err(CorpusError::Empty { dirs: DEFAULT_DIRS.join(", ") })
    }

    /// `None` if no file can be read.
    fn below(dir: &Path, mode: ReadPath, cap: Bytes) -> Result<Option<Self>, OsError> {
        let failed = |e| OsError::new("read", dir.display().to_string(), e);
        let dir = dir.canonicalize().map_err(failed)?;
        let found = walk::files(&dir).map_err(failed)?;
        let direct = match mode {
            ReadPath::Direct => true,
            ReadPath::Decompress => false,
            ReadPath::Auto => found.iter().find_map(|c| direct::works(&c.path)).unwrap_or(false),
        };
        let most = if direct { FILES_MAX.min(direct::files_max()) } else { FILES_MAX };
        let chosen = walk::choose(found, most, cap.pages_down(page_size()).get());
        let files = open_all(&chosen, direct);
        Ok((!files.is_empty()).then_some(Self { dir, files }))
    }

    /// The files, in the order of their paths.
    #[must_use]
    pub fn files(&self) -> &[CorpusFile] {
        &self.files
    }

    /// The directory below which they lie.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Pages of all files together.
    #[must_use]
    pub fn pages(&self) -> Pages {
        Pages::new(self.files.iter().map(|file| file.pages).sum())
    }

    /// Files that were seen to change.
    #[must_use]
    pub fn excluded(&self) -> usize {
        self.files.iter().filter(|file| file.is_excluded()).count()
    }

    /// The key of page `index` of file number `file`.
    #[must_use]
    pub fn key(&self, file: usize, index: u64) -> Option<PageKey> {
        let file = self.files.get(file).filter(|file| index < file.pages)?;
        Some(PageKey { device: file.stamp.device, inode: file.stamp.inode, index })
    }

    /// Reads page `index` of file number `file` into `page` by the file's read path and gives the
    /// number of bytes the file has there; the rest of the page is zero.
    ///
    /// # Errors
    /// `InvalidInput` if there is no such page or `page` is not one page long; whatever the read
    /// gives; and an error of its own if the file has changed, which then [is excluded].
    ///
    /// [is excluded]: CorpusFile::is_excluded
    pub fn read_page(&self, file: usize, index: u64, page: &mut [u8]) -> io::Result<usize> {
        let file = self.page_of(file, index, page.len())?;
        let len = file.read(index, page)?;
        let seen = hash::of(page);
        let known = &file.hashes[index as usize];
        match known.compare_exchange(0, seen, Ordering::AcqRel, Ordering::Acquire) {
            Err(before) if before != seen => Err(file.exclude()),
            _ => Ok(len),
        }
    }

    /// Compares `page`, whole and with its zeros, with page `index` of file number `file`. Costs a
    /// hash of the page, and a read of the file on a mismatch or where it was never read.
    ///
    /// # Errors
    /// As [`Corpus::read_page`], but a change is no error.
    pub fn check_page(&self, file: usize, index: u64, page: &[u8]) -> io::Result<Check> {
        let entry = self.page_of(file, index, page.len());
        let entry = match entry {
            Err(_) if self.files.get(file).is_some_and(CorpusFile::is_excluded) => {
                return Ok(Check::Changed)
            }
            other => other?,
        };
        if entry.hashes[index as usize].load(Ordering::Acquire) == hash::of(page) {
            return Ok(Check::Same);
        }
        if entry.has_changed() {
            entry.exclude();
            return Ok(Check::Changed);
        }
        let mut fresh = vec![0; page.len()];
        match self.read_page(file, index, &mut fresh) {
            Ok(_) if fresh == page => Ok(Check::Same),
            Ok(_) => Ok(Check::Wrong),
            Err(_) if entry.is_excluded() => Ok(Check::Changed),
            Err(e) => Err(e),
        }
    }

    fn page_of(&self, file: usize, index: u64, len: usize) -> io::Result<&CorpusFile> {
        let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
        let page = page_size().bytes().get() as usize;
        if len != page {
            return Err(wrong(format!("a buffer of {len} bytes for a page of {page}")));
        }
        let count = self.files.len();
        let file = self.files.get(file).ok_or_else(|| wrong(format!("file {file} of {count}")))?;
        if index >= file.pages {
            return Err(wrong(format!("page {index} of {}: {}", file.pages, file.path.display())));
        }
        match file.is_excluded() {
            true => Err(file.changed()),
            false => Ok(file),
        }
    }
}

impl fmt::Display for Corpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direct = self.files.iter().filter(|file| file.is_direct()).count();
        let bytes = self.pages().bytes(page_size());
        let count = self.files.len();
        let files = if count == 1 { "file" } else { "files" };
        write!(f, "{count} {files}, {bytes} of {}: ", self.dir.display())?;
        match (direct, count - direct) {
            (0, _) => write!(f, "inflated from memory, a page at a time"),
            (_, 0) => write!(f, "read from the device (O_DIRECT)"),
            (_, rest) => write!(f, "{direct} read from the device, {rest} inflated from memory"),
        }
    }
}

impl CorpusFile {
    /// Where it was found.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Pages that can be read.
    #[must_use]
    pub fn pages(&self) -> Pages {
        Pages::new(self.pages)
    }

    /// Whether it is read from the device.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        matches!(self.source, Source::Direct(_))
    }

    /// Whether it was seen to change and is to be left alone.
    #[must_use]
    pub fn is_excluded(&self) -> bool {
        self.excluded.load(Ordering::Acquire)
    }

    /// Opens what was found, or skips it: it may be gone, replaced or forbidden by now.
    fn open(candidate: &Candidate, direct: bool) -> io::Result<Self> {
        let plain = direct::open(&candidate.path, false)?;
        let stamp = Stamp::of(&plain.metadata()?);
        let page = page_size().bytes();
        let pages = Bytes::new(stamp.len).pages_up(page_size()).get().min(candidate.pages);
        if pages == 0 || stamp.len > u64::MAX - page.get() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let opened = if direct { direct::open_probed(&candidate.path, &stamp).ok() } else { None };
        let source = match opened {
            Some(file) => Source::Direct(file),
            None => Source::Packed(Packed::of(&plain, stamp.len, pages)?),
        };
        // Deflated while it was written to: neither the old contents nor the new.
        if Stamp::of(&plain.metadata()?) != stamp {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Self {
            path: candidate.path.clone(),
            stamp,
            pages,
            source,
            hashes: (0..pages).map(|_| AtomicU64::new(0)).collect(),
            excluded: AtomicBool::new(false),
        })
    }

    /// The page's bytes and how many of them are the file's.
    fn read(&self, index: u64, page: &mut [u8]) -> io::Result<usize> {
        let start = index * page.len() as u64;
        let expected = (self.stamp.len - start).min(page.len() as u64) as usize;
        match &self.source {
            Source::Packed(packed) => packed.read(index, page)?,
            Source::Direct(file) => {
                let len = direct::read(file, start, page)?;
                page[len..].fill(0);
                if len != expected {
                    return Err(self.exclude());
                }
            }
        }
        Ok(expected)
    }

    /// A deflated copy cannot change.
    fn has_changed(&self) -> bool {
        match &self.source {
            Source::Packed(_) => false,
            Source::Direct(file) => file.metadata().map_or(true, |m| Stamp::of(&m) != self.stamp),
        }
    }

    fn exclude(&self) -> io::Error {
        self.excluded.store(true, Ordering::Release);
        self.changed()
    }

    fn changed(&self) -> io::Error {
        io::Error::other(format!("{} has changed since it was chosen", self.path.display()))
    }
}

/// Opens the chosen files on every processor; those that cannot be opened are left out.
fn open_all(chosen: &[Candidate], direct: bool) -> Vec<CorpusFile> {
    let next = AtomicUsize::new(0);
    let opened = Mutex::new(Vec::with_capacity(chosen.len()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(chosen.len());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(candidate) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Ok(file) = CorpusFile::open(candidate, direct) {
                        opened.lock().unwrap_or_else(|e| e.into_inner()).push(file);
                    }
                }
            });
        }
    });
    let mut files = opened.into_inner().unwrap_or_else(|e| e.into_inner());
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

#[cfg(test)]
mod tests;
