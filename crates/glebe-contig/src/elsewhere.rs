//! If memory of chosen NUMA nodes is refused, the error lists each node's free memory.

use std::io;

use super::options::Options;
use super::{smallest_hugetlb, Error, Source};
use glebe_os::error::OsError;
use glebe_os::internal::sys::machine::buddyinfo;
use glebe_os::internal::sys::machine::hugetlb::Pool;
use glebe_os::internal::sys::machine::node_memory;
use glebe_os::internal::sys::machine::numa::{self, Node};

/// Reads the nodes' files only if `options` name nodes, and the machine has several with memory.
pub(super) fn told(error: Error, options: &Options) -> Error {
    if options.nodes.is_none() {
        return error;
    }
    let nodes = numa::with_memory();
    match nodes.len() > 1 {
        true => with(error, || on_nodes(&nodes, options)),
        false => error,
    }
}

fn with(error: Error, there: impl FnOnce() -> String) -> Error {
    match error {
        Error::TooLarge { asked, available, .. } => {
            Error::TooLarge { asked, available, elsewhere: Some(there()) }
        }
        Error::NotHuge { huge, len, .. } => Error::NotHuge { huge, len, elsewhere: Some(there()) },
        Error::PoolShort { size, wanted, got, path, how_to } => {
            let how_to = format!("{how_to}; {}", there());
            Error::PoolShort { size, wanted, got, path, how_to }
        }
        Error::NotContiguous { wanted, longest, tried } => {
            let tried = tried.map_or_else(String::new, |tried| format!("{tried}; "));
            Error::NotContiguous { wanted, longest, tried: Some(tried + &there()) }
        }
        Error::Os(error) if error.kind() == io::ErrorKind::OutOfMemory => {
            let subject = format!("{}; {}", error.subject(), there());
            let source = error.errno().map_or_else(
                || io::Error::from(io::ErrorKind::OutOfMemory),
                io::Error::from_raw_os_error,
            );
            Error::Os(OsError::new(error.call(), subject, source))
        }
        other => other,
    }
}

fn on_nodes(nodes: &[Node], options: &Options) -> String {
    let size = match options.source {
        Some(Source::Hugetlb(size)) => Some(size),
        _ => smallest_hugetlb(),
    };
    let pool = size.and_then(|size| Pool::below(&options.place.pools, size));
    let all = nodes.iter().map(|node| on_node(*node, pool.as_ref(), options));
    all.collect::<Vec<_>>().join("; ")
}

/// Leaves out what cannot be read.
fn on_node(node: Node, pool: Option<&Pool>, options: &Options) -> String {
    let pages = pool.and_then(|pool| {
        let part = pool.on_nodes(&options.place.nodes, &[node]).ok().flatten()?;
        let free = part.counts().ok()?.free;
        Some(format!("{free} free pages of {}", pool.size().bytes()))
    });
    let memory = node_memory::of(node).ok().map(|of| format!("{} available", of.available));
    let block = buddyinfo::longest_free_block(Some(node)).ok();
    let block = block.map(|len| format!("free blocks of up to {len}"));
    let all: Vec<String> = [pages, memory, block].into_iter().flatten().collect();
    format!("{node} has {}", all.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Place;
    use glebe_os::units::Bytes;
    use std::fs;

    #[test]
    fn a_refusal_on_a_node_tells_the_free_pages_of_each_node() {
        let root = std::env::temp_dir().join(format!("glebe-elsewhere-{}", std::process::id()));
        let (pools, nodes) = (root.join("pools"), root.join("nodes"));
        let pool = |dir: std::path::PathBuf, free: u64| {
            fs::create_dir_all(&dir).unwrap();
            for (name, value) in [("nr", 200), ("free", free), ("surplus", 0), ("resv", 0)] {
                fs::write(dir.join(format!("{name}_hugepages")), value.to_string()).unwrap();
            }
        };
        pool(pools.join("hugepages-2048kB"), 131);
        pool(nodes.join("node0/hugepages/hugepages-2048kB"), 128);
        pool(nodes.join("node1/hugepages/hugepages-2048kB"), 3);
        let place = Place { pools, nodes, locks: Vec::new() };
        let options = Options { place, ..Options::default() }.node(Node(1));
        let options = options.source(Source::HUGETLB_2M);
        let there = || on_nodes(&[Node(0), Node(1)], &options);
        let (size, path) = (Bytes::mib(2), root.join("path"));
        let how_to = "add 5".to_owned();
        let short = with(Error::PoolShort { size, wanted: 8, got: 3, path, how_to }, there);
        let said = short.to_string();
        assert!(said.contains("add 5; node 0 has 128 free pages of 2 MiB"), "{said}");
        assert!(said.contains("; node 1 has 3 free pages of 2 MiB"), "{said}");
        let wanted = Bytes::mib(64);
        let no_run = with(Error::NotContiguous { wanted, longest: size, tried: None }, there);
        assert!(no_run.to_string().contains("2 MiB; node 0 has 128"), "{no_run}");
        for error in [Error::too_large(wanted, size), no_memory()] {
            let said = with(error, there).to_string();
            assert!(said.contains("; node 0 has 128 free pages"), "{said}");
        }
        let other = with(Error::PoolFixed { size }, || panic!("not asked"));
        assert!(matches!(other, Error::PoolFixed { .. }));
        fs::remove_dir_all(&root).unwrap();
    }

    fn no_memory() -> Error {
        let source = io::ErrorKind::OutOfMemory.into();
        Error::Os(OsError::new("madvise", "a range", source))
    }

    #[test]
    fn a_node_of_this_machine_tells_its_memory() {
        let said = on_node(numa::with_memory()[0], None, &Options::default());
        assert!(said.contains(" available, free blocks of up to "), "{said}");
        let pool = smallest_hugetlb().and_then(Pool::of);
        let said = on_node(Node(u32::MAX), pool.as_ref(), &Options::default());
        assert!(!said.contains("free pages"), "{said}");
    }
}
