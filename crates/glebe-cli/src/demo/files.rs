//! [`FileSet`] reads the files below a directory page by page through a cache.
//!
//! [`FileSet`] takes readable regular files that are not empty, and follows no symbolic links. The
//! reader hashes each page that it caches and checks the hash at each hit.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use glebe::page_size;
use glebe::reserve::Namespace;
use glebe::units::Bytes;

const DEFAULTS: [&str; 3] = ["/usr/lib", "/usr", "/etc"];
const ENTRIES_MAX: usize = 1 << 17;

pub struct FileSet {
    dir: PathBuf,
    files: Vec<(PathBuf, u64)>,
}

#[derive(Default)]
pub struct Reading {
    pub hits: u64,
    pub misses: u64,
    /// Seconds in hits (`hit_s`), and in reads of files after misses (`read_s`).
    pub hit_s: f64,
    pub read_s: f64,
    pub wrong: u64,
}

impl FileSet {
    /// Collects files below `dir`, at most `pages_max` pages in all. Without `dir`, takes the first
    /// of `DEFAULTS` that has files. Fails without files.
    pub fn below(dir: Option<&Path>, pages_max: u64) -> Result<Self, String> {
        let dirs: Vec<&Path> = dir.map_or(DEFAULTS.map(Path::new).to_vec(), |dir| vec![dir]);
        for dir in &dirs {
            let files = walk(dir, pages_max);
            if !files.is_empty() {
                return Ok(Self { dir: dir.to_path_buf(), files });
            }
        }
        Err(format!("no file with contents that can be read below {}", dirs[0].display()))
    }

    pub fn pages(&self) -> u64 {
        self.files.iter().map(|(_, pages)| pages).sum()
    }

    /// Reads all files through `pool` repeatedly until `stop` is set. Adds pages read to `seen`.
    pub fn read_through(
        &self,
        pool: &Namespace,
        stop: &AtomicBool,
        seen: &AtomicU64,
    ) -> Result<Reading, String> {
        let mut reading = Reading::default();
        let mut hashes = HashMap::new();
        let mut page = vec![0; page_size().bytes().as_usize()];
        loop {
            for (nth, (path, pages)) in self.files.iter().enumerate() {
                let Ok(file) = File::open(path) else { continue };
                for index in 0..*pages {
                    if stop.load(Ordering::Relaxed) {
                        return Ok(reading);
                    }
                    let key = (nth as u64, index);
                    one(&file, key, pool, &mut page, &mut hashes, &mut reading)?;
                    seen.fetch_add(1, Ordering::Relaxed);
                }
            }
            // Yields, because the loop would spin if every file were gone.
            std::thread::yield_now();
        }
    }
}

impl fmt::Display for FileSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = Bytes::new(self.pages() * page_size().bytes().get());
        write!(f, "{len} in {} files below {}", self.files.len(), self.dir.display())
    }
}

fn one(
    file: &File,
    (object, index): (u64, u64),
    pool: &Namespace,
    page: &mut [u8],
    hashes: &mut HashMap<(u64, u64), u64>,
    reading: &mut Reading,
) -> Result<(), String> {
    let start = Instant::now();
    if pool.get(object, index, page).map_err(|e| format!("get: {e}"))? {
        reading.hit_s += start.elapsed().as_secs_f64();
        reading.hits += 1;
        reading.wrong += u64::from(hashes.get(&(object, index)) != Some(&hash(page)));
        return Ok(());
    }
    let start = Instant::now();
    let Ok(len) = file.read_at(page, index * page.len() as u64) else { return Ok(()) };
    page[len..].fill(0);
    reading.read_s += start.elapsed().as_secs_f64();
    reading.misses += 1;
    hashes.insert((object, index), hash(page));
    pool.put(object, index, page).map_err(|e| format!("put: {e}"))?;
    Ok(())
}

fn hash(page: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    page.hash(&mut hasher);
    hasher.finish()
}

/// Returns the files below `root` with their pages, at most `pages_max` in all. Stops after
/// `ENTRIES_MAX` entries.
fn walk(root: &Path, pages_max: u64) -> Vec<(PathBuf, u64)> {
    let (mut found, mut left, mut looks) = (Vec::new(), pages_max, 0);
    let mut dirs = vec![root.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            looks += 1;
            if left == 0 || looks > ENTRIES_MAX {
                return found;
            }
            let Ok(meta) = fs::symlink_metadata(entry.path()) else { continue };
            if meta.is_dir() {
                dirs.push(entry.path());
            } else if meta.is_file() && meta.len() > 0 && File::open(entry.path()).is_ok() {
                let pages = Bytes::new(meta.len()).pages_up(page_size()).get().min(left);
                left -= pages;
                found.push((entry.path(), pages));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_takes_files_up_to_the_limit_and_follows_no_link() {
        let root = std::env::temp_dir().join(format!("glebe-demo-files-{}", std::process::id()));
        fs::create_dir_all(root.join("a/b")).unwrap();
        let page = page_size().bytes().as_usize();
        fs::write(root.join("a/one"), vec![1; page + 1]).unwrap();
        fs::write(root.join("a/b/two"), [2]).unwrap();
        fs::write(root.join("empty"), []).unwrap();
        std::os::unix::fs::symlink("..", root.join("a/loop")).unwrap();
        let (all, some) = (walk(&root, u64::MAX), walk(&root, 2));
        fs::remove_dir_all(&root).unwrap();
        let sum = |files: &[(PathBuf, u64)]| files.iter().map(|(_, pages)| pages).sum::<u64>();
        assert_eq!((all.len(), sum(&all), sum(&some)), (2, 3, 2));
        assert!(FileSet::below(Some(Path::new("/nonexistent")), 9).is_err());
    }
}
