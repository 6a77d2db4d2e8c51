//! A file cache on a reserve reads up to 32 MiB of this program's file three times: without cached
//! pages, from the cache, and after an invalidation.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use glebe::page_size;
use glebe::reserve::{Namespace, Reserve, ReserveError};
use glebe::units::Bytes;

struct CachedFile {
    file: File,
    object: u64,
    pool: Namespace,
}

impl CachedFile {
    fn open(path: &Path, reserve: &Reserve) -> Result<Self, Box<dyn std::error::Error>> {
        let file = File::open(path)?;
        let meta = file.metadata()?;
        // A namespace for each file system and an object for each file, as in cleancache.
        let pool = reserve.page_cache().namespace(&format!("device {}", meta.dev()))?;
        Ok(Self { file, object: meta.ino(), pool })
    }

    /// Reads a page of the file, padded with zeros. Returns true if the page was cached.
    fn read(&self, index: u64, page: &mut [u8]) -> Result<bool, Box<dyn std::error::Error>> {
        if self.pool.get(self.object, index, page)? {
            return Ok(true);
        }
        let (start, mut done) = (index * page.len() as u64, 0);
        while done < page.len() {
            match self.file.read_at(&mut page[done..], start + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        page[done..].fill(0);
        self.pool.put(self.object, index, page)?;
        Ok(false)
    }

    fn invalidate(&self) -> Result<(), ReserveError> {
        self.pool.invalidate_object(self.object)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = io::stdout();
    let reserve = Reserve::new(Bytes::mib(64))?;
    let path = std::env::current_exe()?;
    let cached = CachedFile::open(&path, &reserve)?;
    let mut page = vec![0; page_size().bytes().as_usize()];
    let pages = path.metadata()?.len().div_ceil(page.len() as u64).min(reserve.len().get() / 2);
    for round in ["first", "second", "after a change"] {
        if round == "after a change" {
            cached.invalidate()?;
        }
        let mut hits = 0;
        for index in 0..pages {
            hits += u64::from(cached.read(index, &mut page)?);
        }
        writeln!(out, "{round}: {hits} of {pages} pages from the cache")?;
        let expected = if round == "second" { pages } else { 0 };
        if hits.abs_diff(expected) > pages / 100 {
            return Err(format!("expected {expected} hits").into());
        }
    }
    Ok(())
}
