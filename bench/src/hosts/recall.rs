//! [`recall`] takes memory from a daemon as a first-class client does, and times it.

use std::io::{BufRead, Write};
use std::path::Path;
use std::time::Duration;

use glebe::internal::sys::processes::time_slice;
use glebe::units::Bytes;
use glebe_lease::{Client, Lease, LeaseError, Wish};
use rustix::io::Errno;
use serde_json::json;

use crate::{clock, Outcome};

/// Pause between two requests while memory is being taken back.
const PAUSE: Duration = Duration::from_micros(200);

/// In a child: for each line with MiB and seconds, leases the memory and holds it. Prints the
/// microseconds until the lender has given its lease back (null if it had none), and until this
/// lease begins.
pub(crate) fn recall(path: &Path, out: &mut dyn Write) -> Outcome {
    // The time until this process runs again is not the recall's.
    time_slice::shorten();
    let client = Client::connect_to(path, "first-class")?.patience(Duration::ZERO);
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (mib, seconds) = line.split_once(' ').ok_or("MiB and seconds")?;
        let wish = Wish { bytes: Bytes::mib(mib.parse()?).get(), ..Wish::default() };
        let (lease, released, leased) = leased(&client, wish)?;
        writeln!(out, "{}", json!({ "released": released, "leased": leased }))?;
        out.flush()?;
        std::thread::sleep(Duration::from_secs_f64(seconds.parse()?));
        drop(lease);
    }
    Ok(())
}

fn leased(client: &Client, wish: Wish) -> Outcome<(Lease, Option<f64>, f64)> {
    let had = !client.list()?.is_empty();
    let begin = clock::wall();
    let elapsed = || clock::micros(clock::wall() - begin);
    let mut released = None;
    loop {
        match client.lease(wish) {
            Err(LeaseError::Refused { errno, .. }) if errno == Errno::AGAIN.raw_os_error() => {}
            answer => {
                let leased = elapsed();
                return Ok((answer?, had.then(|| released.unwrap_or(leased)), leased));
            }
        }
        if released.is_none() && client.list()?.is_empty() {
            released = Some(elapsed());
        }
        std::thread::sleep(PAUSE);
    }
}
