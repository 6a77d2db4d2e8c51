//! Tests encrypted files: they contain no plain bytes, and changed bytes cause errors.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use glebe::swap::cache::SwapCache;
use glebe::swap::{Key, Store, SwapError, SwapOptions};
use glebe::units::Pages;
use glebe_testing::Scratch;

use super::{bytes_of, page, pages, Matter};

/// Pages that a file may have.
const LIMIT: u64 = 8192;
const UNIT: usize = 512;

pub(super) struct Dir(Scratch);

impl Dir {
    pub(super) fn new(name: &str) -> Self {
        Self(Scratch::new(name))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Opens the store's nameless file again.
    pub(super) fn file(&self) -> File {
        let mut links = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
        let is_here =
            |link: &PathBuf| fs::read_link(link).is_ok_and(|to| to.starts_with(self.0.path()));
        let link = links.find(is_here).expect("a file in the directory");
        OpenOptions::new().read(true).write(true).open(link).unwrap()
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.file().read_to_end(&mut bytes).unwrap();
        bytes
    }
}

fn options(dir: &Path) -> SwapOptions {
    let options = Store::options().pool_limit(pages(64)).capacity(pages(16 << 10));
    options.file_in(dir, pages(LIMIT))
}

/// Returns noise, which a plain file stores unchanged.
fn noise(n: u64) -> Vec<u8> {
    bytes_of(n, page(), Matter::Noise)
}

fn found(bytes: &[u8], pages: u64) -> usize {
    let heads: std::collections::HashSet<_> = bytes.chunks_exact(8).collect();
    (0..pages).filter(|n| noise(*n).chunks_exact(8).take(8).all(|w| heads.contains(w))).count()
}

fn insert_all(store: &Store, count: u64) -> Vec<Key> {
    (0..count).map(|n| store.insert(&noise(n)).unwrap()).collect()
}

#[test]
fn no_plain_byte_of_an_object_is_in_the_file_and_a_flipped_one_is_an_error() {
    let dir = Dir::new("sealed-store");
    let plain = options(dir.0.path()).build(pages(256)).unwrap();
    insert_all(&plain, 1000);
    assert!(found(&dir.bytes(), 1000) > 600, "what is written plain can be found");
    drop(plain);
    let store = options(dir.0.path()).encrypted().build(pages(256)).unwrap();
    let keys = insert_all(&store, 1000);
    let bytes = dir.bytes();
    assert!(bytes.len() > 600 * page(), "{} bytes", bytes.len());
    assert_eq!(found(&bytes, 1000), 0);
    // Flips a bit in each unit, and so in each record.
    let file = dir.file();
    for at in (0..bytes.len()).step_by(UNIT) {
        file.write_all_at(&[bytes[at] ^ 0x10], at as u64).unwrap();
    }
    let spilled = store.stats().spilled;
    let mut damaged = 0;
    for (n, key) in keys.iter().enumerate().rev() {
        match store.take(*key) {
            Ok(bytes) => assert!(bytes == noise(n as u64), "object {n}"),
            Err(SwapError::Damaged { .. }) => damaged += 1,
            Err(error) => panic!("object {n}: {error}"),
        }
    }
    assert_eq!(damaged, spilled, "{}", store.stats());
}

#[test]
fn objects_of_every_length_come_back_from_an_encrypted_file() {
    let dir = Dir::new("sealed-lengths");
    let (most, half) = (2 << 20, (256 * page()).min(2 << 20));
    let lens = [1, 488, 489, page() - 1, page(), 5 * page() + 9, half, most];
    let all: Vec<_> = (0..32).map(|n| bytes_of(n, lens[n as usize % 8], Matter::Noise)).collect();
    let total: usize = all.iter().map(|bytes| bytes.len().div_ceil(page())).sum();
    let store = options(dir.0.path()).encrypted().build(pages(total as u64 / 3)).unwrap();
    let keys: Vec<_> = all.iter().map(|bytes| store.insert(bytes).unwrap()).collect();
    for (key, bytes) in keys.iter().zip(&all).chain(keys.iter().zip(&all)) {
        assert!(*store.pin(*key).unwrap() == **bytes, "{} bytes", bytes.len());
    }
    let stats = store.stats();
    assert!(stats.read_back > 20, "{stats}");
    keys.iter().for_each(|key| store.free(*key).unwrap());
    assert_eq!(store.stats().file, Pages::ZERO);
}

#[test]
fn nor_is_one_of_an_areas_page() {
    for is_encrypted in [false, true] {
        let dir = Dir::new("sealed-area");
        let cache = SwapCache::with_limit(pages(64)).unwrap();
        let cache = if is_encrypted { cache.encrypted() } else { cache };
        let area = cache.area(Pages::new(200), dir.0.path(), pages(LIMIT)).unwrap();
        (0..200).for_each(|n| area.store(n, &noise(n)).unwrap());
        assert_eq!(found(&dir.bytes(), 200), if is_encrypted { 0 } else { 200 });
        let mut out = vec![0; page()];
        for n in 0..200 {
            assert!(area.load(n, &mut out).unwrap() && out == noise(n), "page {n}");
        }
        assert!(area.stats().read_back > 100, "{}", area.stats());
    }
}

#[test]
fn nor_is_one_of_a_regions_page() {
    let dir = Dir::new("sealed-region");
    let region = match options(dir.0.path()).encrypted().build_region(pages(512), pages(64)) {
        Ok(region) => region,
        Err(error) => return println!("skipped: {error}"),
    };
    (0..512).for_each(|n| region.write_at(pages(n), &noise(n)).unwrap());
    let bytes = dir.bytes();
    assert!(bytes.len() > 100 * page(), "{} bytes", bytes.len());
    assert_eq!(found(&bytes, 512), 0);
    let mut out = vec![0; page()];
    for n in 0..512 {
        region.read_at(pages(n), &mut out).unwrap();
        assert!(out == noise(n), "page {n}");
    }
    assert!(region.stats().read_back > 100, "{}", region.stats());
}
