//! [`recall`] takes memory from a daemon as a first-class client does, and times it.

use std::io::{BufRead, Write};
use std::path::Path;
use std::time::Duration;

use glebe::units::Bytes;
use glebe_lease::{Client, LeaseError, Wish};
use rustix::io::Errno;

use crate::clock::timed;
use crate::Outcome;

/// Pause between two requests while memory is being taken back.
const PAUSE: Duration = Duration::from_micros(200);

/// In a child: for each line with MiB and seconds, has the memory promised, leases it and holds it.
/// Prints the microseconds until the promise and until the lease.
pub(crate) fn recall(path: &Path, out: &mut dyn Write) -> Outcome {
    let client = Client::connect_to(path, "first-class")?.patience(Duration::ZERO);
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (mib, seconds) = line.split_once(' ').ok_or("MiB and seconds")?;
        let wish = Wish { bytes: Bytes::mib(mib.parse()?).get(), ..Wish::default() };
        let (lease, took) = timed(|| {
            let (promise, took) = timed(|| again(|| client.promise(wish)));
            let lease = promise?.take()?;
            Ok::<_, LeaseError>((lease, took.wall_us))
        });
        let (lease, promised) = lease?;
        writeln!(out, r#"{{"":{promised},"_lease":{}}}"#, took.wall_us)?;
        out.flush()?;
        std::thread::sleep(Duration::from_secs_f64(seconds.parse()?));
        drop(lease);
    }
    Ok(())
}

/// Asks until the memory is no longer on its way.
fn again<T>(ask: impl Fn() -> Result<T, LeaseError>) -> Result<T, LeaseError> {
    loop {
        match ask() {
            Err(LeaseError::Refused { errno, .. }) if errno == Errno::AGAIN.raw_os_error() => {
                std::thread::sleep(PAUSE);
            }
            answer => return answer,
        }
    }
}
