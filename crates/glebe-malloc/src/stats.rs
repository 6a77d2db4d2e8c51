//! One table defines [`Stats`], its three forms of text, and each number's description.
//!
//! Writing a text allocates nothing, because signal handlers write too, and memory may be short.
//! Units: bytes or calls. Source: OpenMetrics 1.0.0.

use core::fmt::{self, Write};

use glebe::internal::sys::files::plain_file::{self, Plain};
use glebe::page_size;

use crate::heap;
use crate::sync::{AtomicU64, Ordering};

/// Forms of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// A sentence, then a line per number; bytes as MiB.
    #[default]
    Text,
    /// A JSON object on one line.
    Json,
    /// OpenMetrics text.
    OpenMetrics,
}

/// Kinds of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Current value.
    Gauge,
    /// Growing total.
    Counter,
}

/// A number of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Name; ends with the unit, if any.
    pub name: &'static str,
    /// Kind.
    pub kind: Kind,
    /// Number.
    pub value: u64,
    /// Description.
    pub what: &'static str,
}

macro_rules! statistics {
    ($($kind:ident $name:ident $what:literal;)*) => {
        /// The statistics at one moment, or slightly apart while other threads run.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $(#[doc = $what] pub $name: u64,)*
        }

        /// Count of the numbers.
        pub const ROWS: usize = [$(stringify!($name)),*].len();

        impl Stats {
            /// Returns the numbers in table order.
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
    Gauge live_bytes "slices that hold objects";
    Gauge free_bytes "free and not marked: the kernel cannot take it";
    Gauge volatile_bytes "free and marked: the kernel may take it, and may have taken part";
    Gauge volatile_resident_bytes "marked memory that is still in memory";
    Gauge rss_bytes "resident memory of the process";
    Gauge rss_less_reclaimable_bytes "rss without the memory that the kernel may take now";
    Counter marked_bytes "free memory that was marked";
    Counter purged_bytes "marked memory that the kernel was found to have taken";
    Counter given_back_bytes "free memory given back at once: memory was short, or a trim";
    Counter reused_warm_bytes "memory used again that the kernel had not taken, if known";
    Counter reused_cold_bytes "memory used for the first time, or after the kernel took it";
    Counter looks "looks at how short memory is";
    Counter calls "system calls that marked or gave back";
    Counter refused "calls that the kernel refused";
    Gauge address_bytes "addresses of the heap; 0 if only mimalloc runs: then only rss is known";
    Gauge table_bytes "slices of mimalloc's own tables, mostly never touched";
    Gauge huge_pages "1 if the unit of marking is a huge page; known once there is a keeper";
    Gauge keeper "1 while there is a thread that marks and gives back";
    Gauge own_files "1 if that thread has its own table of open files";
    Gauge gauge "1 if that thread can see how short memory is";
    Gauge group "1 if the tightest limit was a memory cgroup's";
    Gauge audit "1 if the kernel says which marked memory it took; 0 if not";
    Counter deepbind_opens "calls of dlopen that lost RTLD_DEEPBIND";
}

static DEEPBIND: AtomicU64 = AtomicU64::new(0);

/// Counts a dlopen that lost `RTLD_DEEPBIND`.
pub fn count_deepbind() {
    DEEPBIND.fetch_add(1, Ordering::Relaxed);
}

impl Stats {
    /// Returns the current statistics. Cost: a few system calls per 2 MiB with marked memory.
    /// Signal handlers may call it.
    #[must_use]
    pub fn now() -> Self {
        let (counts, has) = (heap::counts(), heap::mechanisms());
        let (resident, rss) = (heap::audit(), rss_bytes());
        Self {
            live_bytes: counts.live.saturating_sub(counts.tables),
            free_bytes: counts.hot,
            volatile_bytes: counts.volatile,
            volatile_resident_bytes: resident.unwrap_or(0),
            rss_bytes: rss,
            rss_less_reclaimable_bytes: rss.saturating_sub(resident.unwrap_or(0)),
            marked_bytes: counts.marked,
            purged_bytes: counts.purged,
            given_back_bytes: counts.given_back,
            reused_warm_bytes: counts.reused_warm,
            reused_cold_bytes: counts.reused_cold,
            looks: counts.looks,
            calls: counts.calls,
            refused: counts.refused,
            address_bytes: has.addresses,
            table_bytes: counts.tables,
            huge_pages: has.huge_pages.into(),
            keeper: has.thread.into(),
            own_files: has.own_files.into(),
            gauge: has.gauge.into(),
            group: has.group.into(),
            audit: resident.is_some().into(),
            deepbind_opens: DEEPBIND.load(Ordering::Relaxed),
        }
    }

    /// Writes the statistics.
    ///
    /// # Errors
    /// If `to` fails.
    pub fn write(&self, format: Format, to: &mut dyn Write) -> fmt::Result {
        match format {
            Format::Text => self.text(to),
            Format::Json => self.json(to),
            Format::OpenMetrics => self.openmetrics(to),
        }
    }

    fn text(&self, to: &mut dyn Write) -> fmt::Result {
        write!(to, "In memory: {}. ", Mib(self.rss_bytes))?;
        let (now, before) = (Mib(self.volatile_resident_bytes), Mib(self.purged_bytes));
        match self.audit {
            0 => writeln!(to, "How much of it the kernel may take is unknown here.")?,
            _ => writeln!(to, "The kernel may take {now} of it now, and took {before} before.")?,
        }
        for Row { name, value, what, .. } in self.rows() {
            match name.strip_suffix("_bytes") {
                Some(name) => writeln!(to, "{name:<21} {:>6}  {what}", Mib(value))?,
                None => writeln!(to, "{name:<21} {value:>8}      {what}")?,
            }
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

/// Bytes as MiB with one decimal, rounded down. Formatting a float would need a larger stack.
struct Mib(u64);

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let tenths = ((self.0 & 0xf_ffff) * 10) >> 20;
        let width = f.width().unwrap_or(0);
        write!(f, "{:>width$}.{tenths} MiB", self.0 >> 20)
    }
}

/// Returns the resident bytes of the process; 0 if unknown. Source: proc_pid_statm(5).
fn rss_bytes() -> u64 {
    let mut text = [0; 128];
    let file = Plain::open(c"/proc/self/statm");
    let len = file.map_or(0, |file| plain_file::read(&file, &mut text));
    let mut words = text[..len].split(u8::is_ascii_whitespace);
    let pages = words.nth(1).and_then(|word| core::str::from_utf8(word).ok()?.parse().ok());
    pages.unwrap_or(0_u64) * page_size().bytes().get()
}

#[cfg(test)]
mod tests;
