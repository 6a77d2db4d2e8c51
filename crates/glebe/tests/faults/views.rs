//! A life of views: of a reserve with every other page free, and of a file; made, filled, dropped.
//!
//! Whatever call fails: bytes are where they were written, and all pages come back.

use std::sync::Arc;

use glebe::contig::{Contig, Source};
use glebe::extent::Extent;
use glebe::reserve::Reserve;
use glebe::sys::page_size;
use glebe::units::{Bytes, Pages};
use glebe::vmap::{MemFile, Space};

use super::{Outcome, ONE};

/// One life; the first error is its outcome.
pub fn live() -> Outcome {
    let outcome = of_a_reserve();
    of_a_file().and(outcome)
}

fn of_a_reserve() -> Outcome {
    let options = Contig::options().source(Source::Plain).threads(1);
    let reserve = Reserve::builder().views().map_with(options, Bytes::mib(2))?;
    let mut held = Vec::new();
    let mut error = loop {
        match reserve.alloc(ONE, ONE) {
            Ok(block) => held.push(block),
            Err(glebe::reserve::Error::NoRun { .. }) => break None,
            Err(other) => break Some(other),
        }
    };
    held.retain(|block| block.extent().start() % 2 == 0);
    for round in 0..3_u8 {
        match reserve.alloc_virtual(Pages::new(20)) {
            Ok(mut block) => {
                block.bytes_mut()?.fill(round);
                assert!(block.bytes()?.iter().all(|byte| *byte == round));
                if round == 1 {
                    let parts = block.into_blocks();
                    assert!(parts.iter().all(|part| part.bytes().is_ok_and(|b| b[0] == round)));
                }
            }
            Err(refused) => error = error.or(Some(refused)),
        }
        assert_eq!(reserve.stats().held, Pages::new(held.len() as u64));
    }
    drop(held);
    assert_eq!(reserve.stats().held, Pages::ZERO);
    reserve.stats().check()?;
    error.map_or(Ok(()), |error| Err(error.into()))
}

fn of_a_file() -> Outcome {
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
    // What could not be unmapped then is unmapped now, or with the space.
    let again = space.flush();
    let usage = space.usage();
    assert_eq!(usage.views, 0);
    assert!(again.is_err() || (usage.mappings, usage.lazy) == (0, Bytes::ZERO), "{usage:?}");
    error.map_or(Ok(()), |error| Err(error.into()))
}
