//! [`glance`] adds up the bank's blocks without the lock, and changes nothing.
//!
//! The bank may change meanwhile, so the sums are right only while nobody changes it.
//! Cost: one word of `/proc/kpageflags` for each huge page of the smallest size.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::Path;

use super::owner::NAME;
use super::record::{Owner, Record};
use super::work::machine_blocks;
use crate::pool::Place;
use crate::Error;
use glebe_os::error::OsError;
use glebe_os::internal::sys::files::{file, private};
use glebe_os::internal::sys::machine::hugetlb::smallest;
use glebe_os::internal::sys::machine::kpage::Frames;
use glebe_os::internal::sys::machine::memory_block::Zone;
use glebe_os::internal::sys::page_size;
use glebe_os::internal::sys::processes::process::boot_id;
use glebe_os::units::{Bytes, Pages};

const RECORD_MAX: usize = 1 << 20;

/// Sums of the bank's blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Glance {
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes of all blocks.
    pub len: Bytes,
    /// Bytes in hugetlb pools.
    pub drawn: Bytes,
}

/// Returns the sums of the bank's blocks; `None` without a bank. Waits for no lock and repairs
/// nothing, unlike [`status`](super::bank::status).
///
/// # Errors
/// [`Error::NoBlocks`]; EACCES or EPERM without root; other errors of the kernel.
pub fn glance() -> Result<Option<Glance>, Error> {
    let blocks = bank_on_record(&Place::default())?;
    if blocks.is_empty() {
        return Ok(None);
    }
    let (machine, frames, huge) = (machine_blocks()?, Frames::open()?, smallest());
    let each = huge.bytes().pages_down(page_size());
    let mut sums = Glance::default();
    for number in blocks {
        // A block that somebody put back is the bank's no more.
        if !machine.read(number).is_ok_and(|block| block.zone == Some(Zone::Movable)) {
            continue;
        }
        // A huge page is in a pool as a whole, so its first frame is enough.
        let seen = frames.sample(machine.first_frame(number), machine.pages(), each.get())?;
        sums.blocks += 1;
        sums.len = sums.len + machine.size();
        sums.drawn = sums.drawn + Pages::new(seen.pool).bytes(huge);
    }
    Ok((sums.blocks > 0).then_some(sums))
}

fn bank_on_record(place: &Place) -> Result<Vec<u64>, OsError> {
    for lock in &place.locks {
        let Some(text) = text(&lock.with_file_name(NAME))? else { continue };
        let lines: Vec<_> = Record::parse(&text, &boot_id()?).0.lines().collect();
        let of_bank = lines.iter().filter(|line| line.owner == Owner::Bank);
        return Ok(of_bank.map(|line| line.block).collect());
    }
    Ok(Vec::new())
}

/// Returns the record's text; `None` if there is no file. Creates none.
fn text(path: &Path) -> Result<Option<Vec<u8>>, OsError> {
    let file = match private::open(path, OpenOptions::new().read(true)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut bytes = vec![0; RECORD_MAX];
    let read = file::read_some_at(&file, &mut bytes, 0);
    let len = read.map_err(|e| OsError::new("pread", path.display().to_string(), e))?;
    bytes.truncate(len);
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::super::record::{header, Line};
    use super::*;

    #[test]
    fn a_record_is_read_beside_the_first_lock_that_has_one() {
        let root = std::env::temp_dir().join(format!("glebe-glance-{}", std::process::id()));
        let dirs = ["a", "b", "c"].map(|name| root.join(name));
        let locks = dirs.iter().map(|dir| dir.join("hugetlb.lock")).collect();
        let place = Place { locks, ..Place::default() };
        assert_eq!(bank_on_record(&place).unwrap(), []);
        assert!(!dirs[0].exists(), "nothing is made");
        for (nth, dir) in dirs.iter().enumerate().skip(1) {
            std::fs::create_dir_all(dir).unwrap();
            let (mut text, mut record) = (header(&boot_id().unwrap()), Record::default());
            for owner in [Owner::Bank, Owner::Process(1), Owner::Nobody, Owner::Bank] {
                let block = 100 * nth as u64 + record.slots.len() as u64;
                text.extend(record.set(Line { block, zone: Zone::Normal, owner }).1);
            }
            std::fs::write(dir.join(NAME), text).unwrap();
        }
        let found = bank_on_record(&place).unwrap();
        let files = std::fs::read_dir(&dirs[1]).unwrap().count();
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!((found, files), (vec![100, 103], 1), "nothing is made");
    }
}
