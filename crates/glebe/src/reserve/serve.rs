//! [`start`] runs the thread and the socket that serve a reserve's statistics.
//!
//! The socket's directory admits only its owner and root. The reserve's end drops the [`Bound`],
//! which removes the socket and ends the thread. Protocol: [`super::served`].

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::by_node::{node_lines, with_node_family, with_node_members, NodeBytes};
use super::served::{Form, HEAD, REQUEST_MAX};
use super::shared::Weak;
use super::stats::PREFIX;
use super::{ReserveCore, ReserveError};
use glebe_os::error::OsError;
use glebe_os::internal::sync::{MappedWord, Ordering};
use glebe_os::internal::sys::files::private::own_dir;
use glebe_os::internal::sys::files::socket::{send_all, Bound, Listener};
use glebe_os::internal::sys::processes::thread::start as start_thread;

/// Longest wait for a client, per read or write.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pause after a failed accept, for example without free descriptors.
const REST: Duration = Duration::from_millis(100);

pub(super) fn start(weak: Weak<ReserveCore>, dir: &Path) -> Result<Bound, ReserveError> {
    own_dir(dir)?;
    let (listener, bound, number) = bind(dir)?;
    start_thread("glebe-stats", move || serve(&listener, &weak, number)).map_err(|e| {
        ReserveError::Os(OsError::new("clone", "a thread that serves statistics", e))
    })?;
    Ok(bound)
}

/// Binds the next free name, because a process of this PID in another namespace may use some names.
fn bind(dir: &Path) -> Result<(Listener, Bound, u64), ReserveError> {
    static NEXT: MappedWord = MappedWord::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = dir.join(format!("{}.{number}.sock", std::process::id()));
        if let Some((listener, bound)) = Listener::bind(&path).map_err(ReserveError::Os)? {
            return Ok((listener, bound, number));
        }
    }
}

fn serve(listener: &Listener, weak: &Weak<ReserveCore>, number: u64) {
    let nodes = NodeBytes::new();
    loop {
        match listener.accept() {
            // Ignores a failed answer, because a client may leave at any time.
            Ok(Some(stream)) => drop(answer(&stream, weak, &nodes, number)),
            Ok(None) => return,
            Err(_) => thread::sleep(REST),
        }
        if weak.upgrade().is_none() {
            return;
        }
    }
}

fn answer(
    mut stream: &UnixStream,
    weak: &Weak<ReserveCore>,
    nodes: &NodeBytes,
    number: u64,
) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = [0; REQUEST_MAX];
    let len = stream.read(&mut request)?;
    // Copies the statistics first, so that a slow client keeps no reserve alive.
    let seen = weak.upgrade().and_then(|inner| {
        let core = inner.get().ok()?;
        Some((core.stats(), nodes.of_core(core)))
    });
    let Some((stats, nodes)) = seen else { return Ok(()) };
    let form = Form::ALL.into_iter().find(|form| form.request().as_bytes() == &request[..len]);
    let labels = || vec![("pid", std::process::id().to_string()), ("reserve", number.to_string())];
    let (outcome, body) = match form {
        Some(Form::Text) => ("ok", stats.to_string() + &node_lines(&nodes)),
        Some(Form::Json) => ("ok", with_node_members(stats.to_json(), &nodes)),
        Some(Form::OpenMetrics) => {
            let text = stats.openmetrics_with(labels());
            ("ok", with_node_family(text, PREFIX, &labels(), &nodes))
        }
        None => ("error", "the form asked for is not known here".to_owned()),
    };
    send_all(stream, format!("{HEAD} {outcome} {}\n{body}", body.len()).as_bytes())
}
