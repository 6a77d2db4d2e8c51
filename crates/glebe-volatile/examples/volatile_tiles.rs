//! Caches tiles (pieces of files, turned into pixels) in volatile memory, and makes only lost pages
//! again.
//!
//! `volatile_tiles [DIR]` reads `DIR`, or the library's sources. In a tight memory cgroup
//! (`systemd-run --scope -p MemoryMax=16M`) the kernel purges tiles. The example also drops some.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use glebe_volatile::page_size;
use glebe_volatile::units::{Bytes, Pages};
use glebe_volatile::{Priority, Region};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const TILE: Pages = Pages::new(16);
const CACHE: Bytes = Bytes::mib(32);

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    file: usize,
    tile: u64,
}

struct Tiles {
    files: Vec<PathBuf>,
    region: Region,
    slots: HashMap<Key, u64>,
    /// The key in each slot, oldest first from `next` on.
    holds: Vec<Option<Key>>,
    next: u64,
}

impl Tiles {
    fn new(files: Vec<PathBuf>) -> Outcome<Self> {
        let region = Region::new(CACHE)?;
        let slots = region.len().pages_down(page_size()).get() / TILE.get();
        let holds = vec![None; slots as usize];
        Ok(Self { files, region, slots: HashMap::new(), holds, next: 0 })
    }

    fn get(&mut self, key: Key, pixels: &mut [u8]) -> Outcome<u64> {
        let known = self.slots.get(&key).copied();
        let slot = known.unwrap_or_else(|| self.take_slot(key));
        let range = tile_bytes(slot);
        let purged = self.region.unmark(range.clone())?;
        let first = range.start.pages_down(page_size()).get();
        let lost: Vec<u64> = match known {
            None => (0..TILE.get()).collect(),
            Some(_) => purged
                .runs()
                .iter()
                .flat_map(|run| run.start()..run.end())
                .map(|p| p - first)
                .collect(),
        };
        let mut page = vec![0; page_size().bytes().as_usize()];
        for &nth in &lost {
            self.make(key, nth, &mut page)?;
            self.region.write(Pages::new(first + nth).bytes(page_size()), &page)?;
        }
        self.region.read(range.start, pixels)?;
        self.region.mark(range, Priority::NORMAL)?;
        Ok(lost.len() as u64)
    }

    fn take_slot(&mut self, key: Key) -> u64 {
        let slot = self.next;
        self.next = (slot + 1) % self.holds.len() as u64;
        if let Some(old) = self.holds[slot as usize].replace(key) {
            self.slots.remove(&old);
        }
        self.slots.insert(key, slot);
        slot
    }

    /// Makes a page of grey pixels from file bytes, darker towards the end.
    fn make(&self, key: Key, nth: u64, page: &mut [u8]) -> io::Result<()> {
        let file = File::open(&self.files[key.file])?;
        let offset = (key.tile * TILE.get() + nth) * page.len() as u64;
        let mut done = 0;
        while done < page.len() {
            match file.read_at(&mut page[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        page[done..].fill(0);
        let len = page.len();
        for (at, pixel) in page.iter_mut().enumerate() {
            *pixel = (usize::from(*pixel) * (2 * len - at) / (2 * len)) as u8;
        }
        Ok(())
    }
}

fn tile_bytes(slot: u64) -> Range<Bytes> {
    let at = |slot: u64| Pages::new(slot * TILE.get()).bytes(page_size());
    at(slot)..at(slot + 1)
}

fn files_below(dir: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    let mut paths: Vec<_> = fs::read_dir(dir)?.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_dir() => files_below(&path, found)?,
            Ok(meta) if meta.is_file() && File::open(&path).is_ok() => found.push(path),
            _ => {}
        }
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let mut out = io::stdout();
    let dir = std::env::args_os()
        .nth(1)
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), PathBuf::from);
    let mut files = Vec::new();
    files_below(&dir, &mut files)?;
    let mut keys = Vec::new();
    for (file, path) in files.iter().enumerate() {
        let len = Bytes::new(fs::metadata(path)?.len());
        let tiles = len.pages_up(page_size()).get().div_ceil(TILE.get());
        keys.extend((0..tiles).map(|tile| Key { file, tile }));
    }
    let mut tiles = Tiles::new(files)?;
    keys.truncate(tiles.holds.len());
    if keys.is_empty() {
        return Err(format!("no files below {}", dir.display()).into());
    }
    let pages = keys.len() as u64 * TILE.get();
    writeln!(
        out,
        "{} tiles below {}, engine {}",
        keys.len(),
        dir.display(),
        tiles.region.engine()
    )?;

    let mut pixels = vec![0; tile_bytes(0).end.as_usize()];
    for round in ["first", "second", "after a quarter was dropped"] {
        let mut dropped = Bytes::ZERO;
        if round.starts_with("after") {
            let quarter = tile_bytes((keys.len() as u64).div_ceil(4) - 1).end;
            dropped = tiles.region.drop_now(Bytes::ZERO..quarter)?;
            writeln!(out, "dropped {dropped}, as the kernel does when memory is short")?;
        }
        let mut made = 0;
        for &key in &keys {
            made += tiles.get(key, &mut pixels)?;
            let mut page = vec![0; page_size().bytes().as_usize()];
            for (nth, is) in (0..).zip(pixels.chunks_exact(page.len())) {
                tiles.make(key, nth, &mut page)?;
                if is != page {
                    return Err(format!("page {nth} of tile {} is wrong", key.tile).into());
                }
            }
        }
        writeln!(out, "{round}: {made} of {pages} pages made")?;
        let of_dropped = dropped.pages_down(page_size()).get();
        match round {
            "first" if made != pages => {
                return Err("tiles were there before they were made".into());
            }
            // Pages made may exceed pages dropped, because the kernel may take pages too.
            round if round.starts_with("after") && (of_dropped == 0 || made < of_dropped) => {
                return Err("tiles were there after they were dropped".into());
            }
            _ => {}
        }
    }
    let stats = tiles.region.stats();
    writeln!(out, "{stats}")?;
    Ok(())
}
