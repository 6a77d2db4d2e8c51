//! A touch of a lost page that is refilled in the signal handler: from the instruction that touches
//! it to the byte that it reads. Unit: microseconds a page.
//!
//! # Safety
//! The callback returns a page that lives as long as the process and is never changed. Bytes of
//! the region are read as atomics, inside it, while it lives.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::OnceLock;

use glebe::sys::page_size;
use glebe::units::{Bytes, Pages};
use glebe::volatile::{Priority, Region};

use super::{Error, Which};
use crate::clock::{micros, wall};
use crate::interrupt;
use crate::report::Report;

const CASE: &str = "sigbus_refill";
const PAGES: Pages = Pages::new(2048);
const CONTENTS: u8 = 0x77;

/// What a refill gives.
static PAGE: OnceLock<Vec<u8>> = OnceLock::new();

unsafe extern "C" fn refill(_offset: u64, len: usize, _data: *const ()) -> *const u8 {
    // Set before the region is made; no allocation, no lock.
    PAGE.get().filter(|page| page.len() >= len).map_or(std::ptr::null(), |page| page.as_ptr())
}

/// The row, and a check of what was read.
pub(super) fn measure(quick: bool, report: &mut Report) -> Result<(), Error> {
    let page = page_size();
    PAGE.get_or_init(|| vec![CONTENTS; page.bytes().as_usize()]);
    let len = PAGES.bytes(page);
    let options = Region::options().engine(Which::Scan.engine());
    // SAFETY: `refill` allocates nothing, takes no lock, and returns bytes that stay.
    let region = match unsafe { options.on_lost(refill, std::ptr::null()) }.build(len) {
        Ok(region) => region,
        Err(why) => {
            report.remark(CASE, "glebe scan", "us", &why.to_string());
            report.unmeasured("wrong_refills", &why.to_string());
            return Ok(());
        }
    };
    let mut us = Vec::new();
    let mut wrong = 0;
    for _ in 0..if quick { 1 } else { 10 } {
        interrupt::check();
        let _ = region.unmark(Bytes::ZERO..len)?;
        region.write(Bytes::ZERO, &vec![1; len.as_usize()])?;
        region.mark(Bytes::ZERO..len, Priority::NORMAL)?;
        region.drop_now(Bytes::ZERO..len)?;
        for nth in 0..PAGES.get() {
            let at = region.addr() + Pages::new(nth).bytes(page).as_usize();
            let start = wall();
            // SAFETY: inside the region; the touch of a lost page is refilled.
            let byte = unsafe { AtomicU8::from_ptr(at as *mut u8) }.load(Ordering::Relaxed);
            us.push(micros(wall() - start));
            wrong += u64::from(black_box(byte) != CONTENTS);
        }
    }
    report.check("wrong_refills", wrong);
    report.row(CASE, "glebe scan", "us", &us);
    Ok(())
}
