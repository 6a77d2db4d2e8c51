//! [`Recorded`] counts the pages that `glebe contig reserve --record` added to a pool and that no
//! release gave back. It holds the file's lock.
//!
//! A change is recorded before it is made. After a kill, the next command compares the pool with
//! what it was before. So no page of this record is lost. If other programs change the pool between
//! the kill and that command, their pages count too, but never more than the change was to be.
//!
//! ```text
//! BOOT_ID SIZE_BYTES PAGES [BEFORE +PAGES | BEFORE -PAGES]
//! ```

use std::error::Error;
use std::path::Path;

use glebe::contig::PoolLock;
use glebe::internal::sys::files::lock_file::{LockFile, Locked};
use glebe::internal::sys::files::private::own_dir;
use glebe::internal::sys::machine::hugetlb::Pool;
use glebe::internal::sys::processes::process::boot_id;
use glebe::units::{Bytes, PageSize};

pub struct Recorded {
    locked: Locked,
    boot: String,
    size: PageSize,
    pub pages: u64,
    change: Option<Change>,
}

/// A change under way of the pages of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change {
    before: u64,
    by: i64,
}

impl Change {
    /// Returns what was made of it if the pool has `now` pages.
    fn made(self, now: u64) -> i64 {
        let made = i64::try_from(i128::from(now) - i128::from(self.before)).unwrap_or(0);
        made.clamp(self.by.min(0), self.by.max(0))
    }
}

impl Recorded {
    /// Opens a record of pages of `size`, or makes an empty one.
    ///
    /// # Errors
    /// If the file belongs to another user, or counts pages of another size.
    pub fn open(path: &Path, size: PageSize) -> Result<Self, Box<dyn Error>> {
        if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            if !dir.exists() {
                own_dir(dir)?;
            }
        }
        let locked = LockFile::at(path).lock(PoolLock::PATIENCE)?;
        let (text, boot) = (String::from_utf8(locked.record()?)?, boot_id()?);
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        let (pages, change) = match fields[..] {
            // A boot empties pools.
            [] => (0, None),
            [of, ..] if of != boot => (0, None),
            [_, bytes, pages, ref rest @ ..] if matches!(rest.len(), 0 | 2) => {
                let (bytes, pages) = (bytes.parse::<u64>()?, pages.parse()?);
                let change = match rest {
                    [before, by] => Some(Change { before: before.parse()?, by: by.parse()? }),
                    _ => None,
                };
                let own = size.bytes();
                if bytes != own.get() && (pages > 0 || change.is_some()) {
                    let at = path.display();
                    return Err(
                        format!("{at} counts pages of {}, not {own}", Bytes::new(bytes)).into()
                    );
                }
                (pages, change)
            }
            _ => return Err(format!("{} is no record of pages", path.display()).into()),
        };
        let mut record = Self { locked, boot, size, pages, change };
        record.settle()?;
        Ok(record)
    }

    /// Records a change of at most `by` pages that is to be made. [`Recorded::set`] or
    /// [`Recorded::settle`] ends it.
    pub fn begin(&mut self, by: i64) -> Result<(), Box<dyn Error>> {
        if let Some(before) = self.persistent()? {
            self.change = Some(Change { before, by });
            self.write()?;
        }
        Ok(())
    }

    /// Counts what the pool shows of a change that was begun.
    pub fn settle(&mut self) -> Result<(), Box<dyn Error>> {
        let Some(change) = self.change else { return Ok(()) };
        let now = self.persistent()?.unwrap_or_default();
        self.set(self.pages.saturating_add_signed(change.made(now)))
    }

    pub fn set(&mut self, pages: u64) -> Result<(), Box<dyn Error>> {
        (self.pages, self.change) = (pages, None);
        self.write()
    }

    /// Returns the pool's pages once what a killed process left undone is undone.
    fn persistent(&self) -> Result<Option<u64>, Box<dyn Error>> {
        let Some(pool) = Pool::of(self.size) else { return Ok(None) };
        let _lock = PoolLock::acquire()?;
        Ok(Some(pool.counts()?.persistent()))
    }

    fn write(&self) -> Result<(), Box<dyn Error>> {
        let Self { boot, size, pages, change, .. } = self;
        let change = change.map(|Change { before, by }| format!(" {before} {by:+}"));
        let text = format!("{boot} {} {pages}{}\n", size.bytes().get(), change.unwrap_or_default());
        Ok(self.locked.set_record(text.as_bytes())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kill_left_of_a_change_is_counted_and_no_more() {
        let grown = Change { before: 10, by: 4 };
        assert_eq!([9, 10, 13, 14, 99].map(|now| grown.made(now)), [0, 0, 3, 4, 4]);
        let shrunk = Change { before: 10, by: -4 };
        assert_eq!([0, 6, 8, 10, 11].map(|now| shrunk.made(now)), [-4, -4, -2, 0, 0]);
    }
}
