//! [`live`] makes a reserve grow and shrink.

use glebe::contig::Options;
use glebe::page_size;
use glebe::reserve::{Request, Reserve, ReserveError};
use glebe::units::{Bytes, Pages};

use super::bytes::page_of;
use super::reserve::{look_at_all, GRANULE};
use super::{Errors, Outcome};

const ROOM: Bytes = Bytes::mib(8);
const MORE: u64 = 100;

pub fn live(options: Options) -> Outcome {
    let builder = Reserve::options().room(ROOM);
    let reserve = builder.memory(options).build(GRANULE)?;
    let pool = reserve.page_cache().namespace("faults")?;
    let most = ROOM.pages_down(page_size()).get();
    let fill = || {
        let keys = 0..reserve.len().get() + MORE;
        keys.into_iter().try_for_each(|key| pool.put(1, key, page_of(key)).map(drop))
    };
    let mut errors = Errors::new();
    let mut len = GRANULE;
    for mib in [4, 2] {
        let more = Bytes::mib(mib);
        let grown = errors.keep(reserve.grow(more));
        len = len + grown.map_or(Bytes::ZERO, |came| came.len);
        assert_eq!(reserve.len().bytes(page_size()), len, "all or nothing");
        fill()?;
        look_at_all(&pool, most)?;
        let mut block = reserve.alloc(Request::new(Pages::new(3)).any())?;
        block.bytes_mut()?.fill(0xa5);
        let gone = reserve.shrink(GRANULE);
        if !matches!(gone, Err(ReserveError::NotGiven { .. })) {
            let gone = errors.keep(gone);
            len = len - gone.map_or(Bytes::ZERO, |gone| gone.len);
        }
        assert_eq!(reserve.len().bytes(page_size()), len, "all or nothing");
        fill()?;
        look_at_all(&pool, most)?;
        assert!(block.bytes()?.iter().all(|byte| *byte == 0xa5), "a block beside what goes");
    }
    drop(reserve.alloc(Request::new(reserve.len()).any()));
    reserve.stats().check()?;
    assert_eq!(reserve.stats().total.bytes(page_size()), len);
    errors.outcome()
}
