//! What is mapped where: the calling process's mappings among a range of addresses.
//!
//! A *VMA* is one entry of `/proc/self/smaps`: addresses that are mapped alike, its header line
//! being that of `/proc/self/maps`. Addresses and lengths are bytes. Names in it may be hostile:
//! the process chose those of files and memory. The kernel shows them with line ends escaped.
//!
//! Cost: the file has no index, so [`among`] reads from the lowest mapping on and stops at the
//! end of the range, and the kernel walks the page tables of all that is read. For adopting memory
//! and for statistics, not for every mark. Source: proc_pid_maps(5), proc_pid_smaps(5),
//! `fs/proc/task_mmu.c`.

mod eligible;

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::Range;
use std::path::Path;

pub use eligible::{classify, classify_shared, classify_watched, shared_at, Refusal, SharedAt};

use crate::error::OsError;
use crate::sys::fault::point;
use crate::sys::file;
use crate::units::Bytes;

const PATH: &str = "/proc/self/smaps";
/// At a time; seq_file fills no more than a page or one entry anyway.
const READ: usize = 16 << 10;
/// A header line holds a path of at most 4 KiB, each byte of which may be escaped as four.
const LINE_MAX: u64 = 32 << 10;

/// One mapping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vma {
    /// First address.
    pub start: usize,
    /// One past the last address.
    pub end: usize,
    /// As shown: `r` or `-`, `w` or `-`, `x` or `-`, then `p`rivate or `s`hared.
    pub permissions: [u8; 4],
    /// Where in the file it begins; zero where there is none.
    pub offset: u64,
    /// The file system of the file mapped, as stat(2) tells it; zero where there is none.
    pub device: u64,
    /// Of the file mapped; zero where there is none.
    pub inode: u64,
    /// Path of the file, or the kernel's or the process's name for the memory; mostly empty.
    pub path: String,
    /// The letter pairs of `VmFlags`, each followed by a space or the end.
    pub flags: String,
    /// Size of the pages that it is made of.
    pub kernel_page: Bytes,
    /// Present.
    pub rss: Bytes,
    /// Present, private and marked by `MADV_FREE`, and not written since.
    pub lazy_free: Bytes,
}

impl Vma {
    /// Whether `VmFlags` has this letter pair.
    #[must_use]
    pub fn has(&self, flag: &str) -> bool {
        self.flags.split_ascii_whitespace().any(|set| set == flag)
    }

    /// Whether writes stay with the process.
    #[must_use]
    pub fn is_private(&self) -> bool {
        self.permissions[3] == b'p'
    }

    /// `7f00-7f10 rw-p 00000000 fe:00 123   /a path`: the path may hold anything but a line end.
    fn header(line: &[u8]) -> Option<Self> {
        let mut fields = line.splitn(6, |byte| *byte == b' ');
        let mut field = || std::str::from_utf8(fields.next()?).ok();
        let (start, end) = field()?.split_once('-')?;
        let (start, end) = (address(start)?, address(end)?);
        let permissions: [u8; 4] = field()?.as_bytes().try_into().ok()?;
        let offset = u64::from_str_radix(field()?, 16).ok()?;
        let device = device(field()?);
        let inode = field()?.parse().ok()?;
        let known = permissions.iter().zip([b"r-", b"w-", b"x-", b"ps"]);
        if start >= end || !known.into_iter().all(|(shown, allowed)| allowed.contains(shown)) {
            return None;
        }
        let path = String::from_utf8_lossy(fields.next().unwrap_or_default());
        let path = path.trim_start_matches(' ').to_owned();
        Some(Self { start, end, permissions, offset, device, inode, path, ..Self::default() })
    }

    /// `Rss:    12 kB`, `VmFlags: rd wr`, and others that nobody here asks for.
    fn field(&mut self, line: &[u8]) -> Option<()> {
        let text = std::str::from_utf8(line).ok()?;
        let (name, value) = text.split_once(':')?;
        let amount = match name {
            "KernelPageSize" => &mut self.kernel_page,
            "Rss" => &mut self.rss,
            "LazyFree" => &mut self.lazy_free,
            "VmFlags" => {
                value.trim().clone_into(&mut self.flags);
                return Some(());
            }
            _ => return Some(()),
        };
        let kib: u64 = value.trim().strip_suffix(" kB")?.parse().ok()?;
        *amount = Bytes::new(kib.checked_mul(1 << 10)?);
        Some(())
    }
}

/// Sums over the mappings of a range; upper bounds, none above its length, where a mapping reaches
/// beyond it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Present.
    pub rss: Bytes,
    /// Present, but the kernel may take it without asking: RSS that is reclaimable.
    pub lazy_free: Bytes,
}

impl Usage {
    fn of(vmas: &[Vma], range: &Range<usize>) -> Self {
        let mut sum = Self::default();
        for vma in vmas {
            let start = vma.start.max(range.start);
            let inside = Bytes::new(vma.end.min(range.end).saturating_sub(start) as u64);
            sum.rss = sum.rss + vma.rss.min(inside);
            sum.lazy_free = sum.lazy_free + vma.lazy_free.min(inside);
        }
        sum
    }
}

/// What is present and reclaimable in a range of the calling process.
///
/// # Errors
/// As [`among`].
pub fn usage(range: &Range<usize>) -> Result<Usage, OsError> {
    Ok(Usage::of(&among(range)?, range))
}

/// The error for a line that is none of `smaps`.
fn malformed(line: &[u8]) -> io::Error {
    const SHOWN_MAX: usize = 80;
    let shown = String::from_utf8_lossy(&line[..line.len().min(SHOWN_MAX)]);
    io::Error::new(io::ErrorKind::InvalidData, format!("not a line of smaps: {shown:?}"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// More may follow that is asked for.
    On,
    /// Nothing that follows is asked for.
    Past,
}

/// Takes the lines of `smaps` one by one.
struct Parser<'a> {
    range: &'a Range<usize>,
    /// Entries so far; the last may lack lines.
    found: Vec<Vma>,
    /// Whether the lines that come belong to the last one found.
    is_inside: bool,
    /// No entry has been seen at all.
    is_start: bool,
}

impl<'a> Parser<'a> {
    fn new(range: &'a Range<usize>) -> Self {
        Self { range, found: Vec::new(), is_inside: false, is_start: true }
    }

    fn line(&mut self, line: &[u8]) -> io::Result<Reading> {
        // A field's name begins with a capital letter, an address never does.
        if line.first().is_some_and(u8::is_ascii_uppercase) {
            if self.is_start {
                return Err(malformed(line));
            }
            if let Some(vma) = self.found.last_mut().filter(|_| self.is_inside) {
                vma.field(line).ok_or_else(|| malformed(line))?;
            }
            return Ok(Reading::On);
        }
        let vma = Vma::header(line).ok_or_else(|| malformed(line))?;
        self.is_start = false;
        if vma.start >= self.range.end {
            return Ok(Reading::Past);
        }
        self.is_inside = vma.end > self.range.start;
        if self.is_inside {
            self.found.push(vma);
        }
        Ok(Reading::On)
    }

    /// Every entry ends with its flags: without them it is cut short.
    fn end(self) -> io::Result<Vec<Vma>> {
        match self.found.iter().find(|vma| vma.flags.is_empty()) {
            Some(vma) => {
                let what = format!("{:x}-{:x} without VmFlags", vma.start, vma.end);
                Err(io::Error::new(io::ErrorKind::InvalidData, what))
            }
            None => Ok(self.found),
        }
    }
}

/// The calling process's mappings that share an address with `range`, in ascending order.
///
/// # Errors
/// If `/proc/self/smaps` cannot be read (a kernel without `CONFIG_PROC_PAGE_MONITOR` has none).
pub fn among(range: &Range<usize>) -> Result<Vec<Vma>, OsError> {
    let refused = |call| move |source| OsError::new(call, PATH, source);
    let file =
        file::open(Path::new(PATH), OpenOptions::new().read(true)).map_err(refused("open"))?;
    // One point for all: each read is like the others.
    let all = point("read").and_then(|()| read(BufReader::with_capacity(READ, file), range));
    all.map_err(refused("read"))
}

/// The entries of `smaps` lines that share an address with `range`, in their order.
fn read(mut lines: impl BufRead, range: &Range<usize>) -> io::Result<Vec<Vma>> {
    let (mut parser, mut line) = (Parser::new(range), Vec::new());
    loop {
        line.clear();
        if (&mut lines).take(LINE_MAX).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        if line.pop() != Some(b'\n') {
            return Err(malformed(&line));
        }
        if parser.line(&line)? == Reading::Past {
            break;
        }
    }
    parser.end()
}

/// As the kernel prints it, two hexadecimal numbers; zero for anything else.
fn device(text: &str) -> u64 {
    let number = |hex| u32::from_str_radix(hex, 16).ok();
    let parts = text.split_once(':');
    let parts = parts.and_then(|(major, minor)| Some((number(major)?, number(minor)?)));
    parts.map_or(0, |(major, minor)| device_of(major, minor))
}

fn device_of(major: u32, minor: u32) -> u64 {
    libc::makedev(major, minor)
}

/// As the kernel prints one: hexadecimal digits and nothing else.
fn address(text: &str) -> Option<usize> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    usize::from_str_radix(text, 16).ok().filter(|_| is_plain)
}

#[cfg(test)]
mod tests;
