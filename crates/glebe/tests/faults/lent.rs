//! [`live`] makes, fills and drops an object pool on lent pages; a compressed page cache uses the
//! same reserve. In between, allocating a block recalls some of the pages.
//!
//! Whichever call fails, a read returns the bytes that were put, nothing, or an error. Unless the
//! recall failed, the statistics are consistent.

use glebe::contig::{Contig, Source};
use glebe::reserve::Reserve;
use glebe::units::{Bytes, Pages};
use glebe::zpool::Codec;

use super::Outcome;

const OBJECTS: usize = 300;

fn bytes_of(n: usize) -> Vec<u8> {
    vec![n as u8; 100 + n * 37 % 3000]
}

pub fn live() -> Outcome {
    let memory = Contig::options().source(Source::Plain).build(Bytes::mib(2))?;
    let builder = Reserve::options().page_cache(Codec::Lz4);
    let reserve = builder.build_on(memory)?;
    let cache = reserve.page_cache().namespace("p")?;
    let page = vec![7; glebe::page_size().bytes().as_usize()];
    cache.put(1, 1, &page)?;
    let pool = reserve.object_pool().staging(Bytes::new(1)).codec(Codec::None).build()?;
    let (mut handles, mut error) = (Vec::new(), None);
    for n in 0..OBJECTS {
        match pool.insert(&bytes_of(n)) {
            Ok(handle) => handles.push((n, handle)),
            Err(refused) => error = error.or(Some(refused)),
        }
    }
    let block = reserve.alloc(glebe::reserve::Request::new(Pages::new(200)).any());
    let mut buf = page.clone();
    for (n, handle) in &handles {
        if let Ok(Some(len)) = pool.read(*handle, &mut buf) {
            assert!(buf[..len] == *bytes_of(*n), "object {n}");
        }
    }
    assert!(!cache.get(1, 1, &mut buf)? || buf == page);
    drop(block?);
    pool.stats().check()?;
    drop(pool);
    reserve.stats().check()?;
    error.map_or(Ok(()), |error| Err(error.into()))
}
