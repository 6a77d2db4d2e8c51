//! [`explain`] looks for one physically contiguous run without taking memory. Cost: 0.4 s for 24
//! GiB if [`FrameUses`] must read the frames.

use std::path::Path;

use super::frame_uses::FrameUses;
use super::populate::{available_on, Gate};
use super::{blocks, pool_sizes, smallest_hugetlb, Error, Node};
use glebe_os::internal::sys::machine::buddyinfo;
use glebe_os::internal::sys::machine::cgroup::Resource;
use glebe_os::internal::sys::machine::hugetlb::{sizes, Pool};
use glebe_os::internal::sys::machine::numa;
use glebe_os::internal::sys::memory::madvise::transparent_huge_page;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, PageSize, Pages};

/// The answers of [`explain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// One page or idle pages hold the run.
    Now,
    /// A larger hugetlb pool or the bank can give the run.
    ByGrowth,
    /// This process cannot get the run.
    No,
    /// Frames are hidden from this process.
    Unknown,
}

impl Verdict {
    /// Returns one or two words.
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

/// The prospects of a run.
#[derive(Clone, Debug)]
pub struct Outlook {
    /// The answer.
    pub verdict: Verdict,
    /// Reason.
    pub why: String,
    /// Remedies.
    pub helps: Vec<String>,
}

/// Says whether one physically contiguous run of `len` bytes is available. As root, may repair
/// pools and memory blocks that killed processes changed.
///
/// ```
/// let outlook = glebe_contig::explain(glebe_contig::units::Bytes::mib(64))?;
/// println!("{}: {}", outlook.verdict.as_str(), outlook.why);
/// # Ok::<(), glebe_contig::Error>(())
/// ```
///
/// # Errors
/// [`Error::ZeroLength`]; if a file cannot be read.
pub fn explain(len: Bytes) -> Result<Outlook, Error> {
    explain_on(len, None, &FrameUses::default())
}

/// Says whether one run of `len` bytes is available on `node`, or anywhere for `None`. Reads
/// `frames` if it needs them.
///
/// # Errors
/// [`Error::ZeroLength`], [`Error::NoSuchNode`]; if a file cannot be read.
pub fn explain_on(len: Bytes, node: Option<Node>, frames: &FrameUses) -> Result<Outlook, Error> {
    if len == Bytes::ZERO {
        return Err(Error::ZeroLength);
    }
    let said = |verdict, why| Ok(Outlook { verdict, why, helps: Vec::new() });
    let online = numa::online();
    if let Some(node) = node.filter(|node| !online.contains(node)) {
        return Err(Error::NoSuchNode { node, online });
    }
    // A machine with one node answers as if no node were named.
    let node = node.filter(|_| online.len() > 1);
    let allowed = numa::allowed();
    if let Some(node) = node.filter(|node| allowed.is_some_and(|all| !all.contains(node))) {
        let why = format!("this process may not use memory of {node} (cpuset.mems)");
        return said(Verdict::No, why);
    }
    if let Some(why) = within_a_page(len, node)? {
        return said(Verdict::Now, why);
    }
    let available = available_on(node.as_slice())?;
    let mut outlooks = Vec::new();
    // Small pages come first, because they form the most runs.
    for pool in pool_sizes().into_iter().rev().filter_map(Pool::of) {
        let Some(pool) = part_on(pool, node)? else { continue };
        outlooks.push(by_pool(len, available, &pool, frames)?);
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
    if matches!(judged.verdict, Verdict::Now | Verdict::ByGrowth) {
        return Ok(judged);
    }
    Ok(with_blocks(judged, blocks::outlook(rounded, node)))
}

/// Returns the node's part of a pool, or the pool itself without a node.
fn part_on(pool: Pool, node: Option<Node>) -> Result<Option<Pool>, Error> {
    match node {
        Some(node) => Ok(pool.on_nodes(Path::new(numa::ROOT), &[node])?),
        None => Ok(Some(pool)),
    }
}

fn by_pool(
    len: Bytes,
    available: Bytes,
    pool: &Pool,
    frames: &FrameUses,
) -> Result<Outlook, Error> {
    let size = pool.size();
    let rounded = len.pages_up(size).checked_bytes(size).unwrap_or(Bytes::new(u64::MAX));
    if let Err(refused) = Gate::new(Resource::Hugetlb(size))?.check(rounded) {
        return Ok(Outlook { verdict: Verdict::No, why: refused.to_string(), helps: Vec::new() });
    }
    let pages = Pages::new(pool.counts()?.available());
    let idle = pages.checked_bytes(size).unwrap_or_default();
    let (may_grow, node) = (pool.is_writable(), pool.node());
    let mut seen = Seen { len, size, node, idle, available, may_grow, runs: None };
    if seen.most() >= len {
        seen.runs = frames.longest_runs(size, node);
    }
    Ok(judge(&seen))
}

fn best(outlooks: Vec<Outlook>) -> Option<Outlook> {
    let rank = |outlook: &Outlook| match outlook.verdict {
        Verdict::Now => 0,
        Verdict::ByGrowth => 1,
        Verdict::Unknown => 2,
        Verdict::No => 3,
    };
    outlooks.into_iter().min_by_key(rank)
}

fn with_blocks(mut said: Outlook, blocks: Result<[Result<(), Error>; 2], Error>) -> Outlook {
    match blocks {
        Ok([Ok(()), _]) => {
            said.verdict = Verdict::ByGrowth;
            said.why += "; the bank has it, and is evacuated when a run is asked for";
            said.helps.clear();
        }
        Ok([_, Ok(())]) => {
            let could =
                "memory blocks side by side could be evacuated for it, as root: the source \
                blocks; or set a bank aside for later: glebe bank add";
            said.helps.insert(0, could.to_owned());
        }
        Ok([_, Err(why)]) | Err(why) => said.helps.push(format!("no memory blocks: {why}")),
    }
    said
}

fn within_a_page(len: Bytes, node: Option<Node>) -> Result<Option<String>, Error> {
    if len <= page_size().bytes() {
        return Ok(Some(format!("within one page of {}", page_size().bytes())));
    }
    for size in sizes().into_iter().rev().filter(|size| size.bytes() >= len) {
        if let Some(pool) = Pool::of(size).map(|pool| part_on(pool, node)).transpose()?.flatten() {
            let idle = pool.counts()?.available();
            let fits = Gate::new(Resource::Hugetlb(size))?.check(size.bytes()).is_ok();
            if idle > 0 && fits {
                let of = size.bytes();
                return Ok(Some(format!("within one of {idle} idle huge pages of {of}")));
            }
        }
    }
    let thp = transparent_huge_page().ok().filter(|size| size.bytes() >= len);
    let free =
        |size: &PageSize| buddyinfo::free_blocks_on(*size, node).is_ok_and(|blocks| blocks > 0);
    Ok(thp.filter(free).map(|size| {
        let of = size.bytes();
        format!("within one transparent huge page of {of}; it stays in place with a pin only")
    }))
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    len: Bytes,
    size: PageSize,
    node: Option<Node>,
    idle: Bytes,
    available: Bytes,
    may_grow: bool,
    /// Bytes of the longest idle run, and of the longest idle or free run; `None` if frames are
    /// hidden, or unread because `most` is below `len`.
    runs: Option<(Bytes, Bytes)>,
}

impl Seen {
    /// Returns the most bytes that the pool could give this process, contiguous or not.
    fn most(&self) -> Bytes {
        match self.may_grow {
            true => self.idle.checked_add(self.available).unwrap_or(self.idle),
            false => self.idle,
        }
    }
}

fn judge(seen: &Seen) -> Outlook {
    let Seen { len, size, node, idle, available, may_grow, runs } = *seen;
    let (pages, option) = (len.pages_up(size).get(), named(node));
    let as_root = || format!("as root: glebe contig explain {} --try{option}", short(len.get()));
    let at_boot = || format!("at boot: {}", boot_parameter_on(size, pages, node));
    let said = |verdict, why: String, helps| Outlook { verdict, why, helps };
    if seen.most() < len {
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
        let tries = "--try shows whether they form the run now".to_owned();
        return said(Verdict::ByGrowth, why, vec![adding(size, len, node), tries]);
    }
    let mut helps = Vec::new();
    if with_free >= len {
        helps.push(as_root());
    } else {
        if may_grow {
            let tries = "--try grows the pool, for which the kernel moves and drops what it can";
            helps.push(tries.to_owned());
        }
        let moves = node.map_or_else(
            || "/proc/sys/vm/compact_memory".to_owned(),
            |node| format!("{}/node{}/compact", numa::ROOT, node.0),
        );
        let moves = format!("echo 1 > {moves}, as root, then look again");
        helps.push(format!("{moves}; glebe contig map shows what lies between"));
    }
    helps.push(at_boot());
    said(Verdict::No, why, helps)
}

fn named(node: Option<Node>) -> String {
    node.map_or_else(String::new, |Node(number)| format!(" --node {number}"))
}

/// Says how to add pages to a pool, or to its part on a node.
fn adding(size: PageSize, len: Bytes, node: Option<Node>) -> String {
    let order = "adds pages, in no certain order";
    match node {
        None => format!("sudo glebe contig reserve {}   {order}", short(len.get())),
        Some(node) => format!(
            "{} more in {}/node{}/hugepages/hugepages-{}kB/nr_hugepages, as root, {order}",
            len.pages_up(size),
            numa::ROOT,
            node.0,
            size.bytes().get() >> 10,
        ),
    }
}

/// Returns the kernel parameters that reserve `pages` at boot.
#[must_use]
pub fn boot_parameter(size: PageSize, pages: u64) -> String {
    boot_parameter_on(size, pages, None)
}

/// Source: admin-guide/kernel-parameters (`hugepages=`, for one node since Linux 5.16).
fn boot_parameter_on(size: PageSize, pages: u64, node: Option<Node>) -> String {
    let on = node.map_or_else(String::new, |Node(number)| format!("{number}:"));
    format!("hugepagesz={} hugepages={on}{pages}", short(size.bytes().get()))
}

fn short(len: u64) -> String {
    match len {
        n if n % (1 << 30) == 0 => format!("{}G", n >> 30),
        n if n % (1 << 20) == 0 => format!("{}M", n >> 20),
        n if n % (1 << 10) == 0 => format!("{}K", n >> 10),
        n => n.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(len: u64) -> Seen {
        let size = PageSize::new(2 << 20).unwrap();
        Seen {
            len: Bytes::mib(len),
            size,
            node: None,
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
        let command = &judge(&seen(64)).helps[0];
        assert!(command.starts_with("sudo glebe contig reserve 64M "), "{command}");
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
    fn each_node_has_an_answer() {
        let is_allowed = |node: &Node| numa::allowed().is_none_or(|all| all.contains(node));
        let frames = FrameUses::default();
        let ask = |len, node| explain_on(len, Some(node), &frames);
        for node in numa::with_memory().into_iter().filter(is_allowed) {
            assert_eq!(ask(page_size().bytes(), node).unwrap().verdict, Verdict::Now);
            let told = ask(Bytes::gib(1 << 20), node).unwrap();
            assert_eq!(told.verdict, Verdict::No, "{told:?}");
        }
        let missing = ask(Bytes::mib(1), Node(1 << 20));
        assert!(matches!(missing, Err(Error::NoSuchNode { .. })), "{missing:?}");
    }

    #[test]
    fn remedies_name_the_node() {
        let on = |len, may_grow| judge(&Seen { node: Some(Node(1)), may_grow, ..seen(len) }).helps;
        let path = "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages";
        let grows = on(64, true);
        assert!(grows[0].starts_with(&format!("32 pages more in {path}, as root")), "{grows:?}");
        let moves = "echo 1 > /sys/devices/system/node/node1/compact, as root";
        assert!(on(512, true)[1].starts_with(moves), "{:?}", on(512, true));
        assert_eq!(on(512, true).last().unwrap(), "at boot: hugepagesz=2M hugepages=1:256");
        assert_eq!(on(64, false)[0], "as root: glebe contig explain 64M --try --node 1");
    }

    #[test]
    fn boot_parameters_name_the_size() {
        let parameter = |bytes, pages| boot_parameter(PageSize::new(bytes).unwrap(), pages);
        assert_eq!(parameter(1 << 30, 2), "hugepagesz=1G hugepages=2");
        assert_eq!(parameter(2 << 20, 32), "hugepagesz=2M hugepages=32");
        assert_eq!(parameter(64 << 10, 1), "hugepagesz=64K hugepages=1");
    }
}
