//! `glebe lend` lends idle memory of a server to a Mooncake Store; `glebe lend status` shows it.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use std::time::Duration;

use glebe::internal::served_dir;
use glebe::internal::sys::files::private::own_dir;
use glebe::lease::socket_path;
use glebe::reserve::served;
use glebe::units::Bytes;
use glebe_lend::{ask, LendError, SegmentLender, Settings};
use serde_json::Value;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level::pipe};

use crate::{size, usage, Outcome};

/// End of the name of a lender's socket.
const END: &str = ".lend";

/// Options of `glebe lend`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct LendArgs {
    #[command(subcommand)]
    command: Option<LendCommand>,
    /// Address of Mooncake's master
    #[arg(long, value_name = "HOST:PORT", required = true)]
    mooncake: Option<String>,
    /// Most memory to lend, in whole segments
    #[arg(long, value_name = "SIZE", value_parser = size::parse, required = true)]
    share: Option<Bytes>,
    /// Length of a segment, a multiple of 2M
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "256M")]
    segment: Bytes,
    /// Name or address of this host for other hosts, if not that of the way to the master
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// URL of Mooncake's metadata server; the default needs none
    #[arg(long, value_name = "URL", default_value = "P2PHANDSHAKE")]
    metadata: String,
    /// Mooncake's transport
    #[arg(long, value_name = "NAME", default_value = "tcp")]
    protocol: String,
    /// Python with Mooncake's package
    #[arg(long, value_name = "FILE", default_value = "python3")]
    python: PathBuf,
    /// Least rest of memory that was taken back; at least the master's lease time, which is 10 s
    /// in Mooncake 0.3.13 if not set
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "15")]
    rest: Duration,
    /// Longest rest, if recalls are frequent
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "600")]
    rest_max: Duration,
    /// Time between requests that the server refuses, and between looks at the master
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "5")]
    every: Duration,
    /// Longest wait in milliseconds for the helper's answer when the server wants memory back; then
    /// the helper is killed, and its end is waited for as long again. The first wait is at most
    /// half of the server's --lease-notice
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 20)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=600_000))]
    patience: u64,
    /// Socket of the server; the default is $GLEBE_LEASES, else the usual one
    #[arg(long, value_name = "FILE")]
    socket: Option<PathBuf>,
    /// Socket for `glebe lend status`; the default is beside the sockets of the statistics
    #[arg(long, value_name = "FILE")]
    control: Option<PathBuf>,
    /// Also print the log of Mooncake's package
    #[arg(short, long)]
    verbose: bool,
}

#[derive(clap::Subcommand)]
enum LendCommand {
    /// Show what a running `glebe lend` lends
    Status(StatusArgs),
}

/// Options of `glebe lend status`.
#[derive(clap::Args)]
struct StatusArgs {
    /// Print JSON
    #[arg(long, group = "form")]
    json: bool,
    /// Print OpenMetrics text, as Prometheus reads it
    #[arg(long, group = "form")]
    openmetrics: bool,
    /// Socket of the lender; not needed if only one lender runs
    #[arg(long, value_name = "FILE")]
    control: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
    Ok(Duration::from_secs_f64(seconds.ok_or("give from 0.1 to 86400 seconds")?))
}

pub fn run(args: &LendArgs, out: &mut dyn Write) -> Outcome {
    if let Some(LendCommand::Status(args)) = &args.command {
        return status(args, out);
    }
    let settings = settings(args);
    let Settings { master, share, segment, .. } = &settings;
    let (count, whole) = (settings.segments(), segment.get() * settings.segments());
    let line = format!(
        "lends {} of at most {share} to {master}, in {count} segments of {segment}",
        Bytes::new(whole)
    );
    let stop = signals()?;
    let mut lender = match SegmentLender::new(settings) {
        Err(LendError::Setting(text)) => return usage(text),
        other => other?,
    };
    // The lender works also if nobody reads this.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    Ok(lender.run(stop.as_fd())?)
}

/// Returns a socket that SIGTERM and SIGINT make readable. A second signal kills the process.
fn signals() -> std::io::Result<UnixStream> {
    let (readable, sender) = UnixStream::pair()?;
    let is_second = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        flag::register_conditional_default(signal, Arc::clone(&is_second))?;
        flag::register(signal, Arc::clone(&is_second))?;
        pipe::register(signal, sender.try_clone()?)?;
    }
    Ok(readable)
}

fn settings(args: &LendArgs) -> Settings {
    let LendArgs { segment, host, metadata, protocol, python, rest, every, .. } = args;
    Settings {
        master: args.mooncake.clone().unwrap_or_default(),
        share: args.share.unwrap_or_default(),
        segment: *segment,
        metadata: metadata.clone(),
        protocol: protocol.clone(),
        host: host.clone(),
        python: python.clone(),
        daemon: args.socket.clone().unwrap_or_else(socket_path),
        rest: *rest,
        rest_max: args.rest_max,
        every: *every,
        patience: Duration::from_millis(args.patience),
        status: args.control.clone().or_else(beside),
        is_verbose: args.verbose,
    }
}

/// Returns the usual path of this process's socket. The lender works without it.
fn beside() -> Option<PathBuf> {
    let dir = served_dir().map_err(|error| error.to_string());
    let dir = dir.and_then(|dir| match own_dir(&dir) {
        Ok(()) => Ok(dir),
        Err(error) => Err(error.to_string()),
    });
    match dir {
        Ok(dir) => Some(dir.join(format!("{}{END}", std::process::id()))),
        Err(error) => {
            let _ =
                writeln!(io::stderr(), "glebe lend: no status for `glebe lend status`: {error}");
            None
        }
    }
}

fn status(args: &StatusArgs, out: &mut dyn Write) -> Outcome {
    let path = match &args.control {
        Some(path) => path.clone(),
        None => found()?,
    };
    let text = ask(&path, args.openmetrics).map_err(|error| format!("{}: {error}", path.display()));
    let text = text?;
    if args.openmetrics {
        return Ok(out.write_all(text.as_bytes())?);
    }
    let shown: Value = serde_json::from_str(&text).map_err(|error| format!("no JSON: {error}"))?;
    match args.json {
        true => Ok(writeln!(out, "{shown:#}")?),
        false => write_table(&shown, out),
    }
}

fn found() -> Result<PathBuf, Box<dyn std::error::Error>> {
    let entries = served::dirs().into_iter().flat_map(std::fs::read_dir).flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let of_lender = paths.filter(|path| path.to_string_lossy().ends_with(END));
    // Skips the socket file that a killed lender leaves behind.
    let mut alive: Vec<PathBuf> =
        of_lender.filter(|path| UnixStream::connect(path).is_ok()).collect();
    match (alive.pop(), alive.is_empty()) {
        (Some(path), true) => Ok(path),
        (None, _) => Err("no `glebe lend` of yours is running".into()),
        (Some(_), false) => usage("several lenders run: give one by --control"),
    }
}

fn write_table(shown: &Value, out: &mut dyn Write) -> Outcome {
    let number = |name: &str| shown["statistics"][name].as_u64().unwrap_or_default();
    // Parts of the text are from other programs.
    let clean = |text: &Value| text.as_str().unwrap_or_default().replace(char::is_control, "?");
    let text = |name: &str| clean(&shown[name]);
    let bytes = |name: &str| Bytes::new(number(name));
    let ms = |nanos: u64| nanos as f64 / 1e6;
    writeln!(out, "lent      {} of {}", bytes("lent_bytes"), bytes("wanted_bytes"))?;
    writeln!(out, "resting   {}", bytes("resting_bytes"))?;
    writeln!(out, "master    {}", text("master"))?;
    writeln!(out, "server    {}", text("daemon"))?;
    let (recalled, early) = (number("recalled"), number("early"));
    writeln!(out, "recalls   {recalled}, {early} of them sooner than the segment paid")?;
    let (killed, died) = (number("killed"), number("died"));
    writeln!(out, "helper    {killed} times killed, {died} times ended by itself")?;
    let last = ms(shown["last_unmount_ns"].as_u64().unwrap_or_default());
    let (max, back) = (ms(number("unmount_max_ns")), ms(number("recall_max_ns")));
    writeln!(out, "unmount   {last:.1} ms, at most {max:.1} ms; a whole recall {back:.1} ms")?;
    writeln!(out, "\n{:>7}  STATE", "SEGMENT")?;
    for (nth, state) in shown["segments"].as_array().into_iter().flatten().enumerate() {
        writeln!(out, "{nth:>7}  {}", clean(state))?;
    }
    Ok(())
}
