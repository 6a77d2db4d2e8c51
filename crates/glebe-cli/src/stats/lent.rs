//! Statistics of the daemon that lends memory, beside those of reserves.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use glebe::lease::{socket_path, Client};
use serde_json::{json, Map, Value};

/// Longest wait for a daemon that does not answer.
const PATIENCE: Duration = Duration::from_secs(1);
const PREFIX: &str = "glebe_lease_";

/// What the daemon answered.
pub struct Lent {
    path: PathBuf,
    text: String,
}

impl Lent {
    /// Asks the usual daemon. `None` if there is none for this user.
    pub fn read() -> Option<Self> {
        let path = socket_path();
        let client = Client::connect_within(&path, "glebe stats", PATIENCE).ok()?;
        Some(Self { text: client.stats().ok()?, path })
    }

    /// Returns names and values, without those of each part of a distribution.
    fn samples(&self) -> impl Iterator<Item = (&str, &str)> {
        let of_daemon = self.text.lines().filter_map(|line| line.strip_prefix(PREFIX));
        of_daemon.filter_map(|line| line.split_once(' ')).filter(|(name, _)| !name.contains('{'))
    }

    pub fn write_text(&self, all: bool, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "leases at {}", self.path.display())?;
        for (name, value) in self.samples().filter(|(_, value)| all || *value != "0") {
            writeln!(out, "{name:<24} {value:>14}")?;
        }
        Ok(())
    }

    pub fn json(&self) -> Value {
        let number = |text: &str| text.parse::<u64>().map(Value::from).unwrap_or(Value::Null);
        let float = |text: &str| text.parse::<f64>().map_or(Value::Null, Value::from);
        let of =
            |text| Some(number(text)).filter(|it| !it.is_null()).unwrap_or_else(|| float(text));
        let all: Map<String, Value> =
            self.samples().map(|(name, value)| (name.to_owned(), of(value))).collect();
        json!({ "leases": self.path.display().to_string(), "statistics": all })
    }

    /// Returns OpenMetrics text without its end.
    pub fn openmetrics(&self) -> &str {
        self.text.strip_suffix("# EOF\n").unwrap_or(&self.text)
    }
}
