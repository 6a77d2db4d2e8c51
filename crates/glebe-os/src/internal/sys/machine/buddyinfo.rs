//! Reads the free blocks of all nodes and zones from `/proc/buddyinfo`.
//!
//! A block has 2^order base pages, aligned to its length. Source: proc_buddyinfo(5).

use std::path::Path;

use crate::error::OsError;
use crate::internal::sys::files::file;
use crate::internal::sys::machine::numa::Node;
use crate::internal::sys::page_size;
use crate::units::{Bytes, PageSize, Pages};

const PATH: &str = "/proc/buddyinfo";

/// Returns how many blocks of `size` are free, also as parts of larger blocks.
pub fn free_blocks(size: PageSize) -> Result<u64, OsError> {
    Ok(blocks(&file::text(PATH)?, size.shift().saturating_sub(page_size().shift())))
}

/// Returns how many blocks of `size` are free on a node, or on all nodes.
pub fn free_blocks_on(size: PageSize, node: Option<Node>) -> Result<u64, OsError> {
    let (text, order) = (file::text(PATH)?, size.shift().saturating_sub(page_size().shift()));
    let lines = text.lines().filter(|line| is_of(line, node));
    Ok(lines.map(|line| blocks(line, order)).sum())
}

/// Returns the longest free block of a node. Reads the file below `root` instead of `/`.
pub fn longest_free_block_on(root: &Path, node: Node) -> Result<Bytes, OsError> {
    Ok(longest_of(&file::text(root.join(PATH.trim_start_matches('/')))?, Some(node)))
}

/// Returns the length of the longest free block of a node, or of all nodes.
pub fn longest_free_block(node: Option<Node>) -> Result<Bytes, OsError> {
    Ok(longest_of(&file::text(PATH)?, node))
}

fn longest_of(text: &str, node: Option<Node>) -> Bytes {
    let lines = text.lines().filter(|line| is_of(line, node));
    let order = lines.filter_map(|line| counts(line).rposition(|count| count > 0)).max();
    order.map_or(Bytes::ZERO, |order| Bytes::new(page_size().bytes().get() << order))
}

fn is_of(line: &str, node: Option<Node>) -> bool {
    let number = || line.split_whitespace().nth(1)?.strip_suffix(',')?.parse().ok();
    node.is_none_or(|node| number() == Some(node.0))
}

/// Returns each zone's name, such as "0, zone Normal", with its number of free blocks.
pub fn free_blocks_of_zones(size: PageSize) -> Result<Vec<(String, u64)>, OsError> {
    let text = file::text(PATH)?;
    let order = size.shift().saturating_sub(page_size().shift());
    let of_line = |line: &str| {
        let name: Vec<&str> = line.split_whitespace().skip(1).take(3).collect();
        (name.join(" "), blocks(line, order))
    };
    Ok(text.lines().map(of_line).collect())
}

pub fn free_in_zones(name: &str, node: Option<Node>) -> Result<Bytes, OsError> {
    Ok(free_of(&file::text(PATH)?, name, node))
}

fn free_of(text: &str, name: &str, node: Option<Node>) -> Bytes {
    let is_wanted = |line: &&str| is_of(line, node) && line.split_whitespace().nth(3) == Some(name);
    let pages = text.lines().filter(is_wanted).map(|line| blocks(line, 0)).sum();
    Pages::new(pages).bytes(page_size())
}

/// Returns a line's numbers of free blocks, by order.
fn counts(line: &str) -> impl ExactSizeIterator<Item = u64> + DoubleEndedIterator {
    // Four words precede the counts: "Node 0, zone  Normal  11 3149 ...".
    let words: Vec<u64> =
        line.split_whitespace().skip(4).map(|word| word.parse().unwrap_or(0)).collect();
    words.into_iter()
}

fn blocks(text: &str, order: u32) -> u64 {
    let order = order as usize;
    let of_line = |line: &str| -> u64 {
        let at_least = counts(line).enumerate().skip(order);
        at_least.map(|(n, count)| count << (n - order)).sum()
    };
    text.lines().map(of_line).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_blocks_count_for_as_many_as_they_hold() {
        let text = "Node 0, zone      DMA      0      1      2      3\n\
                    Node 0, zone   Normal      9      0      1      0\n";
        assert_eq!(blocks(text, 0), 2 + 8 + 24 + 9 + 4);
        assert_eq!(blocks(text, 2), 2 + 6 + 1);
        assert_eq!(blocks(text, 3), 3);
        assert_eq!(blocks(text, 9), 0);
        assert_eq!(blocks("", 0), 0);
    }

    #[test]
    fn a_zone_of_one_node_or_of_all_is_counted() {
        let text = "Node 0, zone  Movable      1      0\nNode 1, zone   Normal      9      9\n\
                    Node 1, zone  Movable      0      4\n";
        let free = |node| free_of(text, "Movable", node).pages_down(page_size()).get();
        assert_eq!((free(None), free(Some(Node(0))), free(Some(Node(1)))), (9, 1, 8));
        assert_eq!((free(Some(Node(10))), free_of(text, "DMA", None)), (0, Bytes::ZERO));
        let text = "Node 0, zone  Movable      1      0      0\nNode 1, zone   DMA      9      9\n";
        let longest = |node| longest_of(text, node).pages_down(page_size()).get();
        assert_eq!((longest(None), longest(Some(Node(0))), longest(Some(Node(1)))), (2, 1, 2));
        assert_eq!(longest(Some(Node(10))), 0);
    }
}
