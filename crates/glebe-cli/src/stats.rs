//! `glebe stats` prints the statistics of reserves in running processes, and of leases, as text,
//! JSON or OpenMetrics.
//!
//! Sockets that the caller may not read are reported only if no process answers. The processes
//! format the numbers; this command merges their texts.

mod lent;

use std::collections::HashMap;
use std::fs;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use glebe::internal::describe_nodes;
use glebe::lease::LeaseError;
use glebe::page_size;
use glebe::reserve::served::{self, Form, Served};
use glebe::reserve::Stats;
use glebe::units::Pages;
use serde_json::{json, Value};

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

#[derive(Default)]
struct Found {
    answers: Vec<(Served, String)>,
    /// Sockets that the caller may not read.
    refused: Vec<String>,
    /// Sockets that should have answered.
    wrong: Vec<String>,
}

impl Found {
    fn look_in(&mut self, dir: &std::path::Path, pid: Option<u32>, form: Form) {
        let list = match served::list(dir) {
            Ok(list) => list,
            Err(e) => return self.failed(&e),
        };
        for served in list.into_iter().filter(|served| pid.is_none_or(|pid| pid == served.pid())) {
            match served.read(form) {
                Ok(Some(answer)) => self.answers.push((served, answer)),
                Ok(None) => {}
                Err(e) => self.failed(&e),
            }
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
    answers: &[(Served, String)],
    all: bool,
    lent: Option<&Lent>,
    out: &mut dyn Write,
) -> io::Result<()> {
    for (i, (served, text)) in answers.iter().enumerate() {
        let gap = if i == 0 { "" } else { "\n" };
        writeln!(out, "{gap}{served}: {}", command(served))?;
        // Omits the summary if the process has ended since the first read.
        if let Some(summary) = served.read(Form::Json).ok().flatten().as_deref().and_then(summary) {
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
fn summary(json: &str) -> Option<String> {
    let all: Value = serde_json::from_str(json).ok()?;
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

fn write_json(answers: &[(Served, String)], lent: Option<&Lent>, out: &mut dyn Write) -> Outcome {
    let mut all = Vec::new();
    for (served, text) in answers {
        let statistics: Value =
            serde_json::from_str(text).map_err(|e| format!("{served}: no JSON: {e}"))?;
        all.push(json!({
            "pid": served.pid(),
            "reserve": served.number(),
            "command": command(served),
            "statistics": statistics,
        }));
    }
    all.extend(lent.map(Lent::json));
    serde_json::to_writer_pretty(&mut *out, &all).map_err(io::Error::from)?;
    Ok(writeln!(out)?)
}

/// Merges the answers: each family appears once, with the samples of every answer.
fn write_openmetrics(
    answers: &[(Served, String)],
    lent: Option<&Lent>,
    out: &mut dyn Write,
) -> Outcome {
    let mut families: Vec<(String, String)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for (served, text) in answers {
        let body = text.strip_suffix("# EOF\n").ok_or(format!("{served}: no end of the text"))?;
        let mut place = None;
        for line in body.lines() {
            if let Some(family) = line.strip_prefix("# TYPE ") {
                let family = family.split(' ').next().unwrap_or_default().to_owned();
                place = Some(*places.entry(family).or_insert_with(|| {
                    families.push(Default::default());
                    families.len() - 1
                }));
            }
            let place = place.ok_or(format!("{served}: a line before any family: {line:?}"))?;
            let (metadata, samples) = &mut families[place];
            // The first answer with the family supplies the metadata; others may have another
            // version.
            let is_metadata = line.starts_with('#');
            if !is_metadata {
                samples.push_str(line);
                samples.push('\n');
            } else if samples.is_empty() {
                metadata.push_str(line);
                metadata.push('\n');
            }
        }
    }
    for (metadata, samples) in families {
        write!(out, "{metadata}{samples}")?;
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
        assert_eq!(summary(json), Some(format!("{len}: {wanted}")));
        assert_eq!(summary(r#"{"total_pages": 1000}"#), None);
        assert_eq!(summary("no JSON"), None);
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
