//! Caches pages of real files, compressed, in an object pool. At a limit on the pool's memory, the
//! pool evicts the oldest pages. A miss reads the page from its file.
//!
//! `zpool_page_cache [DIR]` reads files of `DIR`, or of the program's own directory.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use glebe_zpool::page_size;
use glebe_zpool::units::Bytes;
use glebe_zpool::{AtLimit, Error, Handle, ObjectPool, Stats};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const READ_MAX: Bytes = Bytes::mib(16);
const READ_PER_LIMIT: u64 = 4;
const LIMIT_MIN: Bytes = Bytes::mib(1);
const READS_PER_PAGE: usize = 20;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    file: usize,
    index: u64,
}

struct Cache {
    pool: ObjectPool,
    pages: HashMap<Key, Handle>,
    hits: u64,
    misses: u64,
}

impl Cache {
    fn new(limit: Bytes) -> Outcome<Self> {
        let pool = ObjectPool::options().limit(limit).at_limit(AtLimit::EvictOldest).build()?;
        Ok(Self { pool, pages: HashMap::new(), hits: 0, misses: 0 })
    }

    fn read(&mut self, key: Key, files: &[File], page: &mut [u8]) -> Outcome<usize> {
        if let Some(&handle) = self.pages.get(&key) {
            match self.pool.read(handle, page) {
                Ok(len) => {
                    self.hits += 1;
                    return Ok(len);
                }
                // A stale handle never returns another page's bytes.
                Err(Error::Stale) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.misses += 1;
        let len = read_page(&files[key.file], key.index, page)?;
        self.pages.insert(key, self.pool.insert(&page[..len])?);
        Ok(len)
    }

    fn useful(&self) -> u64 {
        let lens = self.pages.values().filter_map(|&handle| self.pool.len_of(handle).ok());
        lens.map(|len| len as u64).sum()
    }
}

fn read_page(file: &File, index: u64, page: &mut [u8]) -> io::Result<usize> {
    let (start, mut done) = (index * page.len() as u64, 0);
    while done < page.len() {
        match file.read_at(&mut page[done..], start + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

fn files_below(dir: &Path, found: &mut Vec<File>) -> io::Result<()> {
    let mut paths: Vec<_> = fs::read_dir(dir)?.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_dir() => files_below(&path, found)?,
            Ok(meta) if meta.is_file() => found.extend(File::open(&path)),
            _ => {}
        }
    }
    Ok(())
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % end
    }

    fn skewed(&mut self, end: usize) -> usize {
        let below = 1 + self.below(end);
        let below = 1 + self.below(below);
        self.below(below)
    }
}

fn main() -> Outcome<()> {
    let own = std::env::current_exe()?;
    let given = std::env::args_os().nth(1).map(PathBuf::from);
    let dir = given.as_deref().or(own.parent()).ok_or("a program has a directory")?;
    let mut files = Vec::new();
    files_below(dir, &mut files)?;
    let page = page_size();
    let (mut keys, mut total) = (Vec::new(), Bytes::ZERO);
    for (file, opened) in files.iter().enumerate() {
        let len = Bytes::new(opened.metadata()?.len()).min(READ_MAX.saturating_sub(total));
        total = total + len;
        keys.extend((0..len.pages_up(page).get()).map(|index| Key { file, index }));
    }
    if keys.is_empty() {
        return Err(format!("no files below {}", dir.display()).into());
    }
    let mut rng = Rng(1);
    (1..keys.len()).for_each(|at| keys.swap(at, rng.below(at + 1)));

    let limit = Bytes::new(total.get() / READ_PER_LIMIT).max(LIMIT_MIN);
    let mut cache = Cache::new(limit)?;
    let len = page.bytes().as_usize();
    let (mut found, mut expected) = (vec![0; len], vec![0; len]);
    for _ in 0..keys.len() * READS_PER_PAGE {
        let key = keys[rng.skewed(keys.len())];
        let found_len = cache.read(key, &files, &mut found)?;
        let expected_len = read_page(&files[key.file], key.index, &mut expected)?;
        assert_eq!(found[..found_len], expected[..expected_len], "the bytes of the file");
        assert!(cache.pool.held() <= limit, "the limit counts everything");
    }
    let stats = cache.pool.stats();
    stats.check()?;
    let ratio = report(&cache, &stats, total, limit)?;
    if total.get() >= limit.get() * READ_PER_LIMIT {
        let share = cache.hits as f64 / (cache.hits + cache.misses) as f64;
        assert!(stats.evicted > 0, "not everything has room");
        assert!(share > 0.5, "most reads are of the pages in demand, which stay");
        assert!(stats.overhead() < 0.2, "a page takes little more than its bytes");
        assert!(given.is_some() || ratio > 1.3, "and programs have fewer than they seem to");
    }
    Ok(())
}

fn report(cache: &Cache, stats: &Stats, total: Bytes, limit: Bytes) -> io::Result<f64> {
    let mut out = io::stdout();
    let reads = cache.hits + cache.misses;
    let ratio = cache.useful() as f64 / stats.held_bytes as f64;
    writeln!(out, "files of {total}, a cache of {limit}")?;
    writeln!(out, "hits: {:.1} % of {reads} reads", 100.0 * cache.hits as f64 / reads as f64)?;
    writeln!(out, "evicted: {} of {} pages that were inserted", stats.evicted, stats.inserted)?;
    writeln!(out, "bytes of files for each byte held: {ratio:.2}")?;
    writeln!(
        out,
        "held beyond what is stored: {:.1} %, {:.1} % without metadata",
        100.0 * stats.overhead(),
        100.0 * stats.overhead_of_pages()
    )?;
    Ok(ratio)
}
