//! [`live`] builds a reserve, uses its cache, blocks and promises, and drops it.

use glebe::contig::Options;
use glebe::page_size;
use glebe::reserve::{Block, Namespace, Put, Request, Reserve, ReserveError};
use glebe::units::{Bytes, Pages};

use super::bytes::page_of;
use super::{Errors, Outcome};

pub const ONE: Pages = Pages::new(1);
pub const GRANULE: Bytes = Bytes::mib(2);
pub const LEN: Bytes = Bytes::mib(6);

fn filled(reserve: &Reserve, request: Request, fill: u8) -> Result<(Block, u8), ReserveError> {
    let mut block = reserve.alloc(request)?;
    block.bytes_mut()?.fill(fill);
    Ok((block, fill))
}

pub fn look_at_all(pool: &Namespace, pages: u64) -> Result<(), ReserveError> {
    let mut buf = page_of(0).to_vec();
    for index in 0..pages {
        if pool.get(1, index, &mut buf)? {
            assert_eq!(buf, page_of(index), "page {index}");
        }
    }
    Ok(())
}

pub fn live(options: Options, len: Bytes, zero_ahead: Pages) -> Outcome {
    let reserve = Reserve::options().zero_ahead(zero_ahead).build_on(options.build(len)?)?;
    let all = reserve.len().get();
    let granule = GRANULE.pages_down(page_size()).get();
    let mut errors = Errors::new();
    let pool = reserve.page_cache().namespace("faults")?;
    for index in 0..all {
        let put = pool.put(1, index, page_of(index))?;
        assert!(put == Put::Stored || zero_ahead > Pages::ZERO, "{index}: {put:?}");
    }
    look_at_all(&pool, all)?;
    let promise = errors.keep(reserve.promise(ONE));
    let mut blocks = Vec::new();
    for (fill, pages) in [(0xa1, 1), (0xa2, 3), (0xa3, granule + 5)] {
        let request = Request::new(Pages::new(pages)).any();
        blocks.extend(errors.keep(filled(&reserve, request, fill)));
    }
    let request = Request::new(Pages::new(granule)).any().zeroed();
    if let Some(zeroed) = errors.keep(reserve.alloc(request)) {
        assert!(zeroed.bytes()?.iter().all(|byte| *byte == 0), "a zeroed block");
    }
    look_at_all(&pool, all)?;
    let taken = promise.and_then(|promise| errors.keep(promise.take()));
    for index in 0..all {
        pool.put(1, index, page_of(index))?;
    }
    pool.invalidate_page(1, 1)?;
    assert!(!pool.get(1, 1, &mut page_of(0).to_vec())?, "a page that was invalidated");
    look_at_all(&pool, all)?;
    for (block, fill) in &blocks {
        assert!(block.bytes()?.iter().all(|byte| byte == fill), "a block of {fill:#x}");
    }
    drop((taken, blocks));
    pool.invalidate_all()?;
    if zero_ahead == Pages::ZERO {
        reserve.stats().check()?; // otherwise the thread may be at work
    }
    assert_eq!(reserve.stats().held, Pages::ZERO);
    errors.outcome()
}
