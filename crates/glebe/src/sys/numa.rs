//! NUMA nodes: which there are, and memory or a thread bound to one.
//!
//! Source: `Documentation/admin-guide/mm/numa_memory_policy.rst`, mbind(2), set_mempolicy(2).
//!
//! # Safety
//! The calls read and write masks of nodes of the length they are told, and change where pages come
//! from, not what is in them.
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::ptr;

use crate::error::OsError;
use crate::sys::call::{answer, call};
use crate::sys::file;
use crate::units::Bytes;

/// Where sysfs lists the nodes.
pub(crate) const ROOT: &str = "/sys/devices/system/node";
const ONLINE: &str = "/sys/devices/system/node/online";
/// `MPOL_BIND` of mbind(2).
const MPOL_BIND: libc::c_int = 2;

/// The number of a NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(pub u32);

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// The nodes that are online; node 0 alone where the kernel lists none.
#[must_use]
pub fn online() -> Vec<Node> {
    listed(&file::text(ONLINE).unwrap_or_else(|_| "0".to_owned()))
}

/// The numbers of the processors of a node; none where it has none or that cannot be read.
pub(crate) fn processors(node: Node) -> Vec<u32> {
    let text = file::text(format!("{ROOT}/node{}/cpulist", node.0));
    numbers(&text.unwrap_or_default())
}

/// Reads a list such as `0-3,8`; parts that make no sense are passed over.
pub(super) fn listed(text: &str) -> Vec<Node> {
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

/// Has the pages of a range come from `node` alone, from now on.
///
/// # Errors
/// What mbind(2) refuses: a node without memory, a policy denied.
///
/// # Safety
/// The range is the caller's own mapping.
pub(crate) unsafe fn bind(addr: usize, len: Bytes, node: Node) -> Result<(), OsError> {
    let (mask, bits) = mask_of(node);
    let subject = || format!("{addr:#x}, {len}, {node}");
    // SAFETY: the mask has as many bits as is said, and the range is the caller's.
    call("mbind", subject, || unsafe {
        libc::syscall(libc::SYS_mbind, addr, len.as_usize(), MPOL_BIND, mask.as_ptr(), bits, 0)
    })
}

/// A mask with the bit of `node`, and the number of bits to tell the kernel.
fn mask_of(node: Node) -> (Vec<libc::c_ulong>, u64) {
    let mut mask = vec![0 as libc::c_ulong; (node.0 / BITS) as usize + 1];
    if let Some(word) = mask.last_mut() {
        *word = 1 << (node.0 % BITS);
    }
    let bits = mask.len() as u64 * u64::from(BITS) + 1;
    (mask, bits)
}

const BITS: u32 = libc::c_ulong::BITS;
/// Words of a mask for more nodes than any kernel is built for; it takes at most a page of them.
const WORDS: usize = 32;

/// Has new pages of the calling thread come from one node until it is dropped: those of a hugetlb
/// pool that grows for a mapping of the thread too (Linux 6.9). Threads that it starts do the same.
#[derive(Debug)]
pub(crate) struct ThreadPolicy {
    mode: libc::c_int,
    mask: Vec<libc::c_ulong>,
    /// It is of the thread that made it.
    _stays: PhantomData<*const ()>,
}

impl ThreadPolicy {
    /// `None` where the kernel refuses: a node without memory, a policy denied.
    pub fn bind(node: Node) -> Option<Self> {
        let (mut mode, mut mask) = (0, vec![0 as libc::c_ulong; WORDS]);
        let len = mask.len() as u64 * u64::from(BITS);
        let none = ptr::null_mut::<libc::c_void>();
        // SAFETY: writes a number, and a mask of as many bits as is said.
        let read = answer("get_mempolicy", || unsafe {
            libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, mask.as_mut_ptr(), len, none, 0)
        });
        let (here, bits) = mask_of(node);
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
    // SAFETY: the mask has as many bits as is said; the thread is the caller's own.
    let set = answer("set_mempolicy", || unsafe {
        libc::syscall(libc::SYS_set_mempolicy, mode, mask.as_ptr(), bits)
    });
    set.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_its_policy_back() {
        let mode = || {
            let (mut mode, none) = (-1, ptr::null_mut::<libc::c_void>());
            // SAFETY: writes a number.
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
    fn lists_of_nodes_are_read() {
        let nodes = |numbers: &[u32]| numbers.iter().copied().map(Node).collect::<Vec<_>>();
        assert_eq!(listed("0\n"), nodes(&[0]));
        assert_eq!(listed("0-2,7,9-9"), nodes(&[0, 1, 2, 7, 9]));
        assert_eq!(listed("x,3-1,,4294967295-0,5"), nodes(&[5]));
        assert!(!online().is_empty());
        let all = online().into_iter().flat_map(processors).count();
        assert!(all > 0 || !file::exists(format!("{ROOT}/node0/cpulist").as_ref()).unwrap_or(true));
        assert_eq!(processors(Node(u32::MAX)), [0; 0]);
    }
}
