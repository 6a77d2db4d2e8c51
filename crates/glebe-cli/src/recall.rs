//! `glebe recall` takes first-class memory inside a running `glebe serve` and gives it back.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use glebe::reserve::served;
use glebe::units::Bytes;
use glebe_serve::server;

use crate::{serve, size, usage, Outcome};

/// Options of `glebe recall`.
#[derive(clap::Args)]
pub struct RecallArgs {
    /// Amount: a number and K, M, G or T
    #[arg(value_parser = size::parse)]
    size: Bytes,
    /// Time to keep the memory: a number and ms, s or m
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = time)]
    time: Duration,
    /// The server's control socket; not needed if only one server runs
    #[arg(long, value_name = "FILE")]
    control: Option<PathBuf>,
}

fn time(text: &str) -> Result<Duration, String> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let millis = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        _ => return Err("give a number and ms, s or m, such as 500ms or 10s".into()),
    };
    let number: u64 = number.parse().map_err(|_| "the number is missing or too large")?;
    number.checked_mul(millis).map(Duration::from_millis).ok_or_else(|| "too long".into())
}

pub fn run(args: &RecallArgs, out: &mut dyn Write) -> Outcome {
    let path = match &args.control {
        Some(path) => path.clone(),
        None => {
            let found = served::dirs().into_iter().flat_map(|dir| server::controls_in(&dir));
            // Skips the socket file that a killed server leaves behind.
            let is_alive = |path: &PathBuf| std::os::unix::net::UnixStream::connect(path).is_ok();
            let mut found: Vec<PathBuf> = found.map(|(_, path)| path).filter(is_alive).collect();
            match (found.pop(), found.is_empty()) {
                (Some(path), true) => path,
                (None, _) => return Err("no `glebe serve` of yours is running".into()),
                (Some(_), false) => return usage("several servers run: give one by --control"),
            }
        }
    };
    let asked = args.size;
    let mut told = Ok(());
    server::ask_control(&path, asked.get(), args.time, |taken| {
        told = writeln!(
            out,
            "{} of {asked} taken in {} within {:.1} us; held for {:?}",
            Bytes::new(taken.bytes),
            serve::runs(taken.runs),
            taken.took.as_nanos() as f64 / 1e3,
            args.time,
        )
        .and_then(|()| out.flush());
    })
    .map_err(|e| format!("{}: {e}", path.display()))?;
    told?;
    writeln!(out, "given back")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(time("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(time("2m"), Ok(Duration::from_secs(120)));
        for bad in ["", "10", "s", "-1s", "1h", "1.5s", "99999999999999999999s"] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }
}
