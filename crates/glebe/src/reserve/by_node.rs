//! [`NodeBytes`] tells how many bytes of a reserve are on each NUMA node, for statistics.
//!
//! On a machine with one node it tells nothing. An answer of the kernel may take 0.1 µs a page. So
//! it counts until the reserve's length changes, or [`REST`] times as long as it took. Lock:
//! `known`, free while the kernel is asked.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use super::{Reserve, ReserveCore};
use crate::contig::Node;
use glebe_os::error::OsError;
use glebe_os::extent::Extent;
use glebe_os::internal::stats::{families, Row, Set, Unit, Value};
use glebe_os::internal::sync::{lock, Mutex};
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};

const REST: u32 = 1000;

/// The bytes of one reserve on each node.
#[derive(Debug, Default)]
pub struct NodeBytes {
    known: Mutex<Option<Known>>,
}

#[derive(Debug)]
struct Known {
    len: Pages,
    until: Instant,
    bytes: Vec<(Node, Bytes)>,
}

impl NodeBytes {
    /// Returns one that has asked nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the bytes on each node with memory, in order; nothing if the machine has one such
    /// node, if the kernel does not tell the nodes, or in a forked child. Pages that other
    /// processes have may be missing.
    pub fn of(&self, reserve: &Reserve) -> Vec<(Node, Bytes)> {
        reserve.inner.get().map_or_else(|_| Vec::new(), |core| self.of_core(core))
    }

    pub(super) fn of_core(&self, core: &ReserveCore) -> Vec<(Node, Bytes)> {
        let (all, len) = ((core.busy.near.teller().machine)(), core.stats().total);
        self.on_several(&all, len, || core.nodes())
    }

    fn on_several(
        &self,
        all: &[Node],
        len: Pages,
        ask: impl FnOnce() -> Result<Vec<(Extent, Node)>, OsError>,
    ) -> Vec<(Node, Bytes)> {
        if all.len() < 2 {
            return Vec::new();
        }
        let begin = Instant::now();
        let counts = |known: &&Known| known.len == len && begin < known.until;
        if let Some(known) = lock(&self.known).as_ref().filter(counts) {
            return known.bytes.clone();
        }
        let bytes = ask().map_or_else(|_| Vec::new(), |told| summed(all, &told));
        let took = begin.elapsed().max(Duration::from_micros(1));
        let known = Known { len, until: Instant::now() + took * REST, bytes: bytes.clone() };
        *lock(&self.known) = Some(known);
        bytes
    }
}

fn summed(all: &[Node], told: &[(Extent, Node)]) -> Vec<(Node, Bytes)> {
    let mut sums: BTreeMap<Node, u64> = all.iter().map(|node| (*node, 0)).collect();
    for (pages, node) in told {
        *sums.entry(*node).or_default() += pages.len();
    }
    let bytes = |(node, pages)| (node, Pages::new(pages).bytes(page_size()));
    sums.into_iter().map(bytes).collect()
}

fn name(node: Node) -> String {
    format!("node_{}_bytes", node.0)
}

const WHAT: &str = "bytes of the reserve on this NUMA node";

/// Describes the statistic of each node in a line, as
/// [`Stats::describe`](super::Stats::describe) does.
#[must_use]
pub fn describe_nodes() -> String {
    format!("{:<24} {:<6} {WHAT}, if the machine has several\n", "node_N_bytes", "bytes")
}

/// Returns lines in the form of statistics.
pub fn node_lines(nodes: &[(Node, Bytes)]) -> String {
    let mut text = String::new();
    for (node, bytes) in nodes {
        let _ = writeln!(text, "{:<24} {:>14}  {WHAT}", name(*node), bytes.get());
    }
    text
}

/// Adds members to a JSON object of statistics.
pub fn with_node_members(object: String, nodes: &[(Node, Bytes)]) -> String {
    let Some(open) = object.strip_suffix(" }").filter(|_| !nodes.is_empty()) else { return object };
    let member = |(node, bytes): &(Node, Bytes)| format!(", \"{}\": {}", name(*node), bytes.get());
    let members: String = nodes.iter().map(member).collect();
    format!("{open}{members} }}")
}

/// Adds a family with the label `node` to an OpenMetrics text.
pub fn with_node_family(
    text: String,
    prefix: &str,
    labels: &[(&'static str, String)],
    nodes: &[(Node, Bytes)],
) -> String {
    let Some(open) = text.strip_suffix("# EOF\n").filter(|_| !nodes.is_empty()) else {
        return text;
    };
    let set = |(node, bytes): &(Node, Bytes)| {
        let value = Value::Gauge(Unit::Bytes, bytes.get());
        let labels = labels.iter().cloned().chain([("node", node.0.to_string())]).collect();
        Set { labels, rows: vec![Row { name: "node_bytes", value, what: WHAT }] }
    };
    let sets: Vec<Set<'_>> = nodes.iter().map(set).collect();
    format!("{open}{}# EOF\n", families(prefix, page_size().bytes(), &sets))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn on(start: u64, len: u64, node: u32) -> (Extent, Node) {
        (Extent::new(start, len).unwrap(), Node(node))
    }

    fn pages(bytes: &[(Node, Bytes)]) -> Vec<(u32, u64)> {
        bytes.iter().map(|(node, bytes)| (node.0, bytes.pages_down(page_size()).get())).collect()
    }

    #[test]
    fn nodes_without_pages_are_told_and_a_single_node_is_not_asked() {
        let nodes = NodeBytes::new();
        let told = || Ok(vec![on(0, 8, 2), on(8, 1, 0), on(20, 4, 2)]);
        let all = [0, 1, 2].map(Node);
        let bytes = nodes.on_several(&all, Pages::new(13), told);
        assert_eq!(pages(&bytes), [(0, 1), (1, 0), (2, 12)]);
        let asked = || panic!("one node");
        assert_eq!(NodeBytes::new().on_several(&[Node(1)], Pages::new(1), asked), []);
    }

    #[test]
    fn an_answer_counts_for_a_while_and_until_the_length_changes() {
        let (nodes, all) = (NodeBytes::new(), [0, 1].map(Node));
        let mut asked = 0;
        let mut ask = |len: u64, took: Duration| {
            let bytes = nodes.on_several(&all, Pages::new(len), || {
                asked += 1;
                std::thread::sleep(took);
                Ok(vec![on(0, len, 1)])
            });
            (pages(&bytes)[1].1, asked)
        };
        let long = Duration::from_millis(50); // counts for 50 s
        assert_eq!([ask(4, long), ask(4, long)], [(4, 1), (4, 1)]);
        assert_eq!([ask(6, long), ask(6, long)], [(6, 2), (6, 2)]);
        let refused =
            || Err(OsError::new("move_pages", "a test", std::io::ErrorKind::Other.into()));
        assert_eq!(nodes.on_several(&all, Pages::new(7), refused), []);
    }

    #[test]
    fn texts_get_a_line_a_member_and_a_family_for_several_nodes() {
        let nodes = [(Node(0), Bytes::mib(2)), (Node(3), Bytes::ZERO)];
        let lines = node_lines(&nodes);
        assert!(lines.starts_with("node_0_bytes                    2097152  bytes of"), "{lines}");
        assert!(lines.contains("\nnode_3_bytes                          0  bytes of"), "{lines}");
        let stats = super::super::Stats::default();
        let object = with_node_members(stats.to_json(), &nodes);
        assert!(object.ends_with(", \"node_0_bytes\": 2097152, \"node_3_bytes\": 0 }"), "{object}");
        let labels = [("pid", "7".to_owned())];
        let text = with_node_family(stats.to_openmetrics(), "glebe_reserve_", &labels, &nodes);
        let family =
            "# TYPE glebe_reserve_node_bytes gauge\n# UNIT glebe_reserve_node_bytes bytes\n";
        assert!(text.contains(family), "{text}");
        assert!(
            text.contains("glebe_reserve_node_bytes{pid=\"7\",node=\"0\"} 2097152\n"),
            "{text}"
        );
        assert!(text.ends_with("{pid=\"7\",node=\"3\"} 0\n# EOF\n"), "{text}");
        assert_eq!(with_node_members(stats.to_json(), &[]), stats.to_json());
        let same = with_node_family(stats.to_openmetrics(), "glebe_reserve_", &labels, &[]);
        assert_eq!(same, stats.to_openmetrics());
    }
}
