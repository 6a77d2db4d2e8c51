//! [`Usage`] holds the CPU time and page faults of this process, with the allocator's threads.
//! Reading allocates nothing, because that would disturb the measured heap. Source:
//! proc_pid_stat(5), proc_pid_status(5).

use std::fs::File;
use std::io::Read;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{clock, Outcome};

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    cpu: Duration,
    faults: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Spent {
    pub(super) cpu_s: f64,
    pub(super) faults: u64,
}

impl Usage {
    pub(super) fn now() -> Outcome<Self> {
        Ok(Self { cpu: clock::process_cpu(), faults: faults()? })
    }

    pub(super) fn spent(self) -> Outcome<Spent> {
        let now = Self::now()?;
        let cpu_s = now.cpu.saturating_sub(self.cpu).as_secs_f64();
        Ok(Spent { cpu_s, faults: now.faults - self.faults })
    }
}

fn faults() -> Outcome<u64> {
    let found = look("/proc/self/stat", |text| {
        // The name in brackets may contain spaces, so fields count from the last bracket: `minflt`
        // is field 8, `majflt` field 10.
        let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest);
        let mut fields = fields.split_whitespace().skip(7).step_by(2);
        let mut next = || fields.next().and_then(|field| field.parse::<u64>().ok());
        Some(next()? + next()?)
    })?;
    found.ok_or_else(|| "/proc/self/stat: too short".into())
}

/// Returns resident anonymous bytes.
pub(super) fn resident() -> Outcome<u64> {
    let found = look("/proc/self/smaps_rollup", |text| kib(text, "Anonymous:"))?;
    found.ok_or_else(|| "smaps_rollup: no Anonymous".into())
}

pub(super) fn peak() -> Outcome<u64> {
    peak_in("/proc/self/status")
}

pub(super) fn peak_in(status: &str) -> Outcome<u64> {
    look(status, |text| kib(text, "VmHWM:"))?.ok_or_else(|| format!("{status}: no VmHWM").into())
}

fn look<T>(path: &str, find: impl FnOnce(&str) -> T) -> Outcome<T> {
    let mut bytes = [0; 4096];
    let len = File::open(path)?.read(&mut bytes)?;
    Ok(find(std::str::from_utf8(&bytes[..len])?))
}

fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_touched_is_counted() {
        let len = 16 << 20;
        let (before, used) = (resident().unwrap(), Usage::now().unwrap());
        let touched = std::hint::black_box(vec![1_u8; len]);
        let spent = used.spent().unwrap();
        assert!(spent.faults > 0 && spent.cpu_s > 0.0, "{spent:?}");
        // Other tests free memory meanwhile, but less than half of `len`.
        assert!(resident().unwrap() > before + len as u64 / 2);
        assert!(peak().unwrap() >= len as u64);
        drop(touched);
    }
}
