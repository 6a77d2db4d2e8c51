//! [`Layout`]: the offset of each part of a shared file.
//!
//! ```text
//! header    one page: words of 64 bits, in this machine's byte order
//!   0 magic | 1 version | 2 page | 3 granule | 4 granules | 5 holders | 6 data at | 7 total
//!   8 quota | 9 clock | 10 purged | 11 purges | 32.. process of each holder
//!   160.. join time of each holder
//! words     one per granule (`word`)
//! tables    one per holder, whole pages: 16 bits per granule, four to a word (`protocol`)
//! fence     an allocated page, then a hole: SEEK_DATA and SEEK_HOLE end here, not in the data
//! data      from a multiple of the granule and of the page; or elsewhere (`store`)
//! locks     bytes that do not exist: join, purge, purger, one per holder
//! ```
//!
//! Unit: bytes. The file is sparse. A process reads the header once and checks it, so no later
//! write becomes an offset or a length.

use crate::Error;
use glebe_os::internal::sys::page_size;
use glebe_os::units::Bytes;

pub(super) const MAGIC: u64 = u64::from_ne_bytes(*b"glebevol");
const MAGIC_OVER: u64 = u64::from_ne_bytes(*b"glebeovr");
const VERSION: u64 = 1;
const FIXED: usize = 9;
const HOLDERS_AT: u64 = 32;
const JOINED_AT: u64 = HOLDERS_AT + HOLDERS_MAX as u64;
pub(super) const NO_QUOTA: u64 = u64::MAX;
pub(super) const HOLDERS_MAX: u32 = 128;
const LOCKS_AT: u64 = 1 << 62;
/// Highest offset of the data, which bounds each process's bits (one per page before the data).
const LEDGER_MAX: u64 = 1 << 38;
pub(super) const WORD: u64 = size_of::<u64>() as u64;
const _: () = assert!((JOINED_AT + HOLDERS_MAX as u64) * WORD <= 1 << 12);

const FENCE_PAGES: u64 = 2;

#[derive(Clone, Copy, Debug)]
pub(super) enum Field {
    /// Microseconds of the last mark or restore.
    Clock,
    PurgedBytes,
    Purges,
    /// Process number in the holder's PID namespace; 0 if the holder's table is unused.
    Process(u32),
    /// Join time in microseconds, which distinguishes successive processes of a holder number.
    Joined(u32),
}

impl Field {
    pub(super) fn at(self) -> u64 {
        let word = match self {
            Self::Clock => 9,
            Self::PurgedBytes => 10,
            Self::Purges => 11,
            Self::Process(holder) => HOLDERS_AT + u64::from(holder),
            Self::Joined(holder) => JOINED_AT + u64::from(holder),
        };
        word * WORD
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) page: u64,
    pub(super) granule: u64,
    pub(super) granules: u64,
    pub(super) holders: u32,
    pub(super) quota: u64,
    table_len: u64,
    tables_at: u64,
    pub(super) data_at: u64,
    pub(super) total: u64,
}

impl Layout {
    pub(super) fn new(
        len: Bytes,
        granule: Bytes,
        holders: u32,
        quota: Option<Bytes>,
    ) -> Result<Self, Error> {
        let page = page_size().bytes().get();
        let option = |what, value, limit| Error::BadOption { what, value, limit };
        let granule = granule.get();
        if !granule.is_power_of_two() || granule < page {
            return Err(option("the granule is no power of two of at least a page", granule, page));
        }
        if holders == 0 || holders > HOLDERS_MAX {
            return Err(option("holders", holders.into(), HOLDERS_MAX.into()));
        }
        if let Some(quota) = quota.filter(|quota| quota.get() < granule) {
            return Err(option("the pin quota holds no granule", quota.get(), granule));
        }
        if len == Bytes::ZERO {
            return Err(Error::Empty);
        }
        let quota = quota.map_or(NO_QUOTA, |quota| quota.get() / granule);
        let too_long = Error::Beyond { end: len, limit: Bytes::new(LOCKS_AT) };
        Self::of(page, granule, len.get().div_ceil(granule), holders, quota).ok_or(too_long)
    }

    pub(super) fn without_data(self) -> Self {
        Self { total: self.data_at, ..self }
    }

    fn is_without_data(&self) -> bool {
        self.total == self.data_at
    }

    fn of(page: u64, granule: u64, granules: u64, holders: u32, quota: u64) -> Option<Self> {
        let up = |at: u64, to: u64| at.checked_next_multiple_of(to);
        let tables_at = up(page.checked_add(granules.checked_mul(WORD)?)?, page)?;
        let table_len = up(granules.checked_mul(size_of::<u16>() as u64)?, page)?;
        let tables_end = tables_at.checked_add(table_len.checked_mul(holders.into())?)?;
        let data_at = up(tables_end.checked_add(FENCE_PAGES * page)?, granule)?;
        let total = data_at.checked_add(granules.checked_mul(granule)?)?;
        let fits = total < LOCKS_AT && data_at <= LEDGER_MAX && usize::try_from(total).is_ok();
        fits.then_some(Self {
            page,
            granule,
            granules,
            holders,
            quota,
            table_len,
            tables_at,
            data_at,
            total,
        })
    }

    pub(super) const HEADER: usize = FIXED * WORD as usize;

    fn words(&self) -> [u64; FIXED] {
        let Self { page, granule, granules, holders, quota, data_at, total, .. } = *self;
        let magic = if self.is_without_data() { MAGIC_OVER } else { MAGIC };
        [magic, VERSION, page, granule, granules, holders.into(), data_at, total, quota]
    }

    pub(super) fn header(&self) -> Vec<u8> {
        self.words().iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    pub(super) fn read(header: &[u8; Self::HEADER], len: Bytes) -> Result<Self, Error> {
        let mut words = [0; FIXED];
        for (word, bytes) in words.iter_mut().zip(header.chunks_exact(WORD as usize)) {
            *word = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        }
        let [.., page, granule, granules, holders, _, _, quota] = words;
        let holders_fit = u32::try_from(holders).ok().filter(|n| (1..=HOLDERS_MAX).contains(n));
        let here = page_size().bytes().get();
        let bad = |what, value, expected| Error::BadFile { what, value, expected };
        for (what, value, expected) in [
            ("the magic", words[0], MAGIC),
            ("the version", words[1], VERSION),
            ("the page", page, here),
        ] {
            if value != expected {
                return Err(bad(what, value, expected));
            }
        }
        if !granule.is_power_of_two() || granule < page {
            return Err(bad("the granule", granule, page));
        }
        let holders = holders_fit.ok_or(bad("the holders", holders, HOLDERS_MAX.into()))?;
        if granules == 0 {
            return Err(bad("the granules", granules, 1));
        }
        let layout = Self::of(page, granule, granules, holders, quota);
        let layout = layout.ok_or(bad("the granules", granules, LOCKS_AT / granule))?;
        for (what, value, expected) in
            [("the data's offset", words[6], layout.data_at), ("the total", words[7], layout.total)]
        {
            if value != expected {
                return Err(bad(what, value, expected));
            }
        }
        if len.get() < layout.total {
            return Err(Error::Truncated { len, needed: Bytes::new(layout.total) });
        }
        Ok(layout)
    }

    pub(super) fn granule(&self) -> Bytes {
        Bytes::new(self.granule)
    }

    pub(super) fn len(&self) -> Bytes {
        Bytes::new(self.granules * self.granule)
    }

    pub(super) fn word_at(&self, index: u64) -> u64 {
        self.page + index * WORD
    }

    pub(super) fn counts_at(&self, holder: u32, index: u64) -> u64 {
        self.table_at(holder) + index / super::protocol::COUNTS * WORD
    }

    pub(super) fn table(&self, holder: u32) -> (u64, u64) {
        (self.table_at(holder), self.table_len)
    }

    pub(super) fn tables(&self) -> (u64, u64) {
        (self.tables_at, self.table_len * u64::from(self.holders))
    }

    pub(super) fn fence(&self) -> u64 {
        let (at, len) = self.tables();
        at + len
    }

    fn table_at(&self, holder: u32) -> u64 {
        self.tables_at + u64::from(holder) * self.table_len
    }

    pub(super) const JOIN: u64 = LOCKS_AT;
    pub(super) const PURGE: u64 = LOCKS_AT + 1;

    /// Lock byte of the purger that claimed the file.
    pub(super) const PURGER: u64 = LOCKS_AT + 2;

    pub(super) fn holder_lock(holder: u32) -> u64 {
        LOCKS_AT + 16 + u64::from(holder)
    }

    pub(super) fn holder_locks(&self) -> std::ops::Range<u64> {
        Self::holder_lock(0)..Self::holder_lock(self.holders)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(len: Bytes, holders: u32) -> Layout {
        Layout::new(len, Bytes::mib(2), holders, None).unwrap()
    }

    #[test]
    fn parts_follow_each_other_and_do_not_overlap() {
        let layout = layout(Bytes::new(Bytes::mib(9).get() + 1), 3);
        assert_eq!((layout.granules, layout.len()), (5, Bytes::mib(10)));
        let (first, last) = (layout.table(0), layout.table(2));
        assert!(layout.word_at(4) + WORD <= first.0 && first.0 % layout.page == 0);
        assert!(layout.counts_at(2, 4) + WORD <= last.0 + last.1);
        assert!(layout.fence() == last.0 + last.1 && layout.data_at % layout.granule == 0);
        assert!(layout.fence() + FENCE_PAGES * layout.page <= layout.data_at);
        assert_eq!(layout.tables(), (first.0, 3 * first.1));
        assert!(Field::Process(HOLDERS_MAX - 1).at() + WORD <= Field::Joined(0).at());
        assert!(Field::Joined(HOLDERS_MAX - 1).at() + WORD <= layout.page);
    }

    #[test]
    fn a_header_is_read_as_it_was_written_and_nothing_else_is() {
        let layout = layout(Bytes::mib(10), 64);
        let total = Bytes::new(layout.total);
        let header: [u8; Layout::HEADER] = layout.header().try_into().unwrap();
        assert_eq!(Layout::read(&header, total).unwrap(), layout);
        let short = Layout::read(&header, total - Bytes::new(1)).unwrap_err();
        assert!(matches!(short, Error::Truncated { .. }), "{short}");
        for at in 0..FIXED - 1 {
            for value in [0, 1, 3, u64::MAX, 1 << 62, 1 << 63] {
                let mut wrong = header;
                wrong[at * 8..at * 8 + 8].copy_from_slice(&value.to_ne_bytes());
                if wrong != header {
                    match Layout::read(&wrong, total) {
                        Err(Error::BadFile { .. } | Error::Truncated { .. }) => {}
                        // Another number of holders may lead to the same total.
                        Ok(other) => assert!(at == 5 && other.total == layout.total, "{other:?}"),
                        Err(error) => panic!("{at} {value:#x}: {error}"),
                    }
                }
            }
        }
    }

    #[test]
    fn options_that_cannot_be_are_refused() {
        let page = page_size().bytes();
        let refused = |len, granule, holders, quota| {
            Layout::new(len, granule, holders, quota).unwrap_err().to_string()
        };
        let three = Bytes::new(3 * page.get());
        let said = refused(page, three, 1, None);
        assert!(said.contains("granule") && said.contains(&three.get().to_string()), "{said}");
        for (granule, holders) in [(Bytes::new(page.get() / 2), 1), (page, 0), (page, 129)] {
            refused(page, granule, holders, None);
        }
        assert!(refused(page, page, 1, Some(Bytes::new(1))).contains("quota"));
        for len in [u64::MAX, 1 << 62, 1 << 52] {
            assert!(refused(Bytes::new(len), page, 1, None).contains("limit"));
        }
        assert!(refused(Bytes::ZERO, page, 1, None).contains("no bytes"));
    }
}
