//! [`among`] returns the calling process's mappings in a range of addresses.
//!
//! A *VMA* is one entry of `/proc/self/smaps`; its header is a line of `/proc/self/maps`. Names may
//! contain anything, but the kernel escapes line ends.
//!
//! Cost: the kernel walks the page tables from the lowest mapping to the end of the range. Source:
//! proc_pid_maps(5), proc_pid_smaps(5).

mod eligible;

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::Range;
use std::path::Path;

pub use eligible::{classify, classify_shared, classify_watched, shared_at, Refusal, SharedAt};

use crate::error::OsError;
use crate::internal::sys::fault::point;
use crate::internal::sys::files::file;
use crate::units::Bytes;

const PATH: &str = "/proc/self/smaps";
const READ: usize = 16 << 10;
/// Longest accepted line in bytes. A path has at most 4 KiB, each byte escaped as up to four.
const LINE_MAX: u64 = 32 << 10;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vma {
    pub start: usize,
    pub end: usize,
    /// `r` or `-`, `w` or `-`, `x` or `-`, then `p`rivate or `s`hared.
    pub permissions: [u8; 4],
    pub offset: u64,
    /// Device as in stat(2); zero without a file.
    pub device: u64,
    pub inode: u64,
    /// Path of the file, or a name for the memory.
    pub path: String,
    /// `VmFlags`: letter pairs with spaces between them.
    pub flags: String,
    pub kernel_page: Bytes,
    pub rss: Bytes,
    /// Present memory marked by `MADV_FREE` and not written since.
    pub lazy_free: Bytes,
}

impl Vma {
    #[must_use]
    pub fn has(&self, flag: &str) -> bool {
        self.flags.split_ascii_whitespace().any(|set| set == flag)
    }

    #[must_use]
    pub fn is_private(&self) -> bool {
        self.permissions[3] == b'p'
    }

    /// Parses `7f00-7f10 rw-p 00000000 fe:00 123   /a path`.
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

    /// Parses fields such as `Rss: 12 kB`; skips those that [`Vma`] lacks.
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

/// Sums over the mappings of a range; upper bounds if a mapping reaches beyond the range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeUsage {
    pub rss: Bytes,
    pub lazy_free: Bytes,
}

impl RangeUsage {
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

pub fn usage(range: &Range<usize>) -> Result<RangeUsage, OsError> {
    Ok(RangeUsage::of(&among(range)?, range))
}

fn malformed(line: &[u8]) -> io::Error {
    const SHOWN_MAX: usize = 80;
    let shown = String::from_utf8_lossy(&line[..line.len().min(SHOWN_MAX)]);
    io::Error::new(io::ErrorKind::InvalidData, format!("not a line of smaps: {shown:?}"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    On,
    Past,
}

struct Parser<'a> {
    range: &'a Range<usize>,
    /// The last entry may be incomplete.
    found: Vec<Vma>,
    is_inside: bool,
    is_start: bool,
}

impl<'a> Parser<'a> {
    fn new(range: &'a Range<usize>) -> Self {
        Self { range, found: Vec::new(), is_inside: false, is_start: true }
    }

    fn line(&mut self, line: &[u8]) -> io::Result<Reading> {
        // Field names begin with a capital letter, addresses never.
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

    /// Fails if an entry was cut short, so that its flags, which come last, are missing.
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

/// Returns the mappings that share an address with `range`, in ascending order.
pub fn among(range: &Range<usize>) -> Result<Vec<Vma>, OsError> {
    let refused = |call| move |source| OsError::new(call, PATH, source);
    let file =
        file::open(Path::new(PATH), OpenOptions::new().read(true)).map_err(refused("open"))?;
    let all = point("read").and_then(|()| read(BufReader::with_capacity(READ, file), range));
    all.map_err(refused("read"))
}

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

/// Parses `major:minor`, two hexadecimal numbers; returns zero for anything else.
fn device(text: &str) -> u64 {
    let number = |hex| u32::from_str_radix(hex, 16).ok();
    let parts = text.split_once(':');
    let parts = parts.and_then(|(major, minor)| Some((number(major)?, number(minor)?)));
    parts.map_or(0, |(major, minor)| device_of(major, minor))
}

fn device_of(major: u32, minor: u32) -> u64 {
    libc::makedev(major, minor)
}

fn address(text: &str) -> Option<usize> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    usize::from_str_radix(text, 16).ok().filter(|_| is_plain)
}

#[cfg(test)]
mod tests;
