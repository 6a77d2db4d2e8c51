//! [`Book`] records the owners of the machine's blocks in a file, under the hugetlb pools' lock. A
//! claim (a lock on one byte of the lock's file) shows that the owner lives.

use super::record::{header, Line, Owner, Record};
use crate::pool::PoolLock;
use glebe_os::error::OsError;
use glebe_os::internal::sys::files::lock_file::LockFile;

pub(super) const NAME: &str = "blocks";

#[derive(Debug)]
pub(super) struct Book {
    file: &'static LockFile,
    boot_id: String,
    record: Record,
    begun: bool,
}

impl Book {
    pub fn open(lock: &PoolLock) -> Result<(Self, Vec<String>), OsError> {
        let file = LockFile::at(&lock.locked().path().with_file_name(NAME));
        let boot_id = lock.boot_id().to_owned();
        let text = file.text()?;
        let (record, ignored) = Record::parse(&text, &boot_id);
        let begun = !record.slots.is_empty();
        let shown = file.path().display().to_string();
        let ignored = ignored.into_iter().map(|what| format!("{shown}: {what}")).collect();
        if !begun && !text.is_empty() {
            file.cut_text(0)?;
        }
        let book = Self { file, boot_id, record, begun };
        if let Some(own) = lock.locked().own_claim() {
            // A newer lock file may lack the claim.
            if !lock.locked().is_claimed(own)? {
                lock.locked().claim(own)?;
            }
        }
        Ok((book, ignored))
    }

    pub fn lines(&self) -> Vec<Line> {
        self.record.lines().collect()
    }

    pub fn of(&self, block: u64) -> Option<Line> {
        self.record.of(block)
    }

    pub fn set(&mut self, line: Line) -> Result<(), OsError> {
        if !self.begun {
            self.file.set_text(0, &header(&self.boot_id))?;
            self.begun = true;
        }
        let (at, text) = self.record.set(line);
        self.file.set_text(at, &text)
    }

    pub fn strike(&mut self, block: u64) -> Result<(), OsError> {
        if let Some((at, text)) = self.record.strike(block) {
            self.file.set_text(at, &text)?;
        }
        if self.record.lines().next().is_none() {
            self.file.cut_text(0)?;
            (self.record, self.begun) = (Record::default(), false);
        }
        Ok(())
    }

    pub fn lives(&self, lock: &PoolLock, owner: Owner) -> Result<bool, OsError> {
        match owner {
            Owner::Bank => Ok(true),
            Owner::Nobody => Ok(false),
            Owner::Process(number) => lock.locked().is_claimed(number),
        }
    }

    pub fn this_process(&self, lock: &PoolLock) -> Result<Owner, OsError> {
        if let Some(own) = lock.locked().own_claim() {
            return Ok(Owner::Process(own));
        }
        let mut number = 1;
        while self.is_named(number) || !lock.locked().claim(number)? {
            number += 1;
        }
        Ok(Owner::Process(number))
    }

    fn is_named(&self, number: u32) -> bool {
        self.record.lines().any(|line| line.owner == Owner::Process(number))
    }
}
