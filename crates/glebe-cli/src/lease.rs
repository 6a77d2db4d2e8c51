//! `glebe lease` starts a program with leased memory, and `glebe leases` lists leases.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::ValueHint;
use glebe::units::Bytes;
use glebe_lease::wire::{Flags, Name};
use glebe_lease::{socket_path, Client, LeaseError, Row, Wish};
use serde_json::json;

use crate::run::{broken_pipe, not_executed};
use crate::{size, Outcome};

const FD: &str = "GLEBE_LEASE_FD";
const BYTES: &str = "GLEBE_LEASE_BYTES";
/// Longest wait for a daemon that does not answer.
const LIMIT: Duration = Duration::from_secs(10);

pub const EXIT_STATUS: &str =
    "That of the program. If it was not started: 1 if there is no daemon \
    or no memory, 2 if the command line is wrong, 126 if the program cannot be executed, 127 if it \
    was not found.";

/// Options of `glebe lease`.
#[derive(clap::Args)]
#[command(after_help = format!("Exit status: {EXIT_STATUS}"))]
#[command(override_usage = "glebe lease [OPTIONS] SIZE -- PROGRAM [ARGUMENT]...")]
pub struct LeaseArgs {
    /// How much memory, for example 512M or 2G; rounded up to whole huge pages (3M to 4 MiB)
    #[arg(value_parser = size::parse)]
    size: Bytes,
    /// Only memory in one physical run
    #[arg(long)]
    contiguous: bool,
    /// Align the first physical byte to SIZE, a power of two
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    align: Option<Bytes>,
    /// Let the daemon take the memory back when others need it; the program must expect SIGBUS
    #[arg(long)]
    revocable: bool,
    /// Name of the lease in lists; the default is the program's
    #[arg(long)]
    name: Option<String>,
    /// How long to ask again while the daemon takes memory back, or adds some
    #[arg(long, value_name = "SECONDS", value_parser = wait, default_value = "2")]
    wait: Duration,
    /// Socket of the daemon; the default is $GLEBE_LEASES, else the usual one
    #[arg(long, value_name = "FILE")]
    socket: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

/// Options of `glebe leases`.
#[derive(clap::Args)]
pub struct LeasesArgs {
    /// Socket of the daemon; the default is $GLEBE_LEASES, else the usual one
    #[arg(long, value_name = "FILE")]
    socket: Option<PathBuf>,
    /// Print JSON
    #[arg(long, group = "form")]
    json: bool,
    /// Print the daemon's statistics as OpenMetrics text, as Prometheus reads it
    #[arg(long, group = "form")]
    openmetrics: bool,
    /// Print again every SECONDS (default 2) until the output is closed or a signal arrives
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2")]
    watch: Option<f64>,
}

fn wait(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.0..=86_400.0).contains(seconds));
    Ok(Duration::from_secs_f64(seconds.ok_or("give from 0 to 86400 seconds")?))
}

fn connected(socket: Option<&PathBuf>, name: &str) -> Result<Client, LeaseError> {
    Client::connect_within(&socket.cloned().unwrap_or_else(socket_path), name, LIMIT)
}

/// Becomes the program. Returns only after a failure.
pub fn run(args: &LeaseArgs) -> Outcome {
    let (program, arguments) = args.command.split_first().expect("a value is required");
    let shown = program.to_string_lossy();
    let name = args.name.as_deref().unwrap_or_else(|| shown.rsplit('/').next().unwrap_or(&shown));
    let client = connected(args.socket.as_ref(), name)?.patience(args.wait);
    let flags = Flags { contiguous: args.contiguous, one_file: true, revocable: args.revocable };
    let align = args.align.map_or(0, Bytes::get);
    let name = Name::new(name);
    let (file, bytes) =
        client.file(Wish { bytes: args.size.get(), align, flags, name, ..Wish::default() })?;
    // The connection is the lease, so the program keeps both descriptors.
    for descriptor in [file.as_fd(), client.as_fd()] {
        pass_on(descriptor)?;
    }
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env(FD, file.as_raw_fd().to_string())
        .env(BYTES, bytes.get().to_string());
    broken_pipe::keep(&mut command);
    Err(Box::new(not_executed(Path::new(program), &command.exec())))
}

fn pass_on(descriptor: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::empty())?)
}

pub fn list(args: &LeasesArgs, out: &mut dyn Write) -> Outcome {
    let client = connected(args.socket.as_ref(), "glebe leases")?;
    let Some(every) = args.watch else { return once(args, &client, out) };
    let every = Duration::try_from_secs_f64(every.max(0.1))?;
    loop {
        if io::stdout().is_terminal() {
            write!(out, "\x1b[H\x1b[J")?;
        }
        once(args, &client, out)?;
        out.flush()?;
        std::thread::sleep(every);
    }
}

fn once(args: &LeasesArgs, client: &Client, out: &mut dyn Write) -> Outcome {
    if args.openmetrics {
        return Ok(out.write_all(client.stats()?.as_bytes())?);
    }
    let rows = client.list()?;
    if args.json {
        let all: Vec<_> = rows.iter().map(as_json).collect();
        return Ok(writeln!(out, "{}", json!(all))?);
    }
    if rows.is_empty() {
        return Ok(writeln!(out, "no leases")?);
    }
    writeln!(out, "{:>6} {:>10} {:>8} {:>8}  {:<24} NAME", "LEASE", "SIZE", "USER", "PID", "KIND")?;
    for row in &rows {
        let (size, kind) = (Bytes::new(row.bytes).to_string(), kind(row));
        let Row { uid, pid, name, .. } = row;
        // A cache belongs to no process. Only the protocol uses its number.
        let number = if row.is_cache { "-".to_owned() } else { row.lease.to_string() };
        let pid = if row.is_cache { "-".to_owned() } else { pid.to_string() };
        writeln!(out, "{number:>6} {size:>10} {uid:>8} {pid:>8}  {kind:<24} {}", name.as_str())?;
    }
    Ok(writeln!(out, "{}", sums(&rows))?)
}

/// Returns the number and length of leases, and of caches.
fn sums(rows: &[Row]) -> String {
    let sum = |is_cache, one: &str| {
        let of_kind = || rows.iter().filter(|row| row.is_cache == is_cache);
        let (count, bytes) = (of_kind().count(), of_kind().map(|row| row.bytes).sum());
        let plural = if count == 1 { "" } else { "s" };
        (count > 0).then(|| format!("{count} {one}{plural}, {}", Bytes::new(bytes)))
    };
    let all: Vec<String> =
        [sum(false, "lease"), sum(true, "cache")].into_iter().flatten().collect();
    all.join("; ")
}

fn kind(row: &Row) -> String {
    if row.is_cache {
        return "cache".to_owned();
    }
    let flags = row.flags;
    let words = [
        (flags.contiguous, "one run"),
        (flags.one_file, "one file"),
        (flags.revocable, "revocable"),
    ];
    let words: Vec<&str> = words.iter().filter(|(is, _)| *is).map(|(_, word)| *word).collect();
    words.join(", ")
}

fn as_json(row: &Row) -> serde_json::Value {
    let Row { lease, bytes, uid, pid, flags, is_cache, name } = row;
    // A cache belongs to no process, and its number is too large for JSON.
    let [lease, pid] = [*lease, u64::from(*pid)].map(|number| (!is_cache).then_some(number));
    json!({
        "lease": lease, "bytes": bytes, "uid": uid, "pid": pid, "name": name.as_str(),
        "contiguous": flags.contiguous, "one_file": flags.one_file, "revocable": flags.revocable,
        "cache": is_cache,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(bytes: u64, is_cache: bool) -> Row {
        let (flags, name) = (Flags::default(), Name::new("name"));
        Row { lease: u64::MAX, bytes, uid: 7, pid: 8, flags, is_cache, name }
    }

    #[test]
    fn caches_are_no_leases() {
        let rows = [row(2 << 20, false), row(32 << 20, true), row(62 << 20, false)];
        assert_eq!(sums(&rows), "2 leases, 64 MiB; 1 cache, 32 MiB");
        assert_eq!(sums(&rows[..1]), "1 lease, 2 MiB");
        assert_eq!(sums(&[rows[1], rows[1]]), "2 caches, 64 MiB");
        let [lease, cache] = [&rows[0], &rows[1]].map(as_json);
        assert_eq!((&lease["pid"], &lease["lease"]), (&json!(8), &json!(u64::MAX)));
        assert!(cache["pid"].is_null() && cache["lease"].is_null(), "{cache}");
    }
}
