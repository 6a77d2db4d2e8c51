//! `glebe serve` serves idle contiguous memory to programs that need not link glebe.

mod access;
mod extended;
mod machine;
mod metrics;
mod openmetrics;
mod surroundings;
mod user;

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, CommandFactory, FromArgMatches, Parser};
use glebe::contig::Node;
use glebe::units::Bytes;
use glebe_serve::server::{Access, Server, Settings, PORT, TURN};
use glebed::{Daemon, Quota, Settings as Leases};

use self::access::AccessArgs;
use self::surroundings::{chosen_brick, pulse, stored};
use crate::{size, usage, Outcome};

/// Variable that enables the command `debugtime`, by which tests move the server's clock.
const DEBUG_TIME: &str = "GLEBE_SERVE_DEBUG_TIME";
const ITEM_MIN: u64 = 1 << 10;
const ITEM_MAX: u64 = 1 << 30;
const THREADS_MAX: u64 = 1 << 10;
const CONNS_MAX: u64 = 1 << 30;
const MIB_MAX: u64 = 1 << 26;
const ITEM_DEFAULT: &str = "1m";

/// Options of `glebe serve`.
#[derive(clap::Args)]
#[command(args_override_self = true)]
pub struct ServeArgs {
    /// Speak memcached's protocol: the default, and the only one
    #[arg(long = "memcached")]
    _memcached: bool,
    /// Read options from a TOML file, by their long names; the command line overrides it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// TCP port; 0 for none
    #[arg(short = 'p', long, value_name = "PORT", default_value_t = PORT)]
    port: u16,
    /// Addresses to listen at, separated by commas; each may have a port, and `notls:` before it
    #[arg(short = 'l', long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    listen: String,
    /// Unix socket to listen at, instead of any address
    #[arg(short = 's', long = "unix-socket", value_name = "FILE")]
    unix_socket: Option<PathBuf>,
    /// Mode of the Unix socket, in octal, at most 777
    #[arg(short = 'a', long = "unix-mask", value_name = "MODE", default_value = "700")]
    unix_mask: String,
    /// Accepted; the server speaks no UDP, and warns if this is not 0
    #[arg(short = 'U', long = "udp-port", value_name = "PORT", default_value_t = 0)]
    udp_port: u16,
    /// Memory of the server in MiB: items, index, values and answers in transit
    #[arg(short = 'm', long = "memory-limit", value_name = "MIB", value_parser = mib)]
    #[arg(default_value_t = 64)]
    memory_limit: u64,
    /// Make the reserve of memory of NUMA node N only, or of several (0,1); threads and buffers may
    /// be elsewhere
    #[arg(long, value_name = "N", value_parser = nodes)]
    node: Option<Nodes>,
    /// Number of threads that serve
    #[arg(short = 't', long, value_name = "N", default_value_t = 4)]
    threads: usize,
    /// Most connections at a time
    #[arg(short = 'c', long = "conn-limit", value_name = "N", default_value_t = 1024)]
    conn_limit: usize,
    /// Commands of one connection before the next connection's turn
    #[arg(short = 'R', long = "max-reqs-per-event", value_name = "N", default_value_t = TURN)]
    max_reqs_per_event: usize,
    /// Most bytes of an item with its key: a number, and k, m or g
    #[arg(short = 'I', long = "max-item-size", value_name = "SIZE", default_value = ITEM_DEFAULT)]
    max_item_size: String,
    /// Refuse new items instead of evicting others
    #[arg(short = 'M', long = "disable-evictions")]
    disable_evictions: bool,
    /// Accepted without effect: items always have CAS numbers
    #[arg(short = 'C', long = "disable-cas")]
    disable_cas: bool,
    /// Most connections that wait to be accepted
    #[arg(short = 'b', long = "listen-backlog", value_name = "N", default_value_t = 1024)]
    listen_backlog: i32,
    /// `ascii` or `auto`; `binary` is refused
    #[arg(short = 'B', long, value_name = "NAME", default_value = "auto")]
    protocol: String,
    /// Log warnings to standard error; -vv also commands and answers, -vvv also states
    #[arg(short = 'v', long, action = ArgAction::Count)]
    verbose: u8,
    /// Allow the command `shutdown`
    #[arg(short = 'A', long = "enable-shutdown")]
    enable_shutdown: bool,
    /// Refuse the command `flush_all`
    #[arg(short = 'F', long = "disable-flush-all")]
    disable_flush_all: bool,
    /// Refuse the commands that list keys, and `stats detail`
    #[arg(short = 'X', long = "disable-dumping")]
    disable_dumping: bool,
    /// Refuse the command `watch`
    #[arg(short = 'W', long = "disable-watch")]
    disable_watch: bool,
    /// User to run as: root becomes this user when it has the memory, and before it listens
    #[arg(short = 'u', long, value_name = "NAME")]
    user: Option<String>,
    #[command(flatten)]
    access: AccessArgs,
    /// File to write the process id to
    #[arg(short = 'P', long, value_name = "FILE")]
    pidfile: Option<PathBuf>,
    /// Accepted without effect: memcached's own way to divide memory
    #[arg(short = 'f', long = "slab-growth-factor", value_name = "N")]
    slab_growth_factor: Option<f64>,
    /// Accepted without effect: memcached's own way to divide memory
    #[arg(short = 'n', long = "slab-min-size", value_name = "BYTES")]
    slab_min_size: Option<u64>,
    /// Accepted without effect: the server uses huge pages if there are any
    #[arg(short = 'L', long = "enable-largepages")]
    enable_largepages: bool,
    /// Accepted without effect: memory is populated, and pinned if possible
    #[arg(short = 'k', long = "lock-memory")]
    lock_memory: bool,
    /// Count commands by key prefix (`stats detail`) from the server's start; this character ends a
    /// prefix
    #[arg(short = 'D', long, value_name = "CHARACTER")]
    delimiter: Option<char>,
    /// Memcached's extended options, separated by commas: `idle_timeout=SECONDS`,
    /// `no_maxconns_fast`, and with -Z `ssl_chain_cert=FILE`, `ssl_key`, `ssl_ca_cert`,
    /// `ssl_verify_mode`, `ssl_min_version` and `ssl_session_cache` have an effect
    #[arg(short = 'o', long, value_name = "OPTIONS", value_delimiter = ',')]
    extended: Vec<String>,
    /// Lend contiguous huge pages to other processes, beside the cache (`glebe lease`)
    #[arg(long)]
    leases: bool,
    /// Path of the socket for leases; the default is $GLEBE_LEASES, else /run/glebed/leases, or for
    /// other users than root glebed/leases in $XDG_RUNTIME_DIR
    #[arg(long, value_name = "FILE")]
    lease_socket: Option<PathBuf>,
    /// Memory kept zeroed for leases, at most half of all; caches do not use it
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "64M")]
    lease_zeroed: Bytes,
    /// Most memory that a user other than root may hold by leases
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    lease_limit: Option<Bytes>,
    /// Of it, most memory that a user may promise itself for later leases
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    lease_limit_promised: Option<Bytes>,
    /// Of it, most memory that a user may hold by revocable leases
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    lease_limit_revocable: Option<Bytes>,
    /// Most memory that a user's leases may make the server zero in a second
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    lease_limit_zeroing: Option<Bytes>,
    /// Most connections of a user other than root; 0 for no limit
    #[arg(long, value_name = "N", default_value_t = 256)]
    lease_connections: usize,
    /// Most leases and promises of a connection; 0 for no limit
    #[arg(long, value_name = "N", default_value_t = 1024)]
    lease_count: usize,
    /// Time in milliseconds from the request for a revocable lease to its end
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 100)]
    lease_notice: u64,
    /// Most memory to add when leases need more than there is; without it, none is added
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    lease_grow: Option<Bytes>,
    /// Time in seconds until added memory that no lease uses is given back
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    lease_idle: u64,
    /// Check the options and the file of --config, and start nothing
    #[arg(long)]
    check: bool,
    /// Serve no statistics to `glebe stats`, and have no control socket
    #[arg(long)]
    no_stats: bool,
    /// Path of the control socket; the default is beside the socket of the statistics
    #[arg(long, value_name = "FILE")]
    control: Option<PathBuf>,
    /// Answer Prometheus over HTTP here, at /metrics, for example 127.0.0.1:9464; anybody who can
    /// connect may read
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<String>,
}

/// NUMA nodes. A later list replaces an earlier one, so the option has one value.
#[derive(Clone)]
struct Nodes(Vec<Node>);

impl ServeArgs {
    fn nodes(&self) -> Vec<Node> {
        self.node.as_ref().map_or_else(Vec::new, |nodes| nodes.0.clone())
    }
}

/// Parser of a file's options followed by the command line's.
#[derive(Parser)]
#[command(name = "glebe serve", args_override_self = true)]
struct Whole {
    #[command(flatten)]
    args: ServeArgs,
}

pub fn run(args: &ServeArgs, out: &mut dyn Write) -> Outcome {
    let mut line: Vec<OsString> = vec!["glebe serve".into()];
    if let Some(config) = &args.config {
        line.extend(options_in(config, args.verbose > 0)?.into_iter().map(Into::into));
    }
    // Skips the words `glebe serve`.
    line.extend(std::env::args_os().skip(2));
    let matches = Whole::command().try_get_matches_from(line);
    let whole = matches.and_then(|all| Ok((Whole::from_arg_matches(&all)?, all)));
    match (whole, &args.config) {
        (Ok((Whole { args }, all)), _) => match useless(&args, &all) {
            Some(option) => usage(format!("--{option} has an effect only with --leases")),
            None => serve(&args, out),
        },
        (Err(wrong), Some(config)) => {
            usage(format!("{}, or the command line: {wrong}", config.display()))
        }
        (Err(wrong), None) => usage(wrong.to_string()),
    }
}

/// Returns an option of leases that is given without --leases.
fn useless(args: &ServeArgs, all: &ArgMatches) -> Option<String> {
    let is_given = |id: &&str| all.value_source(id) == Some(ValueSource::CommandLine);
    let mut ids = all.ids().map(clap::Id::as_str).filter(|id| id.starts_with("lease_"));
    ids.find(is_given).filter(|_| !args.leases).map(|id| id.replace('_', "-"))
}

/// Returns a file's options as words, without `verbose` if the command line has it, because clap
/// would add the two.
fn options_in(path: &Path, is_verbose: bool) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let shown = path.display();
    let text = fs::read_to_string(path).map_err(|e| format!("read({shown}): {e}"))?;
    let table: toml::Table = text.parse().map_err(|e| format!("{shown}: {e}"))?;
    let command = Whole::command();
    let mut words = Vec::new();
    for (key, value) in table {
        let mut known = command.get_arguments().filter(|_| key != "config");
        let Some(arg) = known.find(|arg| arg.get_long() == Some(&key)) else {
            return usage(format!("{shown}: no option is called {key:?}"));
        };
        let is_flag = matches!(arg.get_action(), ArgAction::SetTrue | ArgAction::Count);
        let kind = if is_flag { "true or false" } else { "a number or a string" };
        match value {
            toml::Value::Boolean(_) if !is_flag => {
                return usage(format!("{shown}: {key:?} is {kind}"));
            }
            toml::Value::Boolean(false) => {}
            toml::Value::Boolean(true) => words.push(format!("--{key}")),
            toml::Value::Integer(number) if key == "verbose" => {
                words.extend((0..number.clamp(0, 3)).map(|_| "--verbose".to_owned()));
            }
            toml::Value::Integer(number) => words.push(format!("--{key}={number}")),
            toml::Value::Float(number) => words.push(format!("--{key}={number}")),
            toml::Value::String(text) => words.push(format!("--{key}={text}")),
            toml::Value::Array(list) => {
                let items: Option<Vec<&str>> = list.iter().map(toml::Value::as_str).collect();
                let Some(items) = items else {
                    return usage(format!("{shown}: {key:?} is a list of strings"));
                };
                words.push(format!("--{key}={}", items.join(",")));
            }
            _ => return usage(format!("{shown}: {key:?} is {kind}")),
        }
    }
    if is_verbose {
        words.retain(|word| word != "--verbose");
    }
    Ok(words)
}

fn serve(args: &ServeArgs, out: &mut dyn Write) -> Outcome {
    let (mut settings, mut of_leases) = (settings(args)?, lease_settings(args));
    let metrics = args.metrics.as_deref().map(metrics::addresses).transpose();
    let metrics = metrics.or_else(usage)?;
    let user = user::chosen(args.user.as_deref(), args.leases)?;
    if args.check {
        return Ok(writeln!(out, "the options are right; nothing was started")?);
    }
    if args.udp_port != 0 {
        let port = args.udp_port;
        let _ = writeln!(io::stderr(), "glebe serve: UDP is not spoken: -U {port} is left");
    }
    if let Some(leases) = &mut of_leases {
        let brick = chosen_brick(args, leases)?;
        leases.grow = leases.grown(brick);
        (settings.brick, settings.more) = (Some(brick), leases.grow.get());
    }
    let metrics = metrics.as_deref().map(metrics::listen).transpose()?;
    let mut server = Server::prepare(settings).map_err(|e| e.to_string())?;
    let others = server.take_others();
    if !others.is_empty() && !args.leases {
        return usage("the service manager has a socket for leases, and --leases is missing");
    }
    // Writes the process id before the server listens, so that a client that can connect finds the
    // file.
    if let Some(path) = &args.pidfile {
        write_pid(path).map_err(|e| format!("write({}): {e}", path.display()))?;
    }
    let became = user.map_or(Ok(()), |user| user::become_user(&user, server.control()));
    let done = became.and_then(|()| server.listen().map_err(|e| e.to_string().into()));
    let done = done.and_then(|server| {
        let reserve = server.store().reserve();
        let daemon = of_leases.map(|of| Daemon::start_with(others, reserve, of));
        let daemon = daemon.transpose().map_err(|e| e.to_string())?;
        tell_and_run(server, daemon.as_ref(), metrics, args, out)
    });
    if let Some(path) = &args.pidfile {
        let _ = fs::remove_file(path);
    }
    done
}

/// Makes a new file: in a folder of another user, a link could name any file.
fn write_pid(path: &Path) -> io::Result<()> {
    // A device or a folder stays, and is an error.
    if fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file() || meta.is_symlink()) {
        fs::remove_file(path)?;
    }
    let mut file = fs::File::create_new(path)?;
    writeln!(file, "{}", std::process::id())
}

fn tell_and_run(
    server: Server,
    daemon: Option<&Daemon>,
    metrics: Option<TcpListener>,
    args: &ServeArgs,
    out: &mut dyn Write,
) -> Outcome {
    // Clients need the server also if nobody reads this.
    let _ = tell(&server, daemon, metrics.as_ref(), args, out);
    let scrapes = metrics.map(|listener| metrics::start(listener, &server, daemon));
    let _scrapes = scrapes.transpose()?;
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
    let is_ending = || drop(sd_notify::notify(false, &[sd_notify::NotifyState::Stopping]));
    server.run_until(is_ending).map_err(|e| e.to_string().into())
}

fn tell(
    server: &Server,
    daemon: Option<&Daemon>,
    metrics: Option<&TcpListener>,
    args: &ServeArgs,
    out: &mut dyn Write,
) -> io::Result<()> {
    let contig = server.store().reserve().contig();
    writeln!(
        out,
        "{} of memory from {}, in {}; items have at most {}",
        contig.len(),
        contig.source(),
        runs(contig.runs().len() as u64),
        Bytes::mib(args.memory_limit),
    )?;
    for address in server.addresses() {
        writeln!(out, "listening at {address}")?;
    }
    if let Some(daemon) = daemon {
        writeln!(out, "leases at {}", daemon.path().display())?;
    }
    if let Some(control) = server.control() {
        writeln!(out, "control socket {}", control.display())?;
    }
    if let Some(listener) = metrics {
        writeln!(out, "metrics at http://{}/metrics", listener.local_addr()?)?;
    }
    out.flush()
}

fn lease_settings(args: &ServeArgs) -> Option<Leases> {
    let quota = Quota {
        user: args.lease_limit.unwrap_or_default(),
        promised: args.lease_limit_promised.unwrap_or_default(),
        revocable: args.lease_limit_revocable.unwrap_or_default(),
        zeroing: args.lease_limit_zeroing.unwrap_or_default(),
        connections: args.lease_connections,
        leases: args.lease_count,
    };
    let notice = Duration::from_millis(args.lease_notice);
    let (grow, idle) = (args.lease_grow.unwrap_or_default(), Duration::from_secs(args.lease_idle));
    let (pulse, stored) = (pulse(), stored());
    let usual = Leases { zeroed: args.lease_zeroed, notice, quota, ..Leases::default() };
    let nodes = args.nodes();
    let usual = Leases { grow, idle, pulse, stored, nodes, ..usual };
    let path = args.lease_socket.clone().unwrap_or_else(|| usual.path.clone());
    args.leases.then_some(Leases { path, ..usual })
}

fn settings(args: &ServeArgs) -> Result<Settings, Box<dyn std::error::Error>> {
    if args.protocol == "binary" {
        return usage("the binary protocol is not spoken; memcached gives it up, too");
    }
    if !matches!(&*args.protocol, "ascii" | "auto") {
        return usage(format!("-B {}: the protocols are ascii and auto", args.protocol));
    }
    for (option, value, most) in [
        ("-t", args.threads as u64, THREADS_MAX),
        ("-c", args.conn_limit as u64, CONNS_MAX),
        ("-m", args.memory_limit, MIB_MAX),
    ] {
        if !(1..=most).contains(&value) {
            return usage(format!("{option} {value}: at least 1 and at most {most}"));
        }
    }
    let memory = args.memory_limit << 20;
    if let Some(other) = args.delimiter.filter(|end| !end.is_ascii()) {
        return usage(format!("-D {other}: a character of ASCII"));
    }
    let (of_tls, others): (Vec<&str>, Vec<&str>) =
        args.extended.iter().map(|option| &**option).partition(|option| option.starts_with("ssl_"));
    let extended = extended::parse(&others)?;
    let is_plain = |one: &&str| one.starts_with("notls:");
    let without_tls = addresses(args.listen.split(',').filter(is_plain), args.port)?;
    let with_tls = addresses(args.listen.split(',').filter(|one| !is_plain(one)), args.port)?;
    if let Some(both) = without_tls.iter().find(|one| with_tls.contains(one)) {
        return usage(format!("-l: {both} is named with notls: and without"));
    }
    let mode = u32::from_str_radix(&args.unix_mask, 8).ok().filter(|mode| *mode <= 0o777);
    let Some(mode) = mode else {
        return usage(format!("-a {}: a mode in octal, at most 777", args.unix_mask));
    };
    Ok(Settings {
        memory,
        brick: None,
        more: 0,
        nodes: args.nodes(),
        item_max: item_max(&args.max_item_size, memory)?,
        threads: args.threads,
        conns: args.conn_limit,
        refuse_fast: extended.refuse_fast,
        backlog: args.listen_backlog,
        listen: if args.unix_socket.is_some() {
            Vec::new()
        } else {
            addresses(args.listen.split(','), args.port)?
        },
        unix: args.unix_socket.clone().map(|path| (path, mode)),
        turn: args.max_reqs_per_event,
        idle: extended.idle,
        evict: !args.disable_evictions,
        shutdown: args.enable_shutdown,
        flush: !args.disable_flush_all,
        dump: !args.disable_dumping,
        delimiter: args.delimiter.and_then(|end| u8::try_from(end).ok()),
        verbose: args.verbose,
        access: Access {
            refuse_watch: args.disable_watch,
            ..args.access.settings(&of_tls, without_tls)?
        },
        debug_time: std::env::var_os(DEBUG_TIME).is_some(),
        serve_stats: !args.no_stats,
        control: args.control.clone(),
    })
}

fn nodes(text: &str) -> Result<Nodes, &'static str> {
    let number = |part: &str| part.trim().parse().map(Node);
    let all: Result<Vec<Node>, _> = text.split(',').map(number).collect();
    all.map(Nodes).map_err(|_| "numbers of nodes with commas, for example 0,1")
}

fn mib(text: &str) -> Result<u64, &'static str> {
    text.parse().map_err(|_| "a number of MiB, for example 64")
}

fn item_max(given: &str, memory: u64) -> Result<u64, Box<dyn std::error::Error>> {
    let bytes = size::parse(&given.to_uppercase());
    let bytes = bytes.or_else(|e| usage(format!("-I {given}: {e}")))?.get();
    // Half of a small cache may be less than the default size, which must not be an error.
    let most = if given == ITEM_DEFAULT { ITEM_MAX } else { ITEM_MAX.min(memory / 2) };
    if !(ITEM_MIN..=most).contains(&bytes) {
        let most = Bytes::new(most);
        return usage(format!(
            "-I {given}: at least {ITEM_MIN} bytes, at most {most} (half of -m, and 1 GiB)"
        ));
    }
    Ok(bytes)
}

pub fn runs(number: u64) -> String {
    format!("{number} run{}", if number == 1 { "" } else { "s" })
}

fn addresses<'a>(
    words: impl Iterator<Item = &'a str>,
    port: u16,
) -> Result<Vec<SocketAddr>, Box<dyn std::error::Error>> {
    let mut addresses = Vec::new();
    for one in words.filter(|_| port > 0) {
        let one = one.strip_prefix("notls:").unwrap_or(one);
        let with_port = one.parse::<SocketAddr>().is_ok()
            || one
                .rsplit_once(':')
                .is_some_and(|(host, port)| !host.contains(':') && port.parse::<u16>().is_ok());
        let found: Vec<SocketAddr> = match with_port {
            true => one.to_socket_addrs(),
            false => (one.trim_matches(['[', ']']), port).to_socket_addrs(),
        }
        .map_err(|e| format!("-l {one}: {e}"))?
        .collect();
        addresses.extend(found);
    }
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}
