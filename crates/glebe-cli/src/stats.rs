//! `glebe stats` prints the statistics of reserves in running processes, and of leases, as text,
//! JSON or OpenMetrics.
//!
//! Sockets that the caller may not read are reported only if no process answers. The processes
//! format the numbers; this command merges their texts.

mod lent;

use std::collections::HashMap;
use std::fs;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use glebe::internal::describe_nodes;
use glebe::lease::LeaseError;
use glebe::page_size;
use glebe::reserve::served::{self, Form, Served};
use glebe::reserve::Stats;
use glebe::units::Pages;
use serde_json::{json, Map, Value};

use crate::Outcome;
use lent::Lent;

/// Options of `glebe stats`.
#[derive(clap::Args)]
pub struct StatsArgs {
    /// Show only this process
    #[arg(long, conflicts_with = "describe")]
    pid: Option<u32>,
    /// Look only in this directory
    #[arg(long, conflicts_with = "describe")]
    dir: Option<PathBuf>,
    /// Also print statistics that are zero
    #[arg(long, conflicts_with = "form")]
    all: bool,
    /// Print JSON
    #[arg(long, group = "form")]
    json: bool,
    /// Print OpenMetrics text, as Prometheus reads it
    #[arg(long, group = "form")]
    openmetrics: bool,
    /// List every statistic: name, unit, meaning
    #[arg(long, group = "form")]
    describe: bool,
    /// Print again every SECONDS (default 2) until the output is closed or a signal arrives
    #[arg(long, value_name = "SECONDS", value_parser = every, num_args = 0..=1)]
    #[arg(default_missing_value = "2", conflicts_with_all = ["describe", "openmetrics"])]
    watch: Option<Duration>,
}

const CLEAR: &str = "\x1b[H\x1b[J";
/// A command asks at most this many sockets of a directory, and begins none after this time.
const SOCKETS_MAX: usize = 1000;
pub const PATIENCE: Duration = Duration::from_secs(10);

fn every(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
    Ok(Duration::from_secs_f64(seconds.ok_or("give from 0.1 to 86400 seconds")?))
}

pub fn run(args: &StatsArgs, out: &mut dyn Write) -> Outcome {
    let Some(every) = args.watch else { return once(args, out) };
    let terminal = io::stdout().is_terminal();
    for nth in 0_u64.. {
        match (terminal, args.json || nth == 0) {
            (true, _) => write!(out, "{CLEAR}")?,
            (false, true) => {}
            (false, false) => writeln!(out)?,
        }
        match once(args, out) {
            Err(error) if error.is::<io::Error>() => return Err(error),
            // Continues after an error, because processes may end and start during a watch.
            Err(error) if args.json => drop(writeln!(io::stderr(), "glebe: {error}")),
            Err(error) => writeln!(out, "{error}")?,
            Ok(()) => {}
        }
        out.flush()?;
        std::thread::sleep(every);
    }
    Ok(())
}

/// Prints the statistics once. Fails if no process answers, or if a read fails for another reason
/// than permission.
fn once(args: &StatsArgs, out: &mut dyn Write) -> Outcome {
    if args.describe {
        write!(out, "{}{}", Stats::describe(), describe_nodes())?;
        #[cfg(feature = "serve")]
        write!(out, "\nleases:\n{}", lent::describe())?;
        return Ok(());
    }
    let form = match (args.json, args.openmetrics) {
        (true, _) => Form::Json,
        (_, true) => Form::OpenMetrics,
        _ => Form::Text,
    };
    let mut found = Found::default();
    let dirs = args.dir.clone().map_or_else(served::dirs, |dir| vec![dir]);
    for dir in &dirs {
        found.look_in(dir, args.pid, form);
    }
    let is_whole = args.pid.is_none() && args.dir.is_none();
    let lent = if is_whole { found.lent() } else { None };
    if found.answers.is_empty() && lent.is_none() {
        return Err(found.nothing(args.pid, &dirs).into());
    }
    match form {
        Form::Json => write_json(&found.answers, lent.as_ref(), out)?,
        Form::OpenMetrics => write_openmetrics(&found.answers, lent.as_ref(), out)?,
        Form::Text => write_text(&found.answers, args.all, lent.as_ref(), out)?,
    }
    match found.wrong.is_empty() {
        true => Ok(()),
        false => Err(found.wrong.join("; ").into()),
    }
}

/// Calls `ask` for the sockets of `dir` in `list`. Returns a note if some are not asked.
pub fn ask_each(
    dir: &Path,
    list: &[Served],
    end: Instant,
    mut ask: impl FnMut(&Served),
) -> Option<String> {
    for (nth, served) in list.iter().enumerate() {
        if nth == SOCKETS_MAX || end <= Instant::now() {
            let (rest, all) = (list.len() - nth, list.len());
            return Some(format!("{}: {rest} of {all} sockets are not asked", dir.display()));
        }
        ask(served);
    }
    None
}

/// What a reserve answered, in the form that it was asked for.
struct Answer {
    served: Served,
    text: String,
    /// The statistics as JSON: the answer itself, or beside a text for its summary. Else null.
    json: Value,
    families: Vec<Family>,
}

impl Answer {
    /// Fails if another user's process answers with text of another form.
    fn new(served: &Served, form: Form, text: String) -> Result<Self, String> {
        let object =
            |text: &str| serde_json::from_str::<Map<String, Value>>(text).map(Value::Object);
        let (mut json, mut families) = (Value::Null, Vec::new());
        match form {
            Form::Json => json = object(&text).map_err(|e| format!("no JSON: {e}"))?,
            Form::OpenMetrics => {
                families = Family::all(&text).map_err(|e| format!("no OpenMetrics: {e}"))?;
            }
            // Stays null if the process has ended since the first read.
            Form::Text => {
                let more = served.read(Form::Json).ok().flatten();
                json = more.and_then(|more| object(&more).ok()).unwrap_or_default();
            }
        }
        Ok(Self { served: served.clone(), text, json, families })
    }
}

/// A family of metrics, with its lines of metadata and of samples.
struct Family {
    name: String,
    metadata: String,
    samples: String,
}

impl Family {
    /// Checks that each line belongs to a family, and that each value is a number.
    fn all(text: &str) -> Result<Vec<Self>, String> {
        let body = text.strip_suffix("# EOF\n").ok_or("no end of the text")?;
        let mut all: Vec<Self> = Vec::new();
        for line in body.lines() {
            if let Some((name, _)) = line.strip_prefix("# TYPE ").and_then(|it| it.split_once(' '))
            {
                let name = name.to_owned();
                all.push(Self { name, metadata: String::new(), samples: String::new() });
            }
            let wrong = || format!("line {line:?} of no family");
            let family = all.last_mut().ok_or_else(wrong)?;
            let part = family.part(line).ok_or_else(wrong)?;
            part.push_str(line);
            part.push('\n');
        }
        Ok(all)
    }

    /// Returns the part for the line; `None` if the line is not of this family.
    fn part(&mut self, line: &str) -> Option<&mut String> {
        if let Some(metadata) = line.strip_prefix("# ") {
            let (word, rest) = metadata.split_once(' ')?;
            let is_own = rest.split(' ').next() == Some(&self.name);
            return (matches!(word, "TYPE" | "UNIT" | "HELP") && is_own)
                .then_some(&mut self.metadata);
        }
        line.rsplit(' ').next()?.parse::<f64>().ok()?;
        line.starts_with(&self.name).then_some(&mut self.samples)
    }
}

#[derive(Default)]
struct Found {
    answers: Vec<Answer>,
    /// Sockets that the caller may not read.
    refused: Vec<String>,
    /// Sockets that should have answered.
    wrong: Vec<String>,
}

impl Found {
    fn look_in(&mut self, dir: &Path, pid: Option<u32>, form: Form) {
        let mut list = match served::list(dir) {
            Ok(list) => list,
            Err(e) => return self.failed(&e),
        };
        list.retain(|served| pid.is_none_or(|pid| pid == served.pid()));
        let end = Instant::now() + PATIENCE;
        let note = ask_each(dir, &list, end, |served| self.ask(served, form));
        self.wrong.extend(note);
    }

    fn ask(&mut self, served: &Served, form: Form) {
        let text = match served.read(form) {
            Ok(Some(text)) => text,
            Ok(None) => return,
            Err(e) => return self.failed(&e),
        };
        match Answer::new(served, form, text) {
            Ok(answer) => self.answers.push(answer),
            Err(why) => self.wrong.push(format!("{served}: {why}")),
        }
    }

    fn lent(&mut self) -> Option<Lent> {
        let error = match Lent::read() {
            Ok(lent) => return Some(lent),
            Err(error) => error,
        };
        match &error {
            LeaseError::NoDaemon { source, .. } => {
                if source.kind() == ErrorKind::PermissionDenied {
                    self.refused.push(error.to_string());
                }
            }
            _ => self.wrong.push(error.to_string()),
        }
        None
    }

    fn failed(&mut self, error: &glebe::error::OsError) {
        match error.kind() {
            ErrorKind::PermissionDenied => self.refused.push(error.to_string()),
            _ => self.wrong.push(error.to_string()),
        }
    }

    fn nothing(&self, pid: Option<u32>, dirs: &[PathBuf]) -> String {
        let whose =
            pid.map_or("no process".to_owned(), |pid| format!("process {pid}: it does not"));
        let verb = if pid.is_some() { "serve" } else { "serves" };
        let dirs: Vec<_> = dirs.iter().map(|dir| dir.display().to_string()).collect();
        let why: Vec<_> = self.wrong.iter().chain(&self.refused).cloned().collect();
        let why = if why.is_empty() { String::new() } else { format!(" ({})", why.join("; ")) };
        format!(
            "{whose} {verb} statistics of a reserve that can be read; looked in {}{why}",
            dirs.join(", ")
        )
    }
}

fn command(served: &Served) -> String {
    let name = fs::read_to_string(format!("/proc/{}/comm", served.pid())).unwrap_or_default();
    name.trim_end().replace(|c: char| c.is_control(), "?")
}

fn write_text(
    answers: &[Answer],
    all: bool,
    lent: Option<&Lent>,
    out: &mut dyn Write,
) -> io::Result<()> {
    for (i, Answer { served, text, json, .. }) in answers.iter().enumerate() {
        let gap = if i == 0 { "" } else { "\n" };
        writeln!(out, "{gap}{served}: {}", command(served))?;
        if let Some(summary) = summary(json) {
            writeln!(out, "{summary}")?;
        }
        for line in text.lines().filter(|line| all || !is_zero(line)) {
            writeln!(out, "{line}")?;
        }
    }
    let Some(lent) = lent else { return Ok(()) };
    if !answers.is_empty() {
        writeln!(out)?;
    }
    lent.write_text(all, out)
}

/// Returns how full a reserve is and how fast it gave blocks; `None` if a number is missing, as in
/// another version.
fn summary(all: &Value) -> Option<String> {
    let of = |name: &str| all[name].as_u64();
    let total = of("total_pages").filter(|total| *total > 0)?;
    let percent = |name: &str| Some(of(name)?.checked_mul(100)? / total);
    let (cache, blocks) = (percent("live_pages")?, percent("held_pages")?);
    let free = percent("free_pages")?;
    let (given, slowest) = (of("allocs")?, of("alloc_max_ns")?.div_ceil(1000));
    // Checks for overflow, because another user's process may answer with any number.
    let len = Pages::new(total).checked_bytes(page_size())?;
    let taken = format!("{cache} % cache, {blocks} % blocks, {free} % free");
    Some(format!("{len}: {taken}; {given} blocks given, the slowest in {slowest} us"))
}

fn is_zero(line: &str) -> bool {
    line.split_whitespace().nth(1) == Some("0")
}

fn write_json(answers: &[Answer], lent: Option<&Lent>, out: &mut dyn Write) -> Outcome {
    let of = |Answer { served, json, .. }: &Answer| {
        json!({
            "pid": served.pid(),
            "reserve": served.number(),
            "command": command(served),
            "statistics": json,
        })
    };
    let mut all: Vec<Value> = answers.iter().map(of).collect();
    all.extend(lent.map(Lent::json));
    serde_json::to_writer_pretty(&mut *out, &all).map_err(io::Error::from)?;
    Ok(writeln!(out)?)
}

/// Merges the answers: each family appears once, with the samples of every answer.
fn write_openmetrics(answers: &[Answer], lent: Option<&Lent>, out: &mut dyn Write) -> Outcome {
    let mut merged: Vec<(&Family, String)> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for family in answers.iter().flat_map(|answer| &answer.families) {
        let place = *places.entry(&*family.name).or_insert(merged.len());
        // The first answer with the family supplies the metadata; others may have another version.
        match merged.get_mut(place) {
            Some((_, samples)) => samples.push_str(&family.samples),
            None => merged.push((family, family.samples.clone())),
        }
    }
    for (family, samples) in merged {
        write!(out, "{}{samples}", family.metadata)?;
    }
    write!(out, "{}", lent.map_or("", Lent::openmetrics))?;
    Ok(writeln!(out, "# EOF")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_shares_of_the_whole_and_no_other_versions_words() {
        let json = r#"{"total_pages": 1000, "live_pages": 690, "held_pages": 0, "free_pages": 310,
            "allocs": 24, "alloc_max_ns": 17001}"#;
        let len = Pages::new(1000).bytes(page_size());
        let wanted = "69 % cache, 0 % blocks, 31 % free; 24 blocks given, the slowest in 18 us";
        let summary = |json: &str| summary(&serde_json::from_str(json).unwrap());
        assert_eq!(summary(json), Some(format!("{len}: {wanted}")));
        assert_eq!(summary(r#"{"total_pages": 1000}"#), None);
        assert_eq!(summary("null"), None);
        for (total, live) in [(1_u64 << 63, 0), (1, u64::MAX)] {
            let huge = format!(
                r#"{{"total_pages": {total}, "live_pages": {live}, "held_pages": {live},
                "free_pages": 0, "allocs": 0, "alloc_max_ns": 0}}"#
            );
            assert_eq!(summary(&huge), None);
        }
        assert!(is_zero("stored      0  pages") && !is_zero("stored     10  pages"));
    }
}
