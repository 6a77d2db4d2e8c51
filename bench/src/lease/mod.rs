//! The benchmark `lease`: huge pages of a daemon, beside a standing pool of the kernel.
//!
//! A sample is the time in the client to request, receive, map and touch each page. The daemon is
//! another process. Up to 16 samples follow each other; then
//! the daemon zeroes pages again, which is not timed. Units:
//! microseconds; MiB.

mod big_file;
mod ends;
mod served;
mod shared;
mod standing;

use glebe::units::{Bytes, PageSize};
use glebe_lease::wire::Flags;
use glebe_lease::{Client, Wish};

use crate::clock::timed;
use crate::report::{Report, GLEBE};
use crate::turns::turns;
use crate::Outcome;

pub(crate) use ends::{hold, storm};
pub(crate) use served::be_daemon;
pub(crate) use standing::StandingPool;

use big_file::BigFile;
use served::Served;

const PAGE: PageSize = PageSize::new(2 << 20).unwrap();
const COUNTS: [u64; 4] = [1, 8, 62, 124];
/// Most leases in a row, before the daemon has time to zero pages again.
const BURST: u64 = 16;
const STANDING: &str = "standing_pool";
const BIG_FILE: &str = "big_file";
const AT_REQUEST: &str = "glebe, zeroed at the request";
const CHECKS: [&str; 3] = ["lost_pages", "shared_pages", "wrong_bytes"];

const NOTES: [&str; 5] = [
    "`standing_pool` is mmap(MAP_HUGETLB) and a touch of each page; the kernel zeroes the pages \
     then. The pool has the pages set aside.",
    "`big_file` is a range of one file that the daemon's peer has mapped: whoever gets the file \
     reaches all of it, so it isolates nothing.",
    "`revoke_62` begins when another client's request takes a lease without notice, and ends when \
     the holder can write to none of its pages.",
    "`death_seen` begins before kill(2), and ends when the daemon no longer lists the lease of 62 \
     pages.",
    "`shared_*` are calls of four Python processes at once on one cache. A sample is the processor \
     time of a call, with that of memcached's server. Each peer has up to 32 MiB of each length. \
     lmdb: no sync, a transaction a call; lmdb and diskcache on /dev/shm; memcached on a Unix \
     socket, with the shortest client there can be.",
];

pub(crate) fn run(report: &mut Report) -> Outcome {
    let served = match Served::start() {
        Ok(served) => served,
        Err(why) => {
            let why = why.to_string();
            for count in COUNTS {
                report.remark(&format!("lease_{count}"), GLEBE, "us", &why);
            }
            ["revoke_62", "death_seen"].iter().for_each(|it| report.remark(it, GLEBE, "us", &why));
            CHECKS.iter().for_each(|check| report.unmeasured(check, &why));
            shared::not_run(report, &why);
            report.ratio("lease_62_vs_standing_pool", f64::NAN);
            return Ok(());
        }
    };
    // Dropped after the daemon has ended.
    let standing = StandingPool::new(2 * COUNTS[COUNTS.len() - 1]);
    let served = served;
    leases(&served, &standing, report)?;
    ends::revoke(&served, report)?;
    ends::death(&served, report)?;
    ends::kills(&served, report)?;
    shared::run(&served, report)?;
    let of = |who| report.median("lease_62", who);
    let ratio = of(STANDING) / of(GLEBE);
    report.ratio("lease_62_vs_standing_pool", ratio);
    let ratio = report.median("lease_1", STANDING) / report.median("lease_1", GLEBE);
    report.ratio("lease_1_vs_standing_pool", ratio);
    NOTES.iter().for_each(|note| report.note(note));
    Ok(())
}

fn wish(pages: u64, flags: Flags) -> Wish {
    Wish { bytes: pages * PAGE.bytes().get(), flags, ..Wish::default() }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Ahead,
    AtRequest,
    Standing,
    BigFile,
}

fn leases(served: &Served, standing: &Outcome<StandingPool>, report: &mut Report) -> Outcome {
    let client = served.client()?;
    // A half of the standing pool is for the big file.
    let big = BigFile::start(COUNTS[COUNTS.len() - 1]);
    let ways = [Way::Ahead, Way::Standing, Way::BigFile, Way::AtRequest];
    let all: Vec<(u64, Way)> =
        COUNTS.iter().flat_map(|count| ways.map(|way| (*count, way))).collect();
    for (_, (pages, way)) in turns("lease", report.plan(8, 100), &all) {
        served.wait_for_stock(&client)?;
        let case = format!("lease_{pages}");
        // In the way `AtRequest` another client has all that is zeroed ahead.
        let rest = (way == Way::AtRequest)
            .then(|| client.lease(wish(served::STOCK, Flags::default())))
            .transpose()?;
        for _ in 0..(served::STOCK / pages).min(BURST) {
            let (who, took) = match way {
                Way::Ahead => (GLEBE, leased(&client, pages)),
                Way::AtRequest => (AT_REQUEST, leased(&client, pages)),
                Way::Standing => (STANDING, of(standing, |pool| pool.map(pages))),
                Way::BigFile => (BIG_FILE, of(&big, |file| file.map(pages))),
            };
            report.outcome(&case, who, "us", took);
        }
        drop(rest);
    }
    // The end of the big file would change the order of the pool's free pages.
    served.wait_for_stock(&client)
}

fn of<T>(peer: &Outcome<T>, map: impl Fn(&T) -> Outcome<f64>) -> Outcome<f64> {
    peer.as_ref().map_err(|why| why.to_string().into()).and_then(map)
}

fn leased(client: &Client, pages: u64) -> Outcome<f64> {
    let (lease, took) = timed(|| {
        let lease = client.lease(wish(pages, Flags::default()))?;
        (0..pages).try_for_each(|nth| lease.write(Bytes::new(nth * PAGE.bytes().get()), &[1]))?;
        Ok::<_, glebe_lease::LeaseError>(lease)
    });
    lease?;
    Ok(took.wall_us)
}
