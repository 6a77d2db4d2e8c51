//! [`Stats`]: what the heap has done and has, as one table.
//!
//! The table makes the structure, its text, its JSON and its OpenMetrics text, and describes each
//! number. All are written without allocation, to whatever takes text: a report is made in a signal
//! handler and where memory is short. Units: bytes, or calls. Source: OpenMetrics 1.0.0.

use core::fmt::{self, Write};

use crate::heap;

/// Forms of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// A number a line, for people.
    #[default]
    Text,
    /// One object of JSON, on one line.
    Json,
    /// OpenMetrics text, as Prometheus reads it.
    OpenMetrics,
}

/// What kind of number a row has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It is so much now.
    Gauge,
    /// It only grows.
    Counter,
}

/// One number of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Ends with its unit, if it has one.
    pub name: &'static str,
    /// What kind of number.
    pub kind: Kind,
    /// The number.
    pub value: u64,
    /// What it counts.
    pub what: &'static str,
}

macro_rules! statistics {
    ($($kind:ident $name:ident $what:literal;)*) => {
        /// The statistics at one moment. While other threads run, numbers may be of moments a
        /// little apart.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $(#[doc = $what] pub $name: u64,)*
        }

        /// How many numbers there are.
        pub const ROWS: usize = [$(stringify!($name)),*].len();

        impl Stats {
            /// Each number, in the table's order.
            #[must_use]
            pub fn rows(&self) -> [Row; ROWS] {
                [$(Row {
                    name: stringify!($name), kind: Kind::$kind, value: self.$name, what: $what,
                },)*]
            }
        }
    };
}

statistics! {
    Gauge live_bytes "in slices that hold objects";
    Gauge free_bytes "free and not yet marked: the kernel cannot take it";
    Gauge volatile_bytes "free and marked: the kernel may take it, and may have taken part";
    Gauge volatile_resident_bytes "of the marked, what the kernel has not taken";
    Gauge rss_bytes "what the process has in memory";
    Gauge rss_less_reclaimable_bytes "that, less what the kernel may take at any moment";
    Counter purged_bytes "marked memory that the kernel took, as far as it is known";
    Counter given_back_bytes "free memory given back at once, because memory was short";
    Counter reused_warm_bytes "free memory used again that was still there";
    Counter reused_cold_bytes "memory used for the first time, or after it was gone";
    Counter looks "how often it was looked how short memory is";
    Counter marks "calls that marked memory";
    Counter refused "calls that the kernel refused";
}

impl Stats {
    /// The statistics now. Costs a call for each stretch of marked memory.
    #[must_use]
    pub fn now() -> Self {
        heap::stats()
    }

    /// Writes them.
    ///
    /// # Errors
    /// As `to` has them.
    pub fn write(&self, format: Format, to: &mut dyn Write) -> fmt::Result {
        match format {
            Format::Text => self.text(to),
            Format::Json => self.json(to),
            Format::OpenMetrics => self.openmetrics(to),
        }
    }

    fn text(&self, to: &mut dyn Write) -> fmt::Result {
        for Row { name, value, what, .. } in self.rows() {
            writeln!(to, "{name:<27} {value:>15}  {what}")?;
        }
        Ok(())
    }

    fn json(&self, to: &mut dyn Write) -> fmt::Result {
        let mut before = '{';
        for Row { name, value, .. } in self.rows() {
            write!(to, "{before}\"{name}\":{value}")?;
            before = ',';
        }
        to.write_str("}\n")
    }

    fn openmetrics(&self, to: &mut dyn Write) -> fmt::Result {
        for Row { name, kind, value, what } in self.rows() {
            let (kind, end) = match kind {
                Kind::Gauge => ("gauge", ""),
                Kind::Counter => ("counter", "_total"),
            };
            writeln!(to, "# TYPE glebe_malloc_{name} {kind}")?;
            if name.ends_with("_bytes") {
                writeln!(to, "# UNIT glebe_malloc_{name} bytes")?;
            }
            writeln!(to, "# HELP glebe_malloc_{name} {what}")?;
            writeln!(to, "glebe_malloc_{name}{end} {value}")?;
        }
        to.write_str("# EOF\n")
    }
}
