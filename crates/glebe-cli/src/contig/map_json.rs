//! [`value`] is what `glebe contig map --json` prints: runs of blocks of one use, in frame order.
//!
//! A block is a huge page of the smallest size. Addresses and lengths are bytes. Absent memory is
//! in no run.

use glebe::internal::sys::machine::kpage::Use;
use glebe::units::{Bytes, PageSize};
use serde_json::{json, Map, Value};

use super::nodes::NodeView;

const NAMES: [(Use, &str); 5] = [
    (Use::PoolInUse, "pool_in_use"),
    (Use::PoolIdle, "pool_idle"),
    (Use::Thp, "transparent_huge"),
    (Use::Other, "mixed"),
    (Use::Free, "free"),
];

/// Returns the map of `uses`, which has an entry for each `block` from frame 0 on.
pub fn value(block: PageSize, uses: &[Use], nodes: &[NodeView]) -> Value {
    let bytes = |blocks: usize| blocks as u64 * block.bytes().get();
    let name = |of: Use| NAMES.iter().find(|(named, _)| *named == of).map(|(_, name)| *name);
    let mut start = 0;
    let mut runs = Vec::new();
    for part in uses.chunk_by(|a, b| a == b) {
        if let Some(name) = name(part[0]) {
            runs.push(json!({
                "start_bytes": bytes(start), "len_bytes": bytes(part.len()), "use": name,
            }));
        }
        start += part.len();
    }
    let count = |of: Use| uses.iter().filter(|found| **found == of).count();
    let sums = NAMES.map(|(of, name)| (name.to_owned(), bytes(count(of)).into()));
    let longest = |counts: fn(Use) -> bool| {
        let parts = uses.chunk_by(|a, b| counts(*a) == counts(*b));
        let found = parts.filter(|part| counts(part[0])).map(<[Use]>::len).max();
        Bytes::new(bytes(found.unwrap_or_default())).get()
    };
    json!({
        "block_bytes": block.bytes().get(),
        "present_bytes": bytes(uses.len() - count(Use::Absent)),
        "uses_bytes": sums.into_iter().collect::<Map<String, Value>>(),
        "longest_free_run_bytes": longest(|of| of == Use::Free),
        "longest_pool_run_bytes": longest(Use::is_pool),
        "runs": runs,
        "by_node": nodes.iter().map(NodeView::json).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_has_its_place_and_absent_memory_has_none() {
        use Use::{Absent, Free, Other, PoolIdle, PoolInUse, Thp};
        let uses =
            [Other, PoolIdle, PoolInUse, PoolInUse, Absent, Absent, Free, Free, Free, Thp, Free];
        let value = value(PageSize::new(2 << 20).unwrap(), &uses, &[]);
        let run = |start: u64, len: u64, of: &str| {
            let [start, len] = [start, len].map(|blocks| blocks << 21);
            json!({ "start_bytes": start, "len_bytes": len, "use": of })
        };
        let runs = json!([
            run(0, 1, "mixed"),
            run(1, 1, "pool_idle"),
            run(2, 2, "pool_in_use"),
            run(6, 3, "free"),
            run(9, 1, "transparent_huge"),
            run(10, 1, "free"),
        ]);
        assert_eq!(value["runs"], runs);
        assert_eq!(
            (&value["block_bytes"], &value["present_bytes"]),
            (&json!(2 << 20), &json!(9 << 21))
        );
        let sums = json!({
            "pool_in_use": 2 << 21, "pool_idle": 1 << 21, "transparent_huge": 1 << 21,
            "mixed": 1 << 21, "free": 4 << 21,
        });
        assert_eq!(value["uses_bytes"], sums);
        assert_eq!(value["longest_free_run_bytes"], 3 << 21);
        assert_eq!(value["longest_pool_run_bytes"], 3 << 21);
        assert_eq!(value["by_node"], json!([]));
    }
}
