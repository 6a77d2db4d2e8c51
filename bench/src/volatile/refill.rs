//! Measures a read of a lost page, which the signal handler refills. Unit: microseconds per page.
//!
//! # Safety
//! The callback returns a page that never changes. Atomics read bytes inside the region while the
//! region lives.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};

use glebe::page_size;
use glebe::units::{Bytes, Pages};
use glebe::volatile::Priority;

use super::Which;
use crate::clock::{micros, wall};
use crate::report::Report;
use crate::turns::{rounds, NO_END};
use crate::Outcome;

const CASE: &str = "sigbus_refill";
const PAGES: Pages = Pages::new(2048);
const CONTENTS: u8 = 0x77;

/// Contents of refilled pages, as large as the largest page.
static PAGE: [u8; 64 << 10] = [CONTENTS; 64 << 10];

unsafe extern "C" fn refill(_offset: u64, len: usize, _data: *const ()) -> *const u8 {
    PAGE.get(..len).map_or(ptr::null(), <[u8]>::as_ptr)
}

pub(super) fn measure(report: &mut Report) -> Outcome {
    let page = page_size();
    let len = PAGES.bytes(page);
    // SAFETY: `refill` allocates nothing, takes no lock, and returns bytes that never change.
    let options = unsafe { Which::Scan.options().on_lost(refill, ptr::null()) };
    let region = options.build(len).inspect_err(|why| {
        report.remark(CASE, Which::Scan.who(), "us", &why.to_string());
        report.unmeasured("wrong_refills", &why.to_string());
    });
    let Ok(region) = region else { return Ok(()) };
    let (mut us, mut wrong) = (Vec::new(), 0);
    for _ in rounds(CASE, report.plan(1, 10), NO_END) {
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
    report.row(CASE, Which::Scan.who(), "us", &us);
    Ok(())
}
