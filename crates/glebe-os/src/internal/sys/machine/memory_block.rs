//! [`MemoryBlocks`] takes memory blocks off line and on line, through `/sys/devices/system/memory`.
//!
//! A block is `block_size_bytes` long and begins at its number times that length. The kernel moves
//! the block's pages elsewhere before it takes the block off line. Source:
//! admin-guide/mm/memory-hotplug.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::numa;
use super::numa::Node;
use crate::error::OsError;
use crate::internal::sys::files::bounded_write::write_within;
use crate::internal::sys::files::file;
use crate::internal::sys::page_size;
use crate::units::{Bytes, Pages, Pfn};

const ROOT: &str = "/sys/devices/system/memory";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    Online,
    Offline,
    GoingOffline,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Zone {
    Dma,
    Dma32,
    Normal,
    Movable,
}

impl Zone {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dma => "DMA",
            Self::Dma32 => "DMA32",
            Self::Normal => "Normal",
            Self::Movable => "Movable",
        }
    }

    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Dma, Self::Dma32, Self::Normal, Self::Movable]
            .into_iter()
            .find(|zone| zone.as_str() == name)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBlock {
    pub number: u64,
    pub state: BlockState,
    /// `None` for a block that is off line, in several zones, or has a hole.
    pub zone: Option<Zone>,
    pub node: Option<Node>,
}

#[derive(Clone, Debug)]
pub struct MemoryBlocks {
    root: PathBuf,
    size: Bytes,
}

impl MemoryBlocks {
    /// Fails with NotFound if the kernel cannot take memory off line.
    pub fn machine() -> Result<Self, OsError> {
        Self::below(Path::new(ROOT))
    }

    pub fn below(root: &Path) -> Result<Self, OsError> {
        let path = root.join("block_size_bytes");
        let text = file::text(&path)?;
        let size = u64::from_str_radix(text.trim(), 16)
            .ok()
            .filter(|size| size.is_power_of_two() && *size >= page_size().bytes().get());
        Ok(Self {
            root: root.to_owned(),
            size: Bytes::new(size.ok_or_else(|| file::strange(&path, &text))?),
        })
    }

    #[must_use]
    pub fn size(&self) -> Bytes {
        self.size
    }

    #[must_use]
    pub fn pages(&self) -> Pages {
        self.size.pages_down(page_size())
    }

    #[must_use]
    pub fn first_frame(&self, number: u64) -> Pfn {
        Pfn::new(number.saturating_mul(self.pages().get()))
    }

    #[must_use]
    pub fn is_writable(&self) -> bool {
        let Ok(numbers) = self.numbers() else { return false };
        let first = numbers.first();
        first.is_some_and(|number| file::check_writable(&self.state_path(*number)).is_ok())
    }

    /// Lists the blocks by number, except blocks that cannot be read.
    pub fn list(&self) -> Result<Vec<MemoryBlock>, OsError> {
        let nodes = numa::online();
        let numbers = self.numbers()?.into_iter();
        Ok(numbers.filter_map(|number| self.read_block(number, &nodes).ok()).collect())
    }

    pub fn read(&self, number: u64) -> Result<MemoryBlock, OsError> {
        self.read_block(number, &numa::online())
    }

    /// Takes a block off line. If a page cannot be moved, the kernel may log the page and try until
    /// `deadline`, when the call fails.
    pub fn take_off_line(&self, number: u64, deadline: Duration) -> Result<(), OsError> {
        let path = self.state_path(number);
        let refused = |source| OsError::new("write", path.display().to_string(), source);
        write_within(&path, b"offline", deadline).map_err(refused)
    }

    /// Puts a block on line, in [`Zone::Movable`] or in a zone of the kernel.
    pub fn put_on_line(&self, number: u64, movable: bool) -> Result<(), OsError> {
        let word = if movable { "online_movable" } else { "online_kernel" };
        file::put(self.state_path(number), word)
    }

    fn state_path(&self, number: u64) -> PathBuf {
        self.dir(number).join("state")
    }

    fn dir(&self, number: u64) -> PathBuf {
        self.root.join(format!("memory{number}"))
    }

    fn numbers(&self) -> Result<Vec<u64>, OsError> {
        let refused = |source| OsError::new("readdir", self.root.display().to_string(), source);
        let names = file::names(&self.root).map_err(refused)?;
        let number = |name: &String| name.strip_prefix("memory")?.parse().ok();
        let mut numbers: Vec<u64> = names.iter().filter_map(number).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn read_block(&self, number: u64, nodes: &[Node]) -> Result<MemoryBlock, OsError> {
        let state = match file::text(self.state_path(number))?.trim() {
            "online" => BlockState::Online,
            "offline" => BlockState::Offline,
            _ => BlockState::GoingOffline,
        };
        // For a block off line, the file lists zones that the block could join.
        let zone = match state {
            BlockState::Online => match file::text(self.dir(number).join("valid_zones")) {
                Ok(zones) => Zone::named(zones.trim()),
                // A kernel that cannot take memory off line has no such file.
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            },
            _ => None,
        };
        Ok(MemoryBlock { number, state, zone, node: self.node(number, nodes) })
    }

    fn node(&self, number: u64, nodes: &[Node]) -> Option<Node> {
        if let [only] = nodes {
            return Some(*only);
        }
        let is_of = |node: &&Node| {
            file::exists(&self.dir(number).join(format!("node{}", node.0))).unwrap_or(false)
        };
        nodes.iter().find(is_of).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, io};

    struct Fixture(PathBuf);

    impl Fixture {
        fn new(name: &str, block_size: &str) -> Self {
            let name = format!("glebe-blocks-{name}-{}", std::process::id());
            let root = std::env::temp_dir().join(name);
            fs::create_dir_all(&root).unwrap();
            fs::write(root.join("block_size_bytes"), block_size).unwrap();
            Self(root)
        }

        fn block(&self, number: u64, state: &str, zones: &str) {
            let dir = self.0.join(format!("memory{number}"));
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("state"), state).unwrap();
            fs::write(dir.join("valid_zones"), zones).unwrap();
        }
    }

    impl Drop for Fixture {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn blocks_are_read_in_order_with_state_and_zone() {
        let fixture = Fixture::new("read", "80000000\n");
        fixture.block(10, "online\n", "Normal\n");
        fixture.block(9, "online\n", "none\n");
        fixture.block(2, "offline\n", "Normal Movable\n");
        fixture.block(3, "going-offline\n", "Movable\n");
        fs::create_dir_all(fixture.0.join("memory4")).unwrap(); // disappears
        let blocks = MemoryBlocks::below(&fixture.0).unwrap();
        assert_eq!(blocks.size(), Bytes::gib(2));
        assert_eq!(blocks.first_frame(3).get(), 3 * blocks.pages().get());
        let all = blocks.list().unwrap();
        let seen: Vec<_> = all.iter().map(|b| (b.number, b.state, b.zone)).collect();
        assert_eq!(
            seen,
            [
                (2, BlockState::Offline, None),
                (3, BlockState::GoingOffline, None),
                (9, BlockState::Online, None),
                (10, BlockState::Online, Some(Zone::Normal)),
            ]
        );
        assert!(blocks.read(4).is_err() && blocks.is_writable());
        fixture.block(5, "online\n", "");
        fs::remove_file(fixture.0.join("memory5/valid_zones")).unwrap();
        fs::create_dir(fixture.0.join("memory5/valid_zones")).unwrap();
        assert!(blocks.read(5).is_err(), "a zone that cannot be read is not none");
        blocks.take_off_line(10, Duration::from_secs(5)).unwrap();
        assert_eq!(blocks.read(10).unwrap().state, BlockState::Offline);
        blocks.put_on_line(10, true).unwrap();
        let wrote = fs::read_to_string(fixture.0.join("memory10/state")).unwrap();
        assert_eq!(wrote, "online_movable");
    }

    #[test]
    fn no_hot_unplug_and_strange_sizes_are_errors() {
        let fixture = Fixture::new("none", "8000000");
        let missing = MemoryBlocks::below(&fixture.0.join("no"));
        assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(!MemoryBlocks::below(&fixture.0).unwrap().is_writable(), "no block at all");
        for strange in ["", "0", "7ffffff", "1", "-1", "ffffffffffffffffff"] {
            fs::write(fixture.0.join("block_size_bytes"), strange).unwrap();
            let error = MemoryBlocks::below(&fixture.0).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{strange:?}");
        }
    }
}
