//! Lists NUMA nodes, binds memory to nodes or a thread to one node, and tells the nodes of pages
//! and of the calling thread.
//!
//! Source: admin-guide/mm/numa_memory_policy, mbind(2), set_mempolicy(2), move_pages(2), getcpu(2).
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::path::Path;
use std::ptr;

use crate::error::OsError;
use crate::internal::sync::First;
use crate::internal::sys::call::{answer, call};
use crate::internal::sys::files::file;
use crate::units::{Bytes, PageSize};

pub const ROOT: &str = "/sys/devices/system/node";
const ONLINE: &str = "/sys/devices/system/node/online";
const MPOL_BIND: libc::c_int = 2;
const MPOL_F_NODE: libc::c_int = 1;
const MPOL_F_ADDR: libc::c_int = 2;

/// The number of a NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(pub u32);

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// Returns the online nodes; node 0 alone if the list cannot be read.
#[must_use]
pub fn online() -> Vec<Node> {
    listed(&file::text(ONLINE).unwrap_or_else(|_| "0".to_owned()))
}

/// Returns the nodes that have memory; the online ones if the list cannot be read.
#[must_use]
pub fn with_memory() -> Vec<Node> {
    file::text(format!("{ROOT}/has_memory")).map_or_else(|_| online(), |text| listed(&text))
}

/// Returns the nodes that have memory, as the files below `root` list them; none without a list.
#[must_use]
pub fn with_memory_below(root: &Path) -> Vec<Node> {
    let dir = root.join(ROOT.trim_start_matches('/'));
    let read = |name| file::text(dir.join(name)).map(|text| listed(&text));
    read("has_memory").or_else(|_| read("online")).unwrap_or_default()
}

/// Returns the nodes whose memory the calling thread may use (`cpuset.mems`); `None` if the kernel
/// does not tell them. Source: proc_pid_status(5).
#[must_use]
pub fn allowed() -> Option<Vec<Node>> {
    let text = file::text("/proc/thread-self/status").ok()?;
    allowed_in(&text)
}

fn allowed_in(status: &str) -> Option<Vec<Node>> {
    let list = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"))?;
    Some(listed(list))
}

/// Returns the node of a machine with exactly one; `None` if the list cannot be read.
#[must_use]
pub fn only() -> Option<Node> {
    match listed(&file::text(ONLINE).ok()?)[..] {
        [node] => Some(node),
        _ => None,
    }
}

/// Returns true if `nodes` are some of the nodes with memory, but not all.
#[must_use]
pub fn are_a_part(nodes: &[Node]) -> bool {
    !nodes.is_empty() && with_memory().iter().any(|node| !nodes.contains(node))
}

/// Returns the node of the processor that runs the caller, or `None` if it cannot be told. A few
/// nanoseconds, without a system call.
#[must_use]
pub fn here() -> Option<Node> {
    static NODES: First<Vec<Option<Node>>> = First::new();
    // SAFETY: the call takes no argument.
    let processor = usize::try_from(unsafe { libc::sched_getcpu() }).ok()?;
    NODES.get_or_compute(nodes_of_processors).get(processor).copied().flatten()
}

fn nodes_of_processors() -> Vec<Option<Node>> {
    let mut nodes = Vec::new();
    for (node, all) in online().into_iter().map(|node| (node, processors(node))) {
        for processor in all.into_iter().map(|processor| processor as usize) {
            nodes.resize(nodes.len().max(processor + 1), None);
            nodes[processor] = Some(node);
        }
    }
    nodes
}

/// Returns a node's processors; empty if they cannot be read.
pub fn processors(node: Node) -> Vec<u32> {
    let text = file::text(format!("{ROOT}/node{}/cpulist", node.0));
    numbers(&text.unwrap_or_default())
}

/// Parses a list like `0-3,8`.
pub(in crate::internal::sys) fn listed(text: &str) -> Vec<Node> {
    numbers(text).into_iter().map(Node).collect()
}

fn numbers(text: &str) -> Vec<u32> {
    let part = |part: &str| -> Option<std::ops::RangeInclusive<u32>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        (first <= last && last - first < 1 << 16).then_some(first..=last)
    };
    text.trim().split(',').filter_map(part).flatten().collect()
}

/// Makes new pages of a range come from these nodes only.
///
/// # Safety
/// The caller owns the mapping.
pub unsafe fn bind(addr: usize, len: Bytes, nodes: &[Node]) -> Result<(), OsError> {
    let (mask, bits) = mask_of(nodes);
    let subject = || format!("{addr:#x}, {len}, {}", named(nodes));
    // SAFETY: the kernel reads `bits - 1` bits of the mask, and the caller owns the range.
    call("mbind", subject, || unsafe {
        libc::syscall(libc::SYS_mbind, addr, len.as_usize(), MPOL_BIND, mask.as_ptr(), bits, 0)
    })
}

fn named(nodes: &[Node]) -> String {
    nodes.iter().map(Node::to_string).collect::<Vec<_>>().join(", ")
}

/// Returns a mask with the bits of `nodes`, and its length in bits plus 1, as the kernel expects.
fn mask_of(nodes: &[Node]) -> (Vec<libc::c_ulong>, u64) {
    let last = nodes.iter().map(|node| node.0).max().unwrap_or(0);
    let mut mask = vec![0 as libc::c_ulong; (last / BITS) as usize + 1];
    for node in nodes {
        mask[(node.0 / BITS) as usize] |= 1 << (node.0 % BITS);
    }
    let bits = mask.len() as u64 * u64::from(BITS) + 1;
    (mask, bits)
}

/// Returns the node of each of `count` pages from `addr` on; `None` for a page that is missing.
///
/// # Errors
/// If the kernel, or a filter of system calls, refuses the question.
pub fn nodes_of(addr: usize, count: usize, page: PageSize) -> Result<Vec<Option<Node>>, OsError> {
    let (each, subject) = (page.bytes().as_usize(), || format!("{addr:#x}, {count} pages"));
    let mut nodes = Vec::with_capacity(count);
    for first in (0..count).step_by(PAGES_A_CALL) {
        let some = first..count.min(first + PAGES_A_CALL);
        let pages: Vec<usize> = some.map(|nth| addr + nth * each).collect();
        let mut states = vec![0 as libc::c_int; pages.len()];
        let (asked, none, told) = (pages.as_ptr(), ptr::null::<libc::c_int>(), states.as_mut_ptr());
        // SAFETY: the kernel reads the addresses and writes as many numbers. Without a list of
        // nodes it moves nothing.
        call("move_pages", subject, || unsafe {
            libc::syscall(libc::SYS_move_pages, 0, pages.len(), asked, none, told, 0)
        })?;
        nodes.extend(states.iter().map(|node| u32::try_from(*node).ok().map(Node)));
    }
    Ok(nodes)
}

/// Returns the node of the page at `addr`, which the kernel reads in if it is missing; `None` if
/// the kernel refuses. Tests compare it with [`nodes_of`]. Source: get_mempolicy(2).
pub fn node_at(addr: usize) -> Option<Node> {
    let (mut node, none) = (0 as libc::c_int, ptr::null_mut::<libc::c_void>());
    let flags = MPOL_F_NODE | MPOL_F_ADDR;
    // SAFETY: the kernel writes a number.
    let read = answer("get_mempolicy", || unsafe {
        libc::syscall(libc::SYS_get_mempolicy, &raw mut node, none, 0, addr, flags)
    });
    read.ok().and_then(|_| u32::try_from(node).ok()).map(Node)
}

/// Returns the nodes that new pages at `addr` come from only, or `None` if they may come from any.
/// Tests compare it with [`bind`]. Source: get_mempolicy(2).
pub fn bound_at(addr: usize) -> Option<Vec<Node>> {
    let (mut mode, mut mask) = (0 as libc::c_int, vec![0 as libc::c_ulong; WORDS]);
    let len = mask.len() as u64 * u64::from(BITS);
    // SAFETY: the kernel writes a number and a mask of `len` bits.
    let read = answer("get_mempolicy", || unsafe {
        let (mode, mask) = (&raw mut mode, mask.as_mut_ptr());
        libc::syscall(libc::SYS_get_mempolicy, mode, mask, len, addr, MPOL_F_ADDR)
    });
    let has = |node: &u32| mask[(node / BITS) as usize] >> (node % BITS) & 1 == 1;
    let nodes = (0..WORDS as u32 * BITS).filter(has).map(Node);
    (read.is_ok() && mode == MPOL_BIND).then(|| nodes.collect())
}

/// Pages that one call asks about.
const PAGES_A_CALL: usize = 1 << 12;
const BITS: u32 = libc::c_ulong::BITS;
/// Words of a mask for the nodes of any kernel.
const WORDS: usize = 32;

/// Makes new pages of the calling thread come from one node until dropped, also new pages of a
/// hugetlb pool (Linux 6.9).
#[derive(Debug)]
pub struct ThreadPolicy {
    mode: libc::c_int,
    mask: Vec<libc::c_ulong>,
    /// Not `Send`, because the policy belongs to one thread.
    _stays: PhantomData<*const ()>,
}

impl ThreadPolicy {
    pub fn bind(node: Node) -> Option<Self> {
        let (mut mode, mut mask) = (0, vec![0 as libc::c_ulong; WORDS]);
        let len = mask.len() as u64 * u64::from(BITS);
        let none = ptr::null_mut::<libc::c_void>();
        // SAFETY: the kernel writes a number and a mask of `len` bits.
        let read = answer("get_mempolicy", || unsafe {
            libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, mask.as_mut_ptr(), len, none, 0)
        });
        let (here, bits) = mask_of(&[node]);
        let is_bound = read.is_ok() && set_policy(MPOL_BIND, &here, bits);
        is_bound.then(|| Self { mode, mask, _stays: PhantomData })
    }
}

impl Drop for ThreadPolicy {
    fn drop(&mut self) {
        let bits = self.mask.len() as u64 * u64::from(BITS);
        set_policy(self.mode, &self.mask, bits);
    }
}

fn set_policy(mode: libc::c_int, mask: &[libc::c_ulong], bits: u64) -> bool {
    // SAFETY: the mask has `bits` bits; only the calling thread changes.
    let set = answer("set_mempolicy", || unsafe {
        libc::syscall(libc::SYS_set_mempolicy, mode, mask.as_ptr(), bits)
    });
    set.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::internal::mapping::{Mapping, Visibility};
    use crate::internal::sys::memory::madvise::{advise, Advice};
    use crate::internal::sys::page_size;
    use crate::units::Pages;

    #[test]
    fn a_thread_has_its_policy_back() {
        let mode = || {
            let (mut mode, none) = (-1, ptr::null_mut::<libc::c_void>());
            // SAFETY: the kernel writes a number.
            unsafe { libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, none, 0, none, 0) };
            mode
        };
        let before = mode();
        let Some(bound) = ThreadPolicy::bind(online()[0]) else {
            println!("skipped: a policy of a thread is refused");
            return;
        };
        assert_eq!(mode(), MPOL_BIND);
        let inner = ThreadPolicy::bind(online()[0]).expect("as before");
        drop(inner);
        assert_eq!(mode(), MPOL_BIND);
        drop(bound);
        assert_eq!(mode(), before);
        assert!(ThreadPolicy::bind(Node(1 << 15)).is_none() && mode() == before);
    }

    #[test]
    fn the_nodes_of_pages_are_told_and_missing_pages_are_none() {
        let (page, count) = (page_size(), PAGES_A_CALL + 3);
        let len = Pages::new(count as u64).bytes(page);
        let mapping = Mapping::aligned(len, page, Visibility::PRIVATE).unwrap();
        // SAFETY: the mapping is the test's.
        let _ = unsafe { advise(mapping.addr(), len, Advice::NoHugePage) };
        mapping.write(Bytes::ZERO, &[1]);
        mapping.write(len - Bytes::new(1), &[1]);
        let nodes = match nodes_of(mapping.addr(), count, page) {
            Ok(nodes) => nodes,
            Err(error) => return println!("skipped: {error}"),
        };
        assert_eq!(nodes.len(), count);
        assert!(nodes[count - 1].is_some_and(|node| online().contains(&node)), "{nodes:?}");
        assert!(nodes[0].is_some() && nodes[1..count - 1].iter().all(Option::is_none), "{nodes:?}");
    }

    #[test]
    fn a_mask_has_the_bit_of_each_node() {
        let mask =
            |numbers: &[u32]| mask_of(&numbers.iter().copied().map(Node).collect::<Vec<_>>());
        assert_eq!(mask(&[0]), (vec![1], 65));
        assert_eq!(mask(&[1, 3, 0]), (vec![0b1011], 65));
        assert_eq!(mask(&[64, 2]), (vec![4, 1], 129));
    }

    #[test]
    fn the_node_of_a_thread_is_the_one_of_its_processor() {
        let Some(node) = here() else { return println!("skipped: the node is not told") };
        assert!(online().contains(&node), "{node}");
        let nodes = nodes_of_processors();
        for node in online() {
            for processor in processors(node) {
                assert_eq!(nodes[processor as usize], Some(node));
            }
        }
        assert!(with_memory().len() == 1 || are_a_part(&with_memory()[1..]));
        assert!(!are_a_part(&with_memory()) && !are_a_part(&online()) && !are_a_part(&[]));
    }

    #[test]
    fn lists_of_nodes_are_read() {
        let nodes = |numbers: &[u32]| numbers.iter().copied().map(Node).collect::<Vec<_>>();
        assert_eq!(listed("0\n"), nodes(&[0]));
        assert_eq!(listed("0-2,7,9-9"), nodes(&[0, 1, 2, 7, 9]));
        assert_eq!(listed("x,3-1,,4294967295-0,5"), nodes(&[5]));
        assert!(!online().is_empty());
        let status = "Mems_allowed:\t3\nMems_allowed_list:\t0-1\n";
        assert_eq!(allowed_in(status), Some(nodes(&[0, 1])));
        assert_eq!(allowed_in("Name:\tx\n"), None);
        let is_online = |node| online().contains(&node);
        assert!(allowed().is_none_or(|all| !all.is_empty() && all.into_iter().any(is_online)));
        let all = online().into_iter().flat_map(processors).count();
        assert!(all > 0 || !file::exists(format!("{ROOT}/node0/cpulist").as_ref()).unwrap_or(true));
        assert_eq!(processors(Node(u32::MAX)), [0; 0]);
    }
}
