//! [`Shown`] is what `glebe lend status` prints. A thread answers at a Unix socket of the lender's
//! user, as JSON or OpenMetrics text.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use glebe_os::internal::stats::{openmetrics, statistics, Histogram, Row, Set, Unit, Value};
use glebe_os::internal::sync::{lock, Mutex};
use glebe_os::internal::sys::files::socket::{send_all, Bound, Listener};
use glebe_os::internal::sys::processes::thread;
use glebe_os::page_size;
use serde_json::json;

use crate::settings::LendError;

statistics! {
    labels {}
    counters {
        Mounted mounted Count "segments mounted";
        Recalled recalled Count "segments that the daemon recalled";
        Early early Count "segments recalled sooner than they paid";
        Unmounted unmounted Count "segments unmounted";
        Killed killed Count "agents killed, for example because an unmount took too long";
        Died died Count "agents that ended by themselves";
        Started started Count "agents whose store was set up";
        NotSetUp not_set_up Count "agents whose store was not set up";
        Refused refused Count "mounts that the store refused";
        NoMemory no_memory Count "leases that the daemon refused";
        MasterLost master_lost Count "times when the master stopped answering";
        DaemonLost daemon_lost Count "times when the connection to the daemon ended";
    }
    gauges {}
    bytes {
        wanted_bytes "memory to lend at most";
        lent_bytes "memory mounted now";
        resting_bytes "memory that rests after a recall or an agent's end";
    }
    durations {
        recall_ns "recall" "recall" "recalls of segments, from the request to the release";
        unmount_ns "unmount" "unmount" "unmounts";
        mount_ns "mount" "mount" "mounts";
        kill_ns "kill" "kill" "ends of killed agents, from the kill on";
    }
}

const PREFIX: &str = "glebe_lend_";
const PATIENCE: Duration = Duration::from_secs(2);
const ANSWER_MAX: u64 = 1 << 20;

/// State at one moment, beside the counters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Now {
    pub(crate) wanted: u64,
    pub(crate) lent: u64,
    pub(crate) resting: u64,
    pub(crate) segment: u64,
    pub(crate) master: String,
    pub(crate) is_master_up: bool,
    pub(crate) daemon: String,
    pub(crate) is_daemon_up: bool,
    pub(crate) agent: u32,
    pub(crate) last_unmount: Duration,
    /// The state of each segment, in words.
    pub(crate) segments: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) counts: Counts,
    pub(crate) recall: Histogram,
    pub(crate) unmount: Histogram,
    pub(crate) mount: Histogram,
    pub(crate) kill: Histogram,
    pub(crate) now: Mutex<Now>,
}

impl Shown {
    pub(crate) fn new() -> Self {
        let [recall, unmount, mount, kill] = [(); 4].map(|()| Histogram::new());
        Self { counts: Counts::new(), recall, unmount, mount, kill, now: Mutex::default() }
    }

    fn stats(&self, now: &Now) -> Stats {
        let mut stats = self.counts.sum();
        [stats.wanted_bytes, stats.lent_bytes, stats.resting_bytes] =
            [now.wanted, now.lent, now.resting].map(glebe_os::units::Bytes::new);
        stats.recall_ns = self.recall.snapshot();
        stats.unmount_ns = self.unmount.snapshot();
        stats.mount_ns = self.mount.snapshot();
        stats.kill_ns = self.kill.snapshot();
        stats
    }

    fn json(&self) -> String {
        let now = lock(&self.now).clone();
        let stats = self.stats(&now);
        let lines = stats.lines().into_iter();
        let numbers: serde_json::Map<_, _> =
            lines.map(|line| (line.name, json!(line.value))).collect();
        let Now { segment, master, is_master_up, daemon, is_daemon_up, agent, .. } = now;
        let last_unmount_ns = now.last_unmount.as_nanos() as u64;
        json!({
            "pid": std::process::id(), "agent": agent, "segment_bytes": segment,
            "master": master, "master_up": is_master_up,
            "daemon": daemon, "daemon_up": is_daemon_up,
            "last_unmount_ns": last_unmount_ns, "segments": now.segments, "statistics": numbers,
        })
        .to_string()
    }

    fn openmetrics(&self) -> String {
        let now = lock(&self.now).clone();
        let stats = self.stats(&now);
        let mut rows = stats.rows();
        let gauge = |name, is: bool, what| Row {
            name,
            value: Value::Gauge(Unit::Count, u64::from(is)),
            what,
        };
        rows.push(gauge("master_up", now.is_master_up, "1 if Mooncake's master answers"));
        rows.push(gauge("daemon_up", now.is_daemon_up, "1 if the daemon answers"));
        openmetrics(PREFIX, page_size().bytes(), &[Set { labels: Vec::new(), rows }])
    }
}

/// Serves the status until the [`Bound`] is dropped.
pub(crate) fn serve(path: &Path, shown: &Arc<Shown>) -> Result<Bound, LendError> {
    let bound = Listener::bind(path)?;
    let (listener, bound) = bound.ok_or_else(|| LendError::InUse(path.to_owned()))?;
    let shown = Arc::clone(shown);
    thread::start("glebe-lend-show", move || loop {
        match listener.accept() {
            // A client may leave at any time.
            Ok(Some(stream)) => drop(answer(&stream, &shown)),
            Ok(None) => return,
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    })?;
    Ok(bound)
}

fn answer(mut stream: &UnixStream, shown: &Shown) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = [0; 32];
    let len = stream.read(&mut request)?;
    let text = match &request[..len] {
        b"openmetrics\n" => shown.openmetrics(),
        _ => shown.json(),
    };
    send_all(stream, text.as_bytes())
}

/// Returns the status of the lender at `path`, as JSON or OpenMetrics text.
///
/// # Errors
/// If no lender answers there in time.
pub fn ask(path: &Path, is_openmetrics: bool) -> io::Result<String> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    send_all(&stream, if is_openmetrics { b"openmetrics\n" } else { b"json\n" })?;
    let mut text = String::new();
    (&stream).take(ANSWER_MAX).read_to_string(&mut text)?;
    // Another process wrote this text for a terminal.
    if text.contains(|c: char| c.is_control() && c != '\n') {
        let what = "the answer has control characters";
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(text)
}
