//! Two processes share a cache of rendered bytes. One process is killed while it uses entries. The
//! other purges entries before and after the kill, and renders them again.
//!
//! `shared_volatile [FILE]` makes `FILE` on tmpfs and removes it at the end. Without `FILE` the
//! cache is a memfd, opened by its name below `/proc`.

use std::error::Error;
use std::io::{self, BufRead, BufReader, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use glebe_volatile::units::Bytes;
use glebe_volatile::{Order, Priority, Shared};

type Outcome<T> = Result<T, Box<dyn Error>>;

const ENTRY: Bytes = Bytes::new(64 << 10);
const ENTRIES: u64 = 64;
const IN_USE: Range<u64> = 8..12;
const WORKER: &str = "--as-the-other-process";

fn render(entry: u64) -> Vec<u8> {
    let pixel = |at: u64| (at.wrapping_mul(entry + 3) >> 5 ^ entry) as u8;
    (0..ENTRY.get()).map(pixel).collect()
}

fn place(entry: u64) -> Range<Bytes> {
    Bytes::new(entry * ENTRY.get())..Bytes::new((entry + 1) * ENTRY.get())
}

fn read(cache: &Shared, entry: u64, bytes: &mut [u8]) -> Outcome<bool> {
    let pin = cache.pin(place(entry))?;
    let is_lost = !pin.lost().is_empty();
    if is_lost {
        pin.write(Bytes::ZERO, &render(entry))?;
        // Ends the loss. The entry now counts as marked last.
        pin.restored()?;
    }
    pin.read(Bytes::ZERO, bytes)?;
    Ok(is_lost)
}

/// Fills the second half of the cache, then keeps pins in the first until killed.
fn work(path: &Path) -> Outcome<()> {
    let cache = Shared::options().open(path)?;
    for entry in ENTRIES / 2..ENTRIES {
        cache.pin(place(entry))?.write(Bytes::ZERO, &render(entry))?;
        cache.mark(place(entry), Priority::NORMAL, Order::Fifo)?;
    }
    let _in_use = cache.pin(place(IN_USE.start).start..place(IN_USE.end - 1).end)?;
    println!("ready");
    io::stdin().read_line(&mut String::new())?;
    Ok(())
}

fn start_other(path: &Path) -> Outcome<Child> {
    let mut other = Command::new(std::env::current_exe()?);
    other.arg(WORKER).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut other = other.spawn()?;
    let mut line = String::new();
    let stdout = other.stdout.take().ok_or("a pipe")?;
    BufReader::new(stdout).read_line(&mut line)?;
    if line.trim() != "ready" {
        return Err(format!("the other process ended: {}", other.wait()?).into());
    }
    Ok(other)
}

fn run(path: Option<&Path>, out: &mut impl Write) -> Outcome<()> {
    let (options, len) = (Shared::options().granule(ENTRY), Bytes::new(ENTRIES * ENTRY.get()));
    let cache = match path {
        Some(path) => options.create_at(path, len)?,
        None => options.create(len)?,
    };
    for entry in 0..ENTRIES / 2 {
        cache.pin(place(entry))?.write(Bytes::ZERO, &render(entry))?;
        cache.mark(place(entry), Priority::NORMAL, Order::Fifo)?;
    }
    let fd = format!("/proc/{}/fd/{}", std::process::id(), cache.fd().as_raw_fd());
    let mut other = start_other(path.unwrap_or(Path::new(&fd)))?;
    writeln!(out, "two processes have filled {len}")?;

    let freed = cache.purge(Bytes::mib(1), Priority::HIGHEST)?;
    writeln!(out, "{freed} taken, the oldest first: not what the other process uses")?;
    other.kill()?;
    other.wait()?;
    let more = cache.purge(Bytes::new(IN_USE.count() as u64 * ENTRY.get()), Priority::HIGHEST)?;
    writeln!(out, "{more} taken after it was killed: what it used")?;

    let (mut bytes, mut lost) = (vec![0; ENTRY.as_usize()], Vec::new());
    for entry in 0..ENTRIES {
        if read(&cache, entry, &mut bytes)? {
            lost.push(entry);
        }
        if bytes != render(entry) {
            return Err(format!("entry {entry} is wrong").into());
        }
    }
    writeln!(out, "lost and rendered again: {lost:?}; all {ENTRIES} entries are right")?;
    if lost != (0..20).collect::<Vec<u64>>() {
        return Err("not the oldest were lost".into());
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let args: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if let [what, path] = &*args {
        if what == Path::new(WORKER) {
            return work(path);
        }
    }
    let path = args.first().map(PathBuf::as_path);
    let done = run(path, &mut io::stdout().lock());
    if let Some(path) = path {
        let _ = std::fs::remove_file(path);
    }
    done
}
