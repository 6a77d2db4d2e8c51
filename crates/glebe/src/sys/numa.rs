//! NUMA nodes: which there are, and memory bound to one.
//!
//! Source: `Documentation/admin-guide/mm/numa_memory_policy.rst`, mbind(2).
//!
//! # Safety
//! The call reads a mask of nodes of the length it is told, and changes where pages come from, not
//! what is in them.
#![allow(unsafe_code)]

use std::fmt;

use crate::error::OsError;
use crate::sys::call::call;
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

/// Reads a list such as `0-3,8`; parts that make no sense are passed over.
pub(super) fn listed(text: &str) -> Vec<Node> {
    let part = |part: &str| -> Option<std::ops::RangeInclusive<u32>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        (first <= last && last - first < 1 << 16).then_some(first..=last)
    };
    text.trim().split(',').filter_map(part).flatten().map(Node).collect()
}

/// Has the pages of a range come from `node` alone, from now on.
///
/// # Errors
/// What mbind(2) refuses: a node without memory, a policy denied.
///
/// # Safety
/// The range is the caller's own mapping.
pub(crate) unsafe fn bind(addr: usize, len: Bytes, node: Node) -> Result<(), OsError> {
    const BITS: u32 = libc::c_ulong::BITS;
    let mut mask = vec![0 as libc::c_ulong; (node.0 / BITS) as usize + 1];
    if let Some(word) = mask.last_mut() {
        *word = 1 << (node.0 % BITS);
    }
    let bits = mask.len() as u64 * u64::from(BITS) + 1;
    let subject = || format!("{addr:#x}, {len}, {node}");
    // SAFETY: the mask has as many bits as is said, and the range is the caller's.
    call("mbind", subject, || unsafe {
        libc::syscall(libc::SYS_mbind, addr, len.as_usize(), MPOL_BIND, mask.as_ptr(), bits, 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_nodes_are_read() {
        let nodes = |numbers: &[u32]| numbers.iter().copied().map(Node).collect::<Vec<_>>();
        assert_eq!(listed("0\n"), nodes(&[0]));
        assert_eq!(listed("0-2,7,9-9"), nodes(&[0, 1, 2, 7, 9]));
        assert_eq!(listed("x,3-1,,4294967295-0,5"), nodes(&[5]));
        assert!(!online().is_empty());
    }
}
