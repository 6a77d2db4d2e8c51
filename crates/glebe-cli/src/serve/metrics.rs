//! `glebe serve --metrics` tells Prometheus about the cache (`glebe_serve_`), its reserve
//! (`glebe_reserve_`), leases (`glebe_lease_`), the machine's memory (`glebe_machine_`) and the
//! process (`process_`).
//!
//! Each text reads the same counters as `stats`, and holds no lock longer.

use std::fs;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use glebe::internal::stats::seconds;
use glebe::page_size;
use glebe_lease::Client;
use glebe_serve::scrape::Scrapes;
use glebe_serve::server::Server;
use glebed::Daemon;

use super::machine::Machine;
use super::openmetrics::Text;

/// Longest wait for the daemon of leases.
const PATIENCE: Duration = Duration::from_secs(1);
/// Length of a tick of `/proc/self/stat`.
const TICK: Duration = Duration::from_millis(10);

/// Returns the addresses that `--metrics` names.
pub fn addresses(given: &str) -> Result<Vec<SocketAddr>, String> {
    let form = "ADDRESS:PORT is needed, for example 127.0.0.1:9464";
    let found = given.to_socket_addrs().map_err(|e| format!("--metrics {given}: {e}; {form}"))?;
    Ok(found.collect())
}

/// Listens at the first of these addresses that can be had.
pub fn listen(addresses: &[SocketAddr]) -> Result<TcpListener, String> {
    let shown: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let refused = |e| format!("--metrics: cannot listen at {}: {e}", shown.join(", "));
    TcpListener::bind(addresses).map_err(refused)
}

/// Serves metrics until the drop.
pub fn start(
    listener: TcpListener,
    server: &Server,
    daemon: Option<&Daemon>,
) -> std::io::Result<Scrapes> {
    let cache = server.metrics();
    let reserve = server.store().reserve().clone();
    let leases = daemon.map(|daemon| daemon.path().to_owned());
    let machine = Machine::watch()?;
    let began = SystemTime::now();
    Scrapes::start(listener, move || {
        let mut text = Text::default();
        about_process(&mut text, began);
        machine.write(&mut text);
        let of_leases = leases.as_deref().and_then(of_leases).unwrap_or_default();
        let all = [text.text, cache(), body(reserve.stats().to_openmetrics()), body(of_leases)];
        all.concat() + "# EOF\n"
    })
}

/// Returns the text without its end mark.
fn body(text: String) -> String {
    text.strip_suffix("# EOF\n").map(str::to_owned).unwrap_or(text)
}

/// Asks the daemon as `glebe stats` does. Without an answer, the families of leases are missing.
fn of_leases(path: &Path) -> Option<String> {
    Client::connect_within(path, "glebe serve --metrics", PATIENCE).ok()?.stats().ok()
}

fn about_process(text: &mut Text, began: SystemTime) {
    text.family("glebe_build_info", "gauge", "", "1, with the version of glebe as a label");
    text.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    let began = began.duration_since(UNIX_EPOCH).unwrap_or_default();
    let start = "start of the process, in seconds since 1970";
    text.family("process_start_time_seconds", "gauge", "seconds", start);
    text.sample(&[], seconds(began.as_nanos() as u64));
    // Fields 14 and 15 of the file are ticks of user and system time; `fields` begins with field 3.
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split_ascii_whitespace();
    let numbers: Vec<u64> = fields.map(|field| field.parse().unwrap_or(0)).collect();
    if let Some([user, system]) = numbers.get(11..13) {
        let spent = TICK * u32::try_from(user + system).unwrap_or(u32::MAX);
        text.family("process_cpu_seconds", "counter", "seconds", "CPU time of the process");
        text.sample(&[], seconds(spent.as_nanos() as u64));
    }
    if let Some(resident) = numbers.get(21) {
        let what = "resident memory of the process, without huge pages of pools";
        text.family("process_resident_memory_bytes", "gauge", "bytes", what);
        text.sample(&[], resident * page_size().bytes().get());
    }
}
