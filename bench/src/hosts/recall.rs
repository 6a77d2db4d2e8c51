//! [`recall`] takes memory from a daemon as a first-class client does, and times it.

use std::io::{BufRead, Write};
use std::path::Path;
use std::time::Duration;

use glebe::units::Bytes;
use glebe_lease::{Client, Lease, LeaseError, Wish};
use rustix::io::Errno;

use crate::clock::timed;
use crate::{clock, Outcome};

/// Pause between two requests while memory is being taken back.
const PAUSE: Duration = Duration::from_micros(200);

/// In a child: for each line with MiB and seconds, leases so much and holds it. Prints the
/// microseconds until the lender's lease has ended, and until this one begins.
pub(crate) fn recall(path: &Path, out: &mut dyn Write) -> Outcome {
    let client = Client::connect_to(path, "first-class")?.patience(Duration::ZERO);
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (mib, seconds) = line.split_once(' ').ok_or("MiB and seconds")?;
        let wish = Wish { bytes: Bytes::mib(mib.parse()?).get(), ..Wish::default() };
        let mut ended = 0.0;
        let (lease, took) = timed(|| leased(&client, wish, &mut ended));
        let lease = lease?;
        writeln!(out, r#"{{"":{ended},"_lease":{}}}"#, took.wall_us)?;
        out.flush()?;
        std::thread::sleep(Duration::from_secs_f64(seconds.parse()?));
        drop(lease);
    }
    Ok(())
}

/// Asks until the memory is there. `ended` gets the microseconds until no other lease is listed.
fn leased(client: &Client, wish: Wish, ended: &mut f64) -> Result<Lease, LeaseError> {
    let begin = clock::wall();
    let mut is_listed = true;
    loop {
        match client.lease(wish) {
            Err(LeaseError::Refused { errno, .. }) if errno == Errno::AGAIN.raw_os_error() => {}
            answer => return answer,
        }
        if is_listed && client.list()?.is_empty() {
            is_listed = false;
            *ended = clock::micros(clock::wall() - begin);
        }
        std::thread::sleep(PAUSE);
    }
}
