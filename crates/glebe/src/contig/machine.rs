//! What the machine could give: [`explain`] says so without taking anything.
//!
//! Counts are pages of the size in question. What is told is of the moment: others take and give.

use super::pool::Place;
use super::populate::{machine_available, Gate};
use super::{Error, Source};
use crate::sys::cgroup::Resource;
use crate::sys::hugetlb::{sizes, Pool};
use crate::sys::madvise::transparent_huge_page;
use crate::sys::{buddyinfo, page_size};
use crate::units::{Bytes, PageSize, Pages};

/// Whether memory could be had now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// From what is there.
    Now,
    /// By growing the hugetlb pool, which this process may; the kernel must find the pages.
    ByGrowth,
    /// Not by this process, or not at all.
    No,
}

impl Verdict {
    /// One word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Now => "now",
            Self::ByGrowth => "by growth",
            Self::No => "no",
        }
    }
}

/// What one source could give.
#[derive(Clone, Debug)]
pub struct Outlook {
    /// The source.
    pub source: Source,
    /// Whether the length could be had of it.
    pub verdict: Verdict,
    /// What that rests on: what is needed, what there is.
    pub why: String,
    /// What the memory would be, or what would have to be done.
    pub helps: Vec<String>,
}

/// Whether `len` could be had now, by source, best first. Nothing is taken or changed.
///
/// # Errors
/// [`Error::ZeroLength`], or what cannot be read.
pub fn explain(len: Bytes) -> Result<Vec<Outlook>, Error> {
    if len == Bytes::ZERO {
        return Err(Error::ZeroLength);
    }
    let free = machine_available()?;
    let mut all = Vec::new();
    for size in sizes() {
        if let Some(pool) = Place::machine().pool(size) {
            all.push(hugetlb(&pool, len, free)?);
        }
    }
    all.push(ordinary(Source::Thp, len, free)?);
    all.push(ordinary(Source::Plain, len, free)?);
    Ok(all)
}

fn hugetlb(pool: &Pool, len: Bytes, free: Bytes) -> Result<Outlook, Error> {
    let (size, path) = (pool.size(), pool.path());
    let (source, shown) = (Source::Hugetlb(size), path.display());
    let needed = len.pages_up(size).get();
    let have = pool.counts()?.available();
    let missing = needed.saturating_sub(have);
    let fits = Gate::new(Resource::Hugetlb(size))?.check(whole(len, size));
    let missing_bytes = Pages::new(missing).checked_bytes(size);
    let enough = missing_bytes.is_some_and(|bytes| bytes <= free);
    let ready = buddyinfo::free_blocks(size).unwrap_or(0);
    let mut why = format!("{needed} pages of {} needed, {have} idle in the pool", size.bytes());
    let mut helps = Vec::new();
    let verdict = if let Err(refused) = fits {
        why = refused.to_string();
        Verdict::No
    } else if missing == 0 {
        helps.push("such pages stay in their frames".to_owned());
        Verdict::Now
    } else if !enough {
        why += &format!("; {missing} more would take more than the {free} that are available");
        Verdict::No
    } else if !pool.is_writable() {
        helps.push(format!("as root: {} (writes {shown})", reserve_command(size, len)));
        Verdict::No
    } else {
        why +=
            &format!(", {missing} more from {free} available, {ready} of them free in one piece");
        Verdict::ByGrowth
    };
    if verdict != Verdict::Now && ready < missing {
        helps.push("echo 1 > /proc/sys/vm/compact_memory, as root, before growing".to_owned());
        helps.push(format!("at boot: {}", boot_parameter(size, needed)));
    }
    Ok(Outlook { source, verdict, why, helps })
}

fn ordinary(source: Source, len: Bytes, free: Bytes) -> Result<Outlook, Error> {
    let page = match source {
        Source::Thp => match transparent_huge_page() {
            Ok(size) => size,
            Err(error) => {
                let helps =
                    vec!["echo madvise > /sys/kernel/mm/transparent_hugepage/enabled".to_owned()];
                let why = error.to_string();
                return Ok(Outlook { source, verdict: Verdict::No, why, helps });
            }
        },
        _ => page_size(),
    };
    let ready = buddyinfo::free_blocks(page).unwrap_or(0);
    let needed = len.pages_up(page).get();
    let mut why = format!("{needed} pages of {} needed, {ready} free in one piece", page.bytes());
    let mut helps = Vec::new();
    let verdict = match Gate::new(Resource::Memory)?.check(whole(len, page)) {
        Ok(()) => {
            why += &format!(", {free} available");
            let by = "contiguous beyond a page by luck alone; in place only with a long-term pin";
            helps.push(by.to_owned());
            Verdict::Now
        }
        Err(refused) => {
            why = refused.to_string();
            Verdict::No
        }
    };
    Ok(Outlook { source, verdict, why, helps })
}

/// `len` rounded up to pages, as far as numbers go.
fn whole(len: Bytes, page: PageSize) -> Bytes {
    len.pages_up(page).checked_bytes(page).unwrap_or(len)
}

/// The kernel parameters that set `pages` aside at boot.
#[must_use]
pub fn boot_parameter(size: PageSize, pages: u64) -> String {
    format!("hugepagesz={} hugepages={pages}", short(size))
}

/// The command that adds pages of `size` for `len` to the machine's pool.
fn reserve_command(size: PageSize, len: Bytes) -> String {
    format!("glebe contig reserve {} --page {}", len.get(), short(size))
}

/// A size as the kernel's command line and this project's take it.
fn short(size: PageSize) -> String {
    let (bytes, gib, mib) = (size.bytes().get(), 1 << 30, 1 << 20);
    match bytes {
        n if n % gib == 0 => format!("{}G", n / gib),
        n if n % mib == 0 => format!("{}M", n / mib),
        n => format!("{}K", n >> 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_has_a_word_and_nothing_is_taken() {
        let all = explain(Bytes::mib(4)).unwrap();
        assert_eq!(all.len(), sizes().len() + 2);
        for outlook in &all {
            assert!(!outlook.why.is_empty(), "{outlook:?}");
        }
        let too_much = explain(Bytes::gib(1 << 20)).unwrap();
        assert!(too_much.iter().all(|outlook| outlook.verdict == Verdict::No), "{too_much:?}");
        assert!(explain(Bytes::new(u64::MAX)).is_ok());
        assert!(matches!(explain(Bytes::ZERO), Err(Error::ZeroLength)));
    }

    #[test]
    fn boot_parameters_name_the_size() {
        let parameter = |bytes, pages| boot_parameter(PageSize::new(bytes).unwrap(), pages);
        assert_eq!(parameter(1 << 30, 2), "hugepagesz=1G hugepages=2");
        assert_eq!(parameter(2 << 20, 32), "hugepagesz=2M hugepages=32");
        assert_eq!(parameter(64 << 10, 1), "hugepagesz=64K hugepages=1");
        let command = reserve_command(PageSize::new(1 << 30).unwrap(), Bytes::mib(1));
        assert_eq!(
            command, "glebe contig reserve 1048576 --page 1G",
            "of that pool, not the smallest"
        );
    }
}
