//! Whether one physically contiguous run could be had: [`explain`] says so without taking anything.
//!
//! It reads the use of every frame, if the kernel shows frames to the caller, and looks for the
//! longest run of huge pages that are idle in a pool, or free for a pool to grow by. Frames are
//! looked at in blocks of the pool's page, since that is how it gives memory: of each pool, until
//! one has the run. Others take and give meanwhile, and the kernel may move what lies between two
//! runs, so the answer is of the moment. Cost: half a second for 24 GiB and each pool.

use super::populate::{machine_available, Gate};
use super::{blocks, pool_sizes, smallest_hugetlb, Error};
use crate::sys::cgroup::Resource;
use crate::sys::hugetlb::{sizes, Pool};
use crate::sys::kpage::{runs, uses, Use};
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
    /// Frames are hidden from this process.
    Unknown,
}

impl Verdict {
    /// One word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Now => "now",
            Self::ByGrowth => "by growth",
            Self::No => "no",
            Self::Unknown => "unknown",
        }
    }
}

/// Whether one run of a length could be had.
#[derive(Clone, Debug)]
pub struct Outlook {
    /// Whether it could.
    pub verdict: Verdict,
    /// What that rests on.
    pub why: String,
    /// What to do to have it, or to know.
    pub helps: Vec<String>,
}

/// Whether one physically contiguous run of `len` could be had now, and by which means. Nothing is
/// taken or changed.
///
/// ```
/// let outlook = glebe::contig::explain(glebe::units::Bytes::mib(64))?;
/// println!("{}: {}", outlook.verdict.as_str(), outlook.why);
/// # Ok::<(), glebe::contig::Error>(())
/// ```
///
/// # Errors
/// [`Error::ZeroLength`], or what cannot be read.
pub fn explain(len: Bytes) -> Result<Outlook, Error> {
    if len == Bytes::ZERO {
        return Err(Error::ZeroLength);
    }
    let said = |verdict, why| Ok(Outlook { verdict, why, helps: Vec::new() });
    if let Some(why) = within_a_page(len)? {
        return said(Verdict::Now, why);
    }
    let available = machine_available()?;
    let mut outlooks = Vec::new();
    // The smallest pages first: most runs can be made of them.
    for pool in pool_sizes().into_iter().rev().filter_map(Pool::of) {
        outlooks.push(by_pool(len, available, &pool)?);
        if outlooks.last().is_some_and(|outlook| outlook.verdict == Verdict::Now) {
            break;
        }
    }
    let Some(judged) = best(outlooks) else {
        let why = "the kernel has no pools of huge pages, and other memory is contiguous by luck \
            alone beyond a page";
        return said(Verdict::No, why.to_owned());
    };
    let size = smallest_hugetlb().unwrap_or(page_size());
    let rounded = len.pages_up(size).checked_bytes(size).unwrap_or(Bytes::new(u64::MAX));
    Ok(with_blocks(judged, blocks::outlook(rounded)))
}

/// What one pool could do, of the run in its pages.
fn by_pool(len: Bytes, available: Bytes, pool: &Pool) -> Result<Outlook, Error> {
    let size = pool.size();
    let rounded = len.pages_up(size).checked_bytes(size).unwrap_or(Bytes::new(u64::MAX));
    if let Err(refused) = Gate::new(Resource::Hugetlb(size))?.check(rounded) {
        return Ok(Outlook { verdict: Verdict::No, why: refused.to_string(), helps: Vec::new() });
    }
    let pages = Pages::new(pool.counts()?.available());
    let idle = pages.checked_bytes(size).unwrap_or_default();
    let (may_grow, runs) = (pool.is_writable(), longest_runs(size));
    Ok(judge(&Seen { len, size, idle, available, may_grow, runs }))
}

/// The outlook of the pool that could do most; of the first of those that could do as much.
fn best(outlooks: Vec<Outlook>) -> Option<Outlook> {
    let rank = |outlook: &Outlook| match outlook.verdict {
        Verdict::Now => 0,
        Verdict::ByGrowth => 1,
        Verdict::Unknown => 2,
        Verdict::No => 3,
    };
    outlooks.into_iter().min_by_key(rank)
}

/// Adds what memory blocks could do where nothing else has the run.
fn with_blocks(mut said: Outlook, blocks: Result<[Result<(), Error>; 2], Error>) -> Outlook {
    if matches!(said.verdict, Verdict::Now | Verdict::ByGrowth) {
        return said;
    }
    match blocks {
        Ok([Ok(()), _]) => {
            said.verdict = Verdict::ByGrowth;
            said.why += "; the bank has it, and is evacuated when a run is asked for";
            said.helps.clear();
        }
        Ok([_, Ok(())]) => {
            let could =
                "memory blocks side by side could be evacuated for it, as root: the source \
                blocks; or a bank for the time to come: glebe bank add";
            said.helps.insert(0, could.to_owned());
        }
        Ok([_, Err(why)]) | Err(why) => said.helps.push(format!("no memory blocks: {why}")),
    }
    said
}

/// The page that the whole length fits into, in words, if one is there.
fn within_a_page(len: Bytes) -> Result<Option<String>, Error> {
    if len <= page_size().bytes() {
        return Ok(Some(format!("within one page of {}", page_size().bytes())));
    }
    for size in sizes().into_iter().rev().filter(|size| size.bytes() >= len) {
        if let Some(pool) = Pool::of(size) {
            let idle = pool.counts()?.available();
            let fits = Gate::new(Resource::Hugetlb(size))?.check(size.bytes()).is_ok();
            if idle > 0 && fits {
                let of = size.bytes();
                return Ok(Some(format!("within one of {idle} idle huge pages of {of}")));
            }
        }
    }
    let thp = transparent_huge_page().ok().filter(|size| size.bytes() >= len);
    let free = |size: &PageSize| buddyinfo::free_blocks(*size).is_ok_and(|blocks| blocks > 0);
    Ok(thp.filter(free).map(|size| {
        let of = size.bytes();
        format!("within one transparent huge page of {of}; it stays in place with a pin only")
    }))
}

/// What is known of the machine.
#[derive(Clone, Copy, Debug)]
struct Seen {
    len: Bytes,
    /// A page of the pool.
    size: PageSize,
    /// Pages that the pool can give.
    idle: Bytes,
    /// Memory that a pool could grow by.
    available: Bytes,
    may_grow: bool,
    /// The longest run idle in the pools, and of that with free memory; none if frames are hidden.
    runs: Option<(Bytes, Bytes)>,
}

fn longest_runs(size: PageSize) -> Option<(Bytes, Bytes)> {
    let page = page_size();
    let block = size.bytes().pages_down(page);
    let uses = uses(block).ok()?;
    let longest = |counts: fn(Use) -> bool| {
        let all = runs(&uses, block, counts).into_iter();
        all.map(|(_, len)| len.bytes(page)).max().unwrap_or_default()
    };
    let idle = longest(|of| of == Use::PoolIdle);
    Some((idle, longest(|of| matches!(of, Use::PoolIdle | Use::Free))))
}

fn judge(seen: &Seen) -> Outlook {
    let Seen { len, size, idle, available, may_grow, runs } = *seen;
    let as_root = || format!("as root: glebe contig explain {} --try", len.get());
    let at_boot = || format!("at boot: {}", boot_parameter(size, len.pages_up(size).get()));
    let said = |verdict, why: String, helps| Outlook { verdict, why, helps };
    let most = if may_grow { idle.checked_add(available).unwrap_or(idle) } else { idle };
    if most < len {
        let helps = match may_grow {
            true => vec![at_boot()],
            false => vec![as_root(), at_boot()],
        };
        let and = if may_grow { format!(", {available} available") } else { String::new() };
        let why = format!("{idle} idle in the pools of huge pages{and}");
        let only = if may_grow { "" } else { "; this process may not grow them" };
        return said(Verdict::No, why + only, helps);
    }
    let Some((in_pools, with_free)) = runs else {
        let why = format!(
            "{idle} idle in the pools of huge pages, but page frames are hidden from this process"
        );
        let helps = vec![format!("{}; or with CAP_SYS_ADMIN", as_root())];
        return said(Verdict::Unknown, why, helps);
    };
    let why = format!(
        "the longest run idle in the pools is {in_pools}, and with free memory beside {with_free}"
    );
    if in_pools >= len && idle >= len {
        return said(Verdict::Now, why, Vec::new());
    }
    if with_free >= len && may_grow {
        let helps = vec![
            "by growing the pool, whose pages are then chosen for their frames; --try tells"
                .to_owned(),
            "for the time to come: a reserve, made early".to_owned(),
        ];
        return said(Verdict::ByGrowth, why, helps);
    }
    let mut helps = Vec::new();
    if with_free >= len {
        helps.push(as_root());
    } else {
        if may_grow {
            let tries = "--try grows the pool, for which the kernel moves and drops what it can";
            helps.push(tries.to_owned());
        }
        let moves = "echo 1 > /proc/sys/vm/compact_memory, as root, then look again";
        helps.push(format!("{moves}; glebe contig map shows what lies between"));
    }
    helps.push(at_boot());
    said(Verdict::No, why, helps)
}

/// The kernel parameters that set `pages` aside at boot.
#[must_use]
pub fn boot_parameter(size: PageSize, pages: u64) -> String {
    let size = match size.bytes().get() {
        n if n % (1 << 30) == 0 => format!("{}G", n >> 30),
        n if n % (1 << 20) == 0 => format!("{}M", n >> 20),
        n => format!("{}K", n >> 10),
    };
    format!("hugepagesz={size} hugepages={pages}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(len: u64) -> Seen {
        let size = PageSize::new(2 << 20).unwrap();
        Seen {
            len: Bytes::mib(len),
            size,
            idle: Bytes::mib(64),
            available: Bytes::gib(1),
            may_grow: true,
            runs: Some((Bytes::mib(32), Bytes::mib(256))),
        }
    }

    #[test]
    fn the_longest_run_answers_and_not_the_sum() {
        let verdict = |seen: &Seen| judge(seen).verdict;
        assert_eq!(verdict(&seen(32)), Verdict::Now);
        assert_eq!(verdict(&seen(64)), Verdict::ByGrowth, "64 MiB idle, in pieces");
        assert_eq!(verdict(&seen(512)), Verdict::No, "1 GiB available, in pieces");
        assert_eq!(verdict(&seen(4096)), Verdict::No);
        let fixed = Seen { may_grow: false, ..seen(64) };
        let told = judge(&fixed);
        assert_eq!(told.verdict, Verdict::No);
        assert!(told.helps[0].starts_with("as root: "), "{told:?}");
        assert_eq!(verdict(&Seen { len: Bytes::mib(32), ..fixed }), Verdict::Now);
    }

    #[test]
    fn hidden_frames_are_unknown_unless_there_is_too_little_at_all() {
        let hidden = |len| Seen { runs: None, ..seen(len) };
        let told = judge(&hidden(32));
        assert!(told.verdict == Verdict::Unknown && told.why.contains("hidden"), "{told:?}");
        assert_eq!(judge(&hidden(4096)).verdict, Verdict::No);
        let fixed = Seen { may_grow: false, ..hidden(128) };
        assert_eq!(judge(&fixed).verdict, Verdict::No);
    }

    #[test]
    fn the_pool_that_could_do_most_answers() {
        let size = PageSize::new(1 << 30).unwrap();
        // Of the small pages a cgroup may have none, and there are large ones that lie idle.
        let refused = Outlook { verdict: Verdict::No, why: "a limit".to_owned(), helps: vec![] };
        let idle = Bytes::gib(2);
        let large = judge(&Seen { size, idle, runs: Some((idle, idle)), ..seen(2048) });
        assert_eq!(best(vec![refused.clone(), large]).unwrap().verdict, Verdict::Now);
        let other = Outlook { why: "less".to_owned(), ..refused.clone() };
        assert_eq!(best(vec![refused, other]).unwrap().why, "a limit", "the smallest pages first");
        assert!(best(Vec::new()).is_none());
    }

    #[test]
    fn memory_blocks_answer_where_nothing_else_does() {
        let no = || judge(&seen(512));
        let short = || Err(Error::NoBlocks { why: "said so".to_owned() });
        let told = with_blocks(no(), Ok([Ok(()), Ok(())]));
        assert_eq!((told.verdict, told.helps.len()), (Verdict::ByGrowth, 0));
        let told = with_blocks(no(), Ok([short(), Ok(())]));
        assert_eq!(told.verdict, Verdict::No);
        assert!(told.helps[0].contains("glebe bank add"), "{told:?}");
        let told = with_blocks(no(), Ok([short(), short()]));
        assert!(told.helps.last().unwrap().contains("said so"), "{told:?}");
        let told = with_blocks(judge(&seen(32)), Err(Error::ZeroLength));
        assert_eq!((told.verdict, told.helps.len()), (Verdict::Now, 0));
    }

    #[test]
    fn every_length_has_an_answer() {
        let page = page_size().bytes();
        assert_eq!(explain(page).unwrap().verdict, Verdict::Now);
        for len in [Bytes::gib(1 << 20), Bytes::new(u64::MAX)] {
            assert_eq!(explain(len).unwrap().verdict, Verdict::No);
        }
        assert!(matches!(explain(Bytes::ZERO), Err(Error::ZeroLength)));
    }

    #[test]
    fn boot_parameters_name_the_size() {
        let parameter = |bytes, pages| boot_parameter(PageSize::new(bytes).unwrap(), pages);
        assert_eq!(parameter(1 << 30, 2), "hugepagesz=1G hugepages=2");
        assert_eq!(parameter(2 << 20, 32), "hugepagesz=2M hugepages=32");
        assert_eq!(parameter(64 << 10, 1), "hugepagesz=64K hugepages=1");
    }
}
