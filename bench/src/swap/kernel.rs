//! [`KernelSwap`] makes the kernel swap to a zram device of its own.
//!
//! The device has the highest swap priority. Drop swaps all pages in and removes the device, or
//! prints the failure. Unit: bytes. Source: swapon(2), union swap_header in linux/swap.h.
//!
//! # Safety
//! swapon and swapoff get a path that ends with a zero.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;

use glebe::page_size;
use glebe::units::Bytes;
use memmap2::MmapMut;

use crate::zram::Device;
use crate::Outcome;

/// Byte offset in the swap header of three 32-bit words: version, last page, number of bad pages.
const HEADER: usize = 1024;
const MAGIC: &[u8] = b"SWAPSPACE2";
/// SWAP_FLAG_PREFER with the highest priority.
const FIRST_OF_ALL: i32 = 0x8000 | 0x7fff;

pub(super) struct KernelSwap {
    // Dropped before the device.
    _on: On,
    device: Device,
}

struct On(CString);

impl KernelSwap {
    pub(super) fn new(len: Bytes) -> Outcome<Self> {
        let device = Device::new(len)?;
        let page = page_size().bytes().as_usize();
        let mut header = MmapMut::map_anon(page)?;
        let last = len.pages_down(page_size()).get() as u32 - 1;
        header[HEADER..HEADER + 4].copy_from_slice(&1_u32.to_ne_bytes());
        header[HEADER + 4..HEADER + 8].copy_from_slice(&last.to_ne_bytes());
        header[page - MAGIC.len()..].copy_from_slice(MAGIC);
        device.open()?.write_all_at(&header, 0)?;
        let on = On::new(&CString::new(device.node())?).map_err(|e| format!("swapon: {e}"))?;
        Ok(Self { _on: on, device })
    }

    /// Returns the bytes swapped out, before compression.
    pub(super) fn holds(&self) -> Outcome<Bytes> {
        let text = fs::read_to_string(self.device.path("mm_stat"))?;
        let original = text.split_whitespace().next().unwrap_or_default();
        Ok(Bytes::new(original.parse()?))
    }
}

impl On {
    fn new(node: &CStr) -> io::Result<Self> {
        // SAFETY: the path ends with a zero.
        match unsafe { libc::swapon(node.as_ptr(), FIRST_OF_ALL) } {
            0 => Ok(Self(node.to_owned())),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for On {
    fn drop(&mut self) {
        // SAFETY: the path ends with a zero.
        if unsafe { libc::swapoff(self.0.as_ptr()) } != 0 {
            let e = io::Error::last_os_error();
            eprintln!("glebe-bench: {} stays in use as swap: {e}", self.0.to_string_lossy());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_is_on_and_goes() {
        let Some(swap) = crate::had(KernelSwap::new(Bytes::mib(4))) else { return };
        let node = swap.device.node();
        let is_listed = || fs::read_to_string("/proc/swaps").unwrap().contains(&node);
        assert!(is_listed() && swap.holds().unwrap() <= Bytes::mib(1));
        drop(swap);
        assert!(!is_listed() && !std::path::Path::new(&node).exists());
    }
}
