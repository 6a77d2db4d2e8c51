//! `glebe stats` prints the statistics of reserves in running processes as text, JSON or
//! OpenMetrics.
//!
//! It searches the default directories or a given one. It reports sockets that the caller may not
//! read only if no process answers. The processes, of any version, format the numbers; this command
//! merges them.

use std::collections::HashMap;
use std::fs;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use glebe::reserve::served::{self, Form, Served};
use glebe::reserve::Stats;
use serde_json::{json, Value};

use crate::Outcome;

/// Options of `glebe stats`.
#[derive(clap::Args)]
pub struct StatsArgs {
    /// Only this process
    #[arg(long, conflicts_with = "describe")]
    pid: Option<u32>,
    /// Look in this directory alone
    #[arg(long, conflicts_with = "describe")]
    dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long, group = "form")]
    json: bool,
    /// Print OpenMetrics text, as Prometheus reads it
    #[arg(long, group = "form")]
    openmetrics: bool,
    /// List every statistic: name, unit, meaning
    #[arg(long, group = "form")]
    describe: bool,
    /// Print them again every SECONDS, 2 unless given, until the output is closed or a signal comes
    #[arg(long, value_name = "SECONDS", value_parser = every, num_args = 0..=1)]
    #[arg(default_missing_value = "2", conflicts_with_all = ["describe", "openmetrics"])]
    watch: Option<Duration>,
}

/// Moves the cursor home and clears the text below.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Parses the seconds between two prints.
fn every(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
    Ok(Duration::from_secs_f64(seconds.ok_or("give from 0.1 to 86400 seconds")?))
}

/// Prints the statistics, once or repeatedly.
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
            // Processes may end and start during a watch.
            Err(error) if args.json => drop(writeln!(io::stderr(), "glebe: {error}")),
            Err(error) => writeln!(out, "{error}")?,
            Ok(()) => {}
        }
        out.flush()?;
        std::thread::sleep(every);
    }
    Ok(())
}

/// Prints the statistics once. Fails if no process answers or a read fails.
fn once(args: &StatsArgs, out: &mut dyn Write) -> Outcome {
    if args.describe {
        return Ok(out.write_all(Stats::describe().as_bytes())?);
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
    if found.answers.is_empty() {
        return Err(found.nothing(args.pid, &dirs).into());
    }
    match form {
        Form::Json => write_json(&found.answers, out)?,
        Form::OpenMetrics => write_openmetrics(&found.answers, out)?,
        Form::Text => write_text(&found.answers, out)?,
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

    fn failed(&mut self, error: &glebe::error::OsError) {
        match error.kind() {
            ErrorKind::PermissionDenied => self.refused.push(error.to_string()),
            _ => self.wrong.push(error.to_string()),
        }
    }

    /// Explains why no process answered.
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

/// Returns the process's command name without control characters.
fn command(served: &Served) -> String {
    let name = fs::read_to_string(format!("/proc/{}/comm", served.pid())).unwrap_or_default();
    name.trim_end().replace(|c: char| c.is_control(), "?")
}

fn write_text(answers: &[(Served, String)], out: &mut dyn Write) -> io::Result<()> {
    for (i, (served, text)) in answers.iter().enumerate() {
        let gap = if i == 0 { "" } else { "\n" };
        write!(out, "{gap}{served}: {}\n{text}", command(served))?;
    }
    Ok(())
}

fn write_json(answers: &[(Served, String)], out: &mut dyn Write) -> Outcome {
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
    serde_json::to_writer_pretty(&mut *out, &all).map_err(io::Error::from)?;
    Ok(writeln!(out)?)
}

/// Merges the answers: each family appears once, with the samples of every answer.
fn write_openmetrics(answers: &[(Served, String)], out: &mut dyn Write) -> Outcome {
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
            // Metadata comes from the first answer with the family; others may have another
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
    Ok(writeln!(out, "# EOF")?)
}
