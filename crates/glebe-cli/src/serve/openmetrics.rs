//! [`Text`] is OpenMetrics text that grows by families and their samples.

use std::fmt::{Display, Write};

/// OpenMetrics text without an end mark.
#[derive(Default)]
pub struct Text {
    pub text: String,
    /// Name of the samples of the last family.
    name: String,
}

impl Text {
    /// Begins a family. The samples of a counter get its ending.
    pub fn family(&mut self, name: &str, kind: &str, unit: &str, what: &str) {
        let _ = writeln!(self.text, "# TYPE {name} {kind}");
        if !unit.is_empty() {
            let _ = writeln!(self.text, "# UNIT {name} {unit}");
        }
        let _ = writeln!(self.text, "# HELP {name} {what}");
        self.name = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
    }

    /// Adds a sample. The values of labels need no escape.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> = labels.iter().map(|(n, v)| format!("{n}=\"{v}\"")).collect();
        let labels = labels.join(",");
        let braced = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
        let _ = writeln!(self.text, "{}{braced} {value}", self.name);
    }
}
