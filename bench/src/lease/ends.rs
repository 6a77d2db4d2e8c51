//! Measures the ends of leases: by a revocation and by a kill. A storm of kills counts lost pages.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use glebe::units::Bytes;
use glebe_lease::wire::Flags;
use glebe_lease::{Client, Lease, LeaseError};

use super::served::{Served, ALL};
use super::{wish, PAGE};
use crate::child::Child;
use crate::clock::timed;
use crate::report::{Report, GLEBE};
use crate::turns::{rounds, NO_END};
use crate::{clock, Outcome};

const REVOCABLE: Flags = Flags { contiguous: false, one_file: false, revocable: true };
const HELD: u64 = 62;
/// Clients of the storm at a time.
const CLIENTS: usize = 4;
const MARKS_A_PAGE: u64 = 4;

fn at(nth: u64) -> Bytes {
    Bytes::new(nth * PAGE.bytes().get() / MARKS_A_PAGE)
}

/// In a child: leases pages and writes to them until they are gone. Then prints the time.
pub(crate) fn hold(path: &Path, pages: u64, out: &mut dyn Write) -> Outcome {
    let client = Client::connect_to(path, "holder")?;
    let lease = client.lease(wish(pages, REVOCABLE))?;
    writeln!(out, "held")?;
    out.flush()?;
    for nth in 0.. {
        if lease.write(at(nth % (pages * MARKS_A_PAGE)), &[1]).is_err() {
            break;
        }
    }
    writeln!(out, "{}", clock::wall().as_nanos())?;
    Ok(out.flush()?)
}

pub(super) fn revoke(served: &Served, report: &mut Report) -> Outcome {
    let (client, holder) = (served.client()?, served.client()?);
    for _ in rounds("lease, revoke", report.plan(20, 200), NO_END) {
        served.wait_for_stock(&client)?;
        let lease = holder.lease(wish(HELD, REVOCABLE))?;
        let all = (0..HELD).map(|nth| Bytes::new(nth * PAGE.bytes().get()));
        all.clone().try_for_each(|at| lease.write(at, &[1]))?;
        served.wait_for(&client, &["glebe_lease_returning_bytes 0\n"])?;
        let (_, took) = timed(|| {
            // The rest of the reserve is less than this, so the daemon takes the holder's.
            drop(client.lease(wish(ALL - HELD / 2, Flags::default())));
            all.for_each(|at| while lease.write(at, &[1]).is_ok() {});
        });
        report.add("revoke_62", GLEBE, "us", took.wall_us);
    }
    Ok(())
}

pub(super) fn death(served: &Served, report: &mut Report) -> Outcome {
    let client = served.client()?;
    let words = [&*served.path.to_string_lossy(), &HELD.to_string()];
    for _ in rounds("lease, death", report.plan(5, 60), NO_END) {
        served.wait_for_stock(&client)?;
        let mut holder = Child::start("lease-hold", &words)?;
        holder.line()?;
        let begin = clock::wall();
        rustix::process::kill_process(pid(&holder)?, rustix::process::Signal::KILL)?;
        while !client.list()?.is_empty() {}
        report.add("death_seen", GLEBE, "us", clock::micros(clock::wall() - begin));
    }
    Ok(())
}

fn pid(child: &Child) -> Outcome<rustix::process::Pid> {
    let id = i32::try_from(child.id())?;
    Ok(rustix::process::Pid::from_raw(id).ok_or("a child without a number")?)
}

/// In a child: leases, checks, marks and gives back, until it is killed. Says what was wrong.
pub(crate) fn storm(path: &Path, out: &mut dyn Write) -> Outcome {
    let client = Client::connect_to(path, "storm")?;
    let mark = std::process::id().to_le_bytes();
    writeln!(out, "ready")?;
    out.flush()?;
    for round in 0.. {
        let flags =
            Flags { one_file: round % 16 == 5, revocable: round % 3 == 0, ..Flags::default() };
        match client.lease(wish(1 + round * 7 % 40, flags)) {
            Ok(lease) => used(&lease, mark, out)?,
            Err(LeaseError::Refused { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn used(lease: &Lease, mark: [u8; 4], out: &mut dyn Write) -> Outcome {
    let marks = lease.len().get() / PAGE.bytes().get() * MARKS_A_PAGE;
    let mut count = |wanted: [u8; 4], what: &str| -> Outcome {
        for nth in 0..marks {
            let mut seen = [0; 4];
            if lease.read(at(nth), &mut seen).is_ok() && seen != wanted {
                writeln!(out, "{what}")?;
                out.flush()?;
            }
        }
        Ok(())
    };
    count([0; 4], "wrong")?;
    for nth in 0..marks {
        if lease.write(at(nth), &mark).is_err() {
            return Ok(());
        }
    }
    // A revoked lease reads as zeros, with an error.
    count(mark, "shared")
}

pub(super) fn kills(served: &Served, report: &mut Report) -> Outcome {
    let client = served.client()?;
    let start = || -> Outcome<Child> {
        let mut child = Child::start("lease-storm", &[&*served.path.to_string_lossy()])?;
        child.line()?;
        Ok(child)
    };
    let mut children: Vec<Child> = (0..CLIENTS).map(|_| start()).collect::<Outcome<_>>()?;
    let [mut wrong, mut shared] = [0, 0];
    let mut ended = |mut child: Child| -> Outcome {
        rustix::process::kill_process(pid(&child)?, rustix::process::Signal::KILL)?;
        while let Some(line) = child.line()? {
            wrong += u64::from(line == "wrong");
            shared += u64::from(line == "shared");
        }
        Ok(())
    };
    let kills = report.plan(200, 100_000);
    for nth in rounds("lease, kills", kills, NO_END) {
        std::thread::sleep(Duration::from_micros(nth * 7919 % 4000));
        ended(children.remove(nth as usize * 3 % CLIENTS))?;
        children.push(start()?);
    }
    children.into_iter().try_for_each(&mut ended)?;
    report.check("wrong_bytes", wrong);
    report.check("shared_pages", shared);
    served.wait_for(&client, &["glebe_lease_held_bytes 0\n", "glebe_lease_returning_bytes 0\n"])?;
    let lost = match client.lease(wish(ALL, Flags::default())) {
        Ok(lease) => ALL - lease.len().get() / PAGE.bytes().get(),
        Err(_) => {
            let mut had: Vec<Lease> = Vec::new();
            while let Ok(lease) = client.lease(wish(1, Flags::default())) {
                had.push(lease);
            }
            ALL - had.len() as u64
        }
    };
    report.check("lost_pages", lost);
    report.add("kills", GLEBE, "1", kills as f64);
    Ok(())
}
