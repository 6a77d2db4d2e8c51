//! [`SpillFile`] stores compressed blocks that do not fit into the pool.
//!
//! A *record* is one block, at a multiple of [`UNIT`] bytes. A write can put many records into a
//! free run. Records never move, so a nearly full file has only short free runs. Cost: at best one
//! write per [`BATCH`] bytes, one pread(2) per record. A lock guards the free units, but no I/O.

use std::path::Path;

use super::cipher::{Cipher, HEAD};
use super::copies::Unreadable;
use super::error::SwapError;
use super::idle::Idle;
use super::kept::Kept;
use crate::free_tree::{Classes, FreeTree};
use crate::zpool::internal::with_buffer;
use glebe_os::error::OsError;
use glebe_os::extent::Extent;
use glebe_os::internal::sync::{lock, Mutex};
use glebe_os::internal::sys::files::scratch_file::{ScratchFile, ALIGN};
use glebe_os::units::Bytes;

pub(super) const UNIT: usize = 512;
const UNITS_ALIGN: u64 = (ALIGN / UNIT) as u64;
/// A batch ends when it has at least this many bytes.
pub(super) const BATCH: usize = 256 << 10;

#[derive(Debug)]
pub(super) struct SpillFile {
    file: ScratchFile,
    free: Mutex<FreeTree>,
    units: u64,
    pub(super) idle: Option<Idle>,
    cipher: Option<Cipher>,
    #[cfg(test)]
    pub(super) refuses: glebe_os::internal::sync::MappedWord,
}

#[derive(Debug)]
pub(super) struct Run(Extent);

impl Run {
    pub(super) fn units(&self) -> u64 {
        self.0.len()
    }
}

pub(super) fn units(len: usize) -> u64 {
    len.div_ceil(UNIT) as u64
}

fn with_aligned<R>(len: usize, work: impl FnOnce(&mut [u8]) -> R) -> R {
    with_buffer(len + ALIGN, |space| {
        let at = space.as_ptr().align_offset(ALIGN);
        work(&mut space[at..at + len])
    })
}

impl SpillFile {
    pub(super) fn new(dir: &Path, limit: Bytes, records: u64) -> Result<Self, OsError> {
        let units = (limit.get() / UNIT as u64).max(1);
        let span = Extent::new(0, units).expect("not empty");
        // Records separate the free extents, so extents exceed records by at most one.
        let extents = usize::try_from(records + 1).unwrap_or(usize::MAX);
        let mut free = FreeTree::with_classes(span, extents, Classes::None)?;
        free.free(span).expect("nothing of it is free yet");
        Ok(Self {
            file: ScratchFile::new(dir)?,
            free: Mutex::new(free),
            units,
            idle: None,
            cipher: None,
            #[cfg(test)]
            refuses: glebe_os::internal::sync::MappedWord::new(0),
        })
    }

    pub(super) fn cached_in(self, kept: &Kept) -> Result<Self, OsError> {
        let idle = Some(Idle::new(kept.clone(), self.units)?);
        Ok(Self { idle, ..self })
    }

    #[cfg(feature = "encrypt")]
    pub(super) fn encrypted(self) -> Result<Self, OsError> {
        Ok(Self { cipher: Some(Cipher::new()?), ..self })
    }

    fn head(&self) -> usize {
        self.cipher.as_ref().map_or(0, |_| HEAD)
    }

    pub(super) fn units(&self, len: usize) -> u64 {
        units(self.head() + len)
    }

    pub(super) fn held(&self) -> Bytes {
        Bytes::new((self.units - lock(&self.free).free_len()) * UNIT as u64)
    }

    fn limit(&self) -> Bytes {
        Bytes::new(self.units * UNIT as u64)
    }

    pub(super) fn is_full(&self) -> SwapError {
        SwapError::FileFull { held: self.held(), limit: self.limit() }
    }

    pub(super) fn is_direct(&self) -> bool {
        self.file.is_direct()
    }

    pub(super) fn take(&self, least: u64, most: u64) -> Option<Run> {
        let mut free = lock(&self.free);
        let whole = |units: u64| units.next_multiple_of(UNITS_ALIGN);
        let fits = free.largest().saturating_sub(UNITS_ALIGN - 1) / UNITS_ALIGN * UNITS_ALIGN;
        let len = whole(most).min(fits).max(whole(least));
        free.alloc(len, UNITS_ALIGN, None).ok().flatten().map(Run)
    }

    /// Returns the records' first units. Frees the unused rest of the run, or after an error the
    /// whole run.
    pub(super) fn write<'a>(
        &self,
        run: Run,
        records: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> Result<Vec<u64>, OsError> {
        let Run(run) = run;
        let used: u64 = records.clone().map(|record| self.units(record.len())).sum();
        let mut starts = Vec::new();
        let written = with_aligned(used.next_multiple_of(UNITS_ALIGN) as usize * UNIT, |bytes| {
            bytes.fill(0);
            let mut at = 0;
            for record in records.clone() {
                let start = run.start() + at as u64;
                let place = &mut bytes[at * UNIT..][..self.head() + record.len()];
                place[self.head()..].copy_from_slice(record);
                self.cipher.iter().for_each(|cipher| cipher.seal(start, place));
                starts.push(start);
                at += self.units(record.len()) as usize;
            }
            #[cfg(test)]
            self.refused(1)?;
            self.file.write(bytes, Bytes::new(run.start() * UNIT as u64))
        });
        let kept = if written.is_ok() { used } else { 0 };
        if let Some(rest) = Extent::new(run.start() + kept, run.len() - kept) {
            self.give_back(rest);
        }
        written?;
        for (record, start) in records.zip(&starts) {
            self.keep(*start, record);
        }
        Ok(starts)
    }

    pub(super) fn keep(&self, start: u64, record: &[u8]) {
        self.idle.iter().for_each(|idle| idle.insert(start, record));
    }

    pub(super) fn read_idle<R>(
        &self,
        start: u64,
        len: usize,
        work: impl FnOnce(&[u8]) -> R,
    ) -> Option<R> {
        let idle = self.idle.as_ref()?;
        with_buffer(len, |bytes| idle.read(start, bytes).then(|| work(bytes)))
    }

    /// Calls `work` with fewer bytes if an unencrypted file was cut.
    pub(super) fn read<R>(
        &self,
        start: u64,
        len: usize,
        work: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, Unreadable> {
        let len = self.head() + len;
        let first = start / UNITS_ALIGN * UNITS_ALIGN;
        let skip = (start - first) as usize * UNIT;
        with_aligned((skip + len).next_multiple_of(ALIGN), |bytes| {
            #[cfg(test)]
            self.refused(2)?;
            let there = self.file.read(bytes, Bytes::new(first * UNIT as u64))?;
            let end = there.clamp(skip, skip + len);
            let Some(cipher) = &self.cipher else { return Ok(work(&bytes[skip..end])) };
            let opened = cipher.open(start, &mut bytes[skip..end]);
            opened.map(work).ok_or(Unreadable::Damaged("it was changed in the file"))
        })
    }

    pub(super) fn drop_record(&self, start: u64, len: usize) {
        self.idle.iter().for_each(|idle| idle.remove(start, len));
        self.give_back(Extent::new(start, self.units(len)).expect("a record is not empty"));
    }

    fn give_back(&self, extent: Extent) {
        lock(&self.free).free(extent).expect("was taken, and there is storage for every extent");
    }

    #[cfg(test)]
    fn refused(&self, what: u64) -> Result<(), OsError> {
        if self.refuses.load(glebe_os::internal::sync::Ordering::Relaxed) & what == 0 {
            return Ok(());
        }
        let source = std::io::Error::other("a test's device");
        Err(OsError::new("pwrite or pread", "a file", source))
    }

    #[cfg(test)]
    pub(super) fn while_locked<R>(&self, work: impl FnOnce() -> R) -> R {
        let _free = lock(&self.free);
        work()
    }

    #[cfg(test)]
    pub(super) fn cut(&self, len: Bytes) {
        self.file.cut(len);
    }

    #[cfg(test)]
    pub(super) fn overwrite(&self) {
        with_aligned(BATCH, |bytes| {
            bytes.fill(0);
            for at in (0..self.limit().get()).step_by(BATCH) {
                self.file.write(bytes, Bytes::new(at)).expect("a file of one's own");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(units: u64) -> SpillFile {
        let limit = Bytes::new(units * UNIT as u64);
        SpillFile::new(&std::env::temp_dir(), limit, 1000).unwrap()
    }

    fn records(lens: &[usize]) -> Vec<Vec<u8>> {
        let record = |(n, len): (usize, &usize)| (0..*len).map(|at| (at * 7 + n) as u8).collect();
        lens.iter().enumerate().map(record).collect()
    }

    #[test]
    fn records_come_back_and_their_units_are_used_again() {
        let file = file(64);
        let all = records(&[1, 512, 513, 5000, 100]);
        let each = || all.iter().map(Vec::as_slice);
        for _ in 0..20 {
            let most = all.iter().map(|record| units(record.len())).sum();
            let run = file.take(1, most).unwrap();
            let starts = file.write(run, each()).unwrap();
            assert_eq!(file.held(), Bytes::new(15 * UNIT as u64));
            for (start, record) in starts.iter().zip(&all) {
                file.read(*start, record.len(), |bytes| assert_eq!(bytes, *record)).unwrap();
            }
            let last = starts.iter().zip(&all).rev();
            last.for_each(|(start, record)| file.drop_record(*start, record.len()));
            assert_eq!(file.held(), Bytes::ZERO);
        }
    }

    #[test]
    fn a_file_that_is_nearly_full_gives_shorter_runs() {
        let file = file(20);
        let run = file.take(1, 1000).unwrap();
        assert_eq!(run.0, Extent::new(0, 8).unwrap(), "a run is whole, whatever its alignment");
        let starts = file.write(run, records(&[100, 600]).iter().map(Vec::as_slice)).unwrap();
        assert_eq!((starts, file.held()), (vec![0, 1], Bytes::new(3 * UNIT as u64)));
        let run = file.take(1, 8).unwrap();
        assert_eq!(run.0.start(), 8);
        assert!(file.take(1, 8).is_none() && file.take(9, 9).is_none());
        file.write(run, std::iter::empty()).unwrap();
        assert_eq!(file.held(), Bytes::new(3 * UNIT as u64));
        let _run = file.take(8, 8).unwrap();
        file.drop_record(0, 100);
        file.drop_record(1, 600);
        assert_eq!(file.take(8, 8).unwrap().0, Extent::new(0, 8).unwrap());
    }

    #[cfg(feature = "encrypt")]
    #[test]
    fn a_sealed_record_opens_in_its_place_alone() {
        let file = file(64).encrypted().unwrap();
        let record = vec![7; 2 * ALIGN - HEAD];
        let records = [&record[..], &record[..]];
        let run = file.take(1, 32).unwrap();
        let starts = file.write(run, records.into_iter()).unwrap();
        assert_eq!((&starts[..], file.held()), (&[0, 16][..], Bytes::new(4 * ALIGN as u64)));
        let read = |start| file.read(start, record.len(), |bytes| bytes == record);
        let in_file = |at: usize| {
            with_aligned(2 * ALIGN, |bytes| {
                file.file.read(bytes, Bytes::new(at as u64)).unwrap();
                bytes.to_vec()
            })
        };
        let write = |at: usize, with: &[u8]| {
            with_aligned(2 * ALIGN, |bytes| {
                bytes.copy_from_slice(with);
                file.file.write(bytes, Bytes::new(at as u64)).unwrap();
            });
        };
        assert!(read(0).unwrap() && read(16).unwrap());
        let (first, second) = (in_file(0), in_file(2 * ALIGN));
        let same = first.iter().zip(&second).filter(|(one, other)| one == other).count();
        assert!(same < ALIGN / 8, "{same} bytes are the same: the nonce is");
        write(0, &second);
        assert!(matches!(read(0), Err(Unreadable::Damaged(_))), "a record of another place");
        for at in [0, 8, 24, 2 * ALIGN - 1] {
            let mut changed = first.clone();
            changed[at] ^= 1;
            write(0, &changed);
            assert!(matches!(read(0), Err(Unreadable::Damaged(_))), "byte {at} was changed");
        }
        write(0, &first);
        assert!(read(0).unwrap());
        file.cut(Bytes::new(ALIGN as u64));
        assert!(matches!(read(0), Err(Unreadable::Damaged(_))), "half of it is cut off");
        assert!(matches!(read(16), Err(Unreadable::Damaged(_))), "all of it is cut off");
    }

    #[test]
    fn what_was_cut_off_is_not_there() {
        let file = file(64);
        let record = records(&[6000]);
        let run = file.take(12, 12).unwrap();
        let starts = file.write(run, record.iter().map(Vec::as_slice)).unwrap();
        file.cut(Bytes::new(4096));
        let there = file.read(starts[0], 6000, <[u8]>::len).unwrap();
        assert_eq!(there, 4096);
        file.cut(Bytes::ZERO);
        assert_eq!(file.read(starts[0], 6000, <[u8]>::len).unwrap(), 0);
    }
}
