//! Statistics of the daemon that lends memory, beside those of reserves.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use glebe::lease::{socket_path, Client, LeaseError};
use serde_json::{json, Map, Value};

/// Longest wait for a daemon that does not answer.
const PATIENCE: Duration = Duration::from_secs(1);
const PREFIX: &str = "glebe_lease_";

/// Returns the name, unit and meaning of each statistic as [`Lent::write_text`] names it.
#[cfg(feature = "serve")]
pub fn describe() -> String {
    let text = glebed::Stats::default().to_openmetrics();
    let lent = Lent { path: PathBuf::new(), text };
    let of_family = |word: &str, family: &str| {
        let start = format!("# {word} {PREFIX}{family} ");
        lent.text.lines().find_map(|line| line.strip_prefix(&start).map(str::to_owned))
    };
    let line = |(name, _): (&str, &str)| {
        let ends = ["", "_total", "_count", "_sum"];
        let families = || ends.iter().filter_map(|end| name.strip_suffix(end));
        let [unit, what] =
            ["UNIT", "HELP"].map(|word| families().find_map(|family| of_family(word, family)));
        let unit = unit.filter(|_| !name.ends_with("_count"));
        let unit = unit.unwrap_or_else(|| "count".to_owned());
        format!("{name:<24} {unit:<7} {}\n", what.unwrap_or_default())
    };
    lent.samples().map(line).collect()
}

/// What the daemon answered.
pub struct Lent {
    path: PathBuf,
    text: String,
}

impl Lent {
    /// Asks the usual daemon.
    pub fn read() -> Result<Self, LeaseError> {
        let path = socket_path();
        let client = Client::connect_within(&path, "glebe stats", PATIENCE)?;
        Ok(Self { text: client.stats()?, path })
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
