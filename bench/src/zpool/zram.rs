//! [`Zram`] is a new zram device, to compare with.
//!
//! With direct I/O, the caller's system time includes zram's work. Units: the machine's pages,
//! bytes.
//! Source: `BLKDISCARD` in linux/fs.h.
//!
//! # Safety
//! An ioctl reads two words of a local array.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use glebe::page_size;
use glebe::units::Pages;

use super::store::{HeldBytes, Store};
use crate::zram::Device;
use crate::Outcome;

/// `_IO(0x12, 119)`.
const BLKDISCARD: libc::c_ulong = 0x1277;

/// Bytes per object and per zspage that `mm_stat` does not count. Used if slabs are unreadable.
const HANDLE: f64 = 8.0;
const ZSPAGE: f64 = 56.0;
/// Mean pages of a zspage, over the whole trace.
const ZSPAGE_PAGES: f64 = 3.06;

pub(super) struct Zram {
    /// Closed before the device is removed.
    file: File,
    device: Device,
    page: u64,
    is_compacted: bool,
    /// Bytes of slabs at the start, if readable.
    slabs_before: Option<f64>,
}

impl Zram {
    pub(super) fn new(pages: usize, is_compacted: bool) -> Outcome<Self> {
        let device = Device::new(Pages::new(pages as u64).bytes(page_size()))?;
        let (file, page) = (device.open()?, page_size().bytes().get());
        let slabs_before = slabs(&device.name());
        Ok(Self { file, device, page, is_compacted, slabs_before })
    }

    pub(super) fn discard(&self, first: usize, pages: usize) -> io::Result<()> {
        let range = [first as u64 * self.page, pages as u64 * self.page];
        // SAFETY: the ioctl reads two words, which live until it returns, and writes none.
        match unsafe { libc::ioctl(self.file.as_raw_fd(), BLKDISCARD, range.as_ptr()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// All objects have one length of whole pages, and begin on a page.
impl Store for Zram {
    fn put(&mut self, nth: usize, pages: &[u8]) -> Outcome {
        Ok(self.file.write_all_at(pages, (nth * pages.len()) as u64)?)
    }

    fn get(&mut self, nth: usize, to: &mut [u8]) -> Outcome<usize> {
        self.file.read_exact_at(to, (nth * to.len()) as u64)?;
        Ok(to.len())
    }

    fn remove(&mut self, nth: usize) -> Outcome {
        Ok(self.discard(nth, 1)?)
    }

    fn held(&mut self) -> Outcome<HeldBytes> {
        if self.is_compacted {
            // Frees pages until no class can free one.
            self.device.set("compact", "1")?;
        }
        let text = fs::read_to_string(self.device.path("mm_stat"))?;
        let slabs = self.slabs_before.zip(slabs(&self.device.name()));
        let slabs = slabs.map(|(before, now)| (now - before).max(0.0));
        held(&text, slabs, self.page as f64).ok_or_else(|| format!("mm_stat: {text:?}").into())
    }
}

/// Returns the bytes of slabs with handles and zspages.
fn slabs(device: &str) -> Option<f64> {
    let of = |kind: &str| {
        let dir = format!("/sys/kernel/slab/{kind}-{device}");
        let number = |file: &str| -> Option<u64> {
            let text = fs::read_to_string(format!("{dir}/{file}")).ok()?;
            // The first number is the sum; the others are per node.
            text.split_whitespace().next()?.parse().ok()
        };
        Some(Pages::new(number("slabs")? << number("order")?).bytes(page_size()).get() as f64)
    };
    Some(of("zs_handle")? + of("zspage")?)
}

/// Adds the metadata that `mm_stat` does not count. Pages of one repeated word have no handle.
fn held(text: &str, slabs: Option<f64>, page: f64) -> Option<HeldBytes> {
    let words: Vec<f64> = text.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let [original, stored, used, _limit, _most, same_pages, ..] = words[..] else { return None };
    let objects = original / page - same_pages;
    let metadata = slabs.unwrap_or_else(|| objects * HANDLE + used / page / ZSPAGE_PAGES * ZSPAGE);
    Some(HeldBytes { stored, pages: used, metadata })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::zpool::store::aligned;

    #[test]
    fn pages_come_back_and_the_device_goes() {
        let metadata = 3.0 * HANDLE + 2.0 / ZSPAGE_PAGES * ZSPAGE;
        let expected = HeldBytes { stored: 8.0, pages: 20.0, metadata };
        let text = " 40 8 20 6 5 1 3 2 1\n";
        assert_eq!(held(text, None, 10.0), Some(expected));
        assert_eq!(held(text, Some(7.0), 10.0).map(|held| held.metadata), Some(7.0));
        assert_eq!(held("1 2 3 4 5", None, 10.0), None);
        let Some(mut zram) = crate::had(Zram::new(64, true)) else { return };
        let sys = zram.device.path("");
        let mut block = aligned(4 * zram.page as usize).unwrap();
        block.iter_mut().enumerate().for_each(|(nth, byte)| *byte = (nth / 64) as u8);
        zram.put(3, &block).unwrap();
        let held = zram.held().unwrap();
        assert!(held.stored > 0.0 && held.pages >= held.stored, "{held:?}");
        let wanted = block.to_vec();
        block.fill(0xff);
        zram.get(3, &mut block).unwrap();
        assert_eq!(block[..], wanted);
        zram.discard(12, 4).unwrap();
        assert_eq!(zram.held().unwrap().stored, 0.0);
        assert!(Path::new(&sys).is_dir());
        drop(zram);
        assert!(!Path::new(&sys).exists());
    }
}
