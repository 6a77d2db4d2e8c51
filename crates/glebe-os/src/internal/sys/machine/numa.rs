//! Lists NUMA nodes, and binds memory or a thread to one node.
//!
//! Source: admin-guide/mm/numa_memory_policy, mbind(2), set_mempolicy(2).
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::ptr;

use crate::error::OsError;
use crate::internal::sys::call::{answer, call};
use crate::internal::sys::files::file;
use crate::units::Bytes;

pub const ROOT: &str = "/sys/devices/system/node";
const ONLINE: &str = "/sys/devices/system/node/online";
const MPOL_BIND: libc::c_int = 2;

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

/// Makes new pages of a range come from `node` only.
///
/// # Safety
/// The caller owns the mapping.
pub unsafe fn bind(addr: usize, len: Bytes, node: Node) -> Result<(), OsError> {
    let (mask, bits) = mask_of(node);
    let subject = || format!("{addr:#x}, {len}, {node}");
    // SAFETY: the kernel reads `bits - 1` bits of the mask, and the caller owns the range.
    call("mbind", subject, || unsafe {
        libc::syscall(libc::SYS_mbind, addr, len.as_usize(), MPOL_BIND, mask.as_ptr(), bits, 0)
    })
}

/// Returns a mask with the bit of `node`, and its length in bits plus 1, as the kernel expects.
fn mask_of(node: Node) -> (Vec<libc::c_ulong>, u64) {
    let mut mask = vec![0 as libc::c_ulong; (node.0 / BITS) as usize + 1];
    if let Some(word) = mask.last_mut() {
        *word = 1 << (node.0 % BITS);
    }
    let bits = mask.len() as u64 * u64::from(BITS) + 1;
    (mask, bits)
}

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
    // SAFETY: the mask has `bits` bits; only the calling thread changes.
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
