//! [`live`] makes, fills and drops views of a file.

use std::sync::Arc;

use glebe::extent::Extent;
use glebe::page_size;
use glebe::units::{Bytes, Pages};
use glebe::vmap::{MemFile, Space};

use super::Outcome;

pub fn live() -> Outcome {
    let page = page_size().bytes();
    let file = Arc::new(MemFile::new(Pages::new(16).bytes(page_size()))?);
    let space = Space::options().lazy_max(page).build(Pages::new(64).bytes(page_size()))?;
    let mut error = None;
    for start in 0..4 {
        let extents: Vec<Extent> = (0..4).filter_map(|n| Extent::new(start + 3 * n, 1)).collect();
        match space.view(&file, &extents) {
            Ok(view) => {
                let copied = view.write(Bytes::ZERO, b"bytes").and_then(|()| {
                    let mut bytes = [0; 5];
                    view.read(Bytes::ZERO, &mut bytes)?;
                    assert_eq!(&bytes, b"bytes");
                    Ok(())
                });
                error = error.or(copied.err());
            }
            Err(refused) => error = error.or(Some(refused)),
        }
    }
    error = error.or(space.flush().err());
    // Tries again to unmap what the first flush could not unmap.
    let again = space.flush();
    let usage = space.usage();
    assert_eq!(usage.views, 0);
    assert!(again.is_err() || (usage.mappings, usage.lazy) == (0, Bytes::ZERO), "{usage:?}");
    error.map_or(Ok(()), |error| Err(error.into()))
}
