//! Measures pins of a shared file, alone and beside a process that pins the same granule, and the
//! order of purges and their excess over the requested amount.
//!
//! The benchmark itself calls `purge`, because memory is not short. Units: nanoseconds for a pin
//! and its end; percent of the amount.

use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;

use glebe::page_size;
use glebe::units::Bytes;
use glebe::volatile::{Error, Order, Priority, Shared};

use crate::child::Child;
use crate::clock::timed;
use crate::report::Report;
use crate::turns::{rounds, NO_END};
use crate::Outcome;

const PIN: &str = "shared_pin";
const OVER: &str = "over_purge_percent";
const WHO: &str = "glebe shared";
/// Pages purged out of order.
const WRONG_ORDER: &str = "wrong_order";
const LEN: Bytes = Bytes::mib(64);
const BATCH: u64 = 10_000;
/// Quarters and priorities in the order of marking.
const MARKS: [(u64, Priority); 4] =
    [(2, Priority::NORMAL), (0, Priority::LOWEST), (3, Priority::NORMAL), (1, Priority::LOWEST)];
/// Quarters in the right order of purging.
const GOES: [u64; 4] = [0, 1, 2, 3];
const ASKED: [Bytes; 4] = [Bytes::new(1), Bytes::mib(1), Bytes::mib(17), Bytes::mib(40)];

pub(super) fn measure(report: &mut Report) -> Outcome {
    match Shared::options().create(LEN) {
        Ok(file) => {
            pins(&file, report)?;
            purges(&file, report)
        }
        Err(why) => {
            report.remark(PIN, WHO, "ns", &why.to_string());
            report.remark(OVER, WHO, "percent", &why.to_string());
            report.unmeasured(WRONG_ORDER, &why.to_string());
            Ok(())
        }
    }
}

fn pins(file: &Shared, report: &mut Report) -> Outcome {
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.fd().as_raw_fd());
    for _ in rounds(PIN, report.plan(3, 15), NO_END) {
        report.add(PIN, WHO, "ns", pin(file)?);
        let mut other = Child::start("pin-shared", &[&path])?;
        other.line()?.ok_or("the process beside it has ended")?;
        report.add(PIN, "beside a process that pins it", "ns", pin(file)?);
    }
    Ok(())
}

fn pin(file: &Shared) -> Outcome<f64> {
    let (done, took) = timed(|| (0..BATCH).try_for_each(|_| pin_first(file)));
    Ok(done.map(|()| took.wall_us * 1e3 / BATCH as f64)?)
}

fn pin_first(file: &Shared) -> Result<(), Error> {
    file.pin(Bytes::ZERO..file.granule()).map(|pin| drop(black_box(pin)))
}

pub(super) fn pin_for_ever(path: &Path, out: &mut dyn Write) -> Outcome {
    let descriptor = File::options().read(true).write(true).open(path)?;
    let file = Shared::options().adopt(descriptor.into())?;
    pin_first(&file)?;
    writeln!(out, "pinning")?;
    loop {
        pin_first(&file)?;
    }
}

fn purges(file: &Shared, report: &mut Report) -> Outcome {
    let quarter = LEN.get() / GOES.len() as u64;
    let part = |nth: u64| Bytes::new(nth * quarter)..Bytes::new((nth + 1) * quarter);
    for _ in rounds(OVER, report.plan(1, 5), NO_END) {
        for asked in ASKED {
            let block = vec![0x5a; LEN.as_usize()];
            file.pin(Bytes::ZERO..LEN)?.write(Bytes::ZERO, &block)?;
            for (nth, priority) in MARKS {
                file.mark(part(nth), priority, Order::Fifo)?;
                // Sleeps, because marks within a microsecond have no order.
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            let taken = file.purge(asked, Priority::HIGHEST)?;
            let over =
                taken.get() as f64 / asked.pages_up(page_size()).bytes(page_size()).get() as f64;
            report.add(OVER, WHO, "percent", (over - 1.0) * 100.0);
            let lost = GOES.map(|nth| file.unmark(part(nth)).map(|purged| purged.pages().get()));
            let mut left = taken.pages_down(page_size()).get();
            for lost in lost {
                let first = left.min(quarter / page_size().bytes().get());
                report.check(WRONG_ORDER, lost?.abs_diff(first));
                left -= first;
            }
        }
    }
    Ok(())
}
