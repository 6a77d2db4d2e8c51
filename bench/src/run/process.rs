//! [`Process`]: a started program, ended when dropped. Its CPU time and its huge pages.
//!
//! Source: proc_pid_stat(5), proc_pid_smaps(5).

use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use glebe::units::Bytes;
use rustix::process::{kill_process, Pid, Signal};

use crate::{clock, Outcome};

/// Longest wait for a program that was asked to end.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) struct Process {
    child: Child,
    /// Ends the program with all its children.
    end: Signal,
}

impl Process {
    pub(super) fn start(command: &mut Command, end: Signal) -> Outcome<Self> {
        Ok(Self { child: command.spawn()?, end })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn ended(&mut self) -> Outcome<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Sends `signal`, and waits for the end.
    pub(super) fn end_by(&mut self, signal: Signal) -> Outcome {
        kill_process(Pid::from_child(&self.child), signal)?;
        let end = clock::wall() + PATIENCE;
        while self.ended()?.is_none() {
            if clock::wall() > end {
                return Err(format!("process {} did not end", self.id()).into());
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) && self.end_by(self.end).is_err() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Returns the pages of the hugetlb pool's sizes that a process has touched.
pub(super) fn hugetlb_of(process: u32) -> Outcome<Bytes> {
    let text = fs::read_to_string(format!("/proc/{process}/smaps_rollup"))?;
    Ok(hugetlb_in(&text))
}

fn hugetlb_in(smaps: &str) -> Bytes {
    let words = smaps.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let kib = words.filter_map(|words| match words[..] {
        ["Shared_Hugetlb:" | "Private_Hugetlb:", kib, "kB"] => kib.parse::<u64>().ok(),
        _ => None,
    });
    Bytes::new(kib.sum::<u64>() << 10)
}

/// Returns the CPU seconds of a process, of its children, and of those that have ended.
pub(super) fn cpu_of(process: u32) -> Outcome<f64> {
    let own = || stat(Path::new(&format!("/proc/{process}"))).ok_or("the program has ended");
    loop {
        let before = own()?;
        let all = fs::read_dir("/proc")?.flatten().filter_map(|entry| stat(&entry.path()));
        let of_children: u64 = all.filter(|stat| stat.parent == process).map(|stat| stat.own).sum();
        let now = own()?;
        // Otherwise a child ended meanwhile, which may count twice or not at all.
        if now.of_ended == before.of_ended {
            let ticks = of_children + now.own + now.of_ended;
            return Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64);
        }
    }
}

/// CPU time in clock ticks.
struct Stat {
    parent: u32,
    own: u64,
    of_ended: u64,
}

fn stat(folder: &Path) -> Option<Stat> {
    parsed(&fs::read_to_string(folder.join("stat")).ok()?)
}

fn parsed(stat: &str) -> Option<Stat> {
    // The name in brackets may contain spaces. The parent is field 4; the times begin at field 14.
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let ticks = |nth: usize| fields.get(nth).and_then(|ticks| ticks.parse::<u64>().ok());
    let parent = fields.get(1)?.parse().ok()?;
    Some(Stat { parent, own: ticks(11)? + ticks(12)?, of_ended: ticks(13)? + ticks(14)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_the_kernel() {
        let stat = "9 (a ) b) S 7 9 9 0 -1 4194304 1 2 3 4 10 20 300 400 20 0 1 0 5 6 7";
        let stat = parsed(stat).unwrap();
        assert_eq!((stat.parent, stat.own, stat.of_ended), (7, 30, 700));
        let smaps = "Rss:   12 kB\nShared_Hugetlb:  2048 kB\nPrivate_Hugetlb:     4096 kB\n";
        assert_eq!(hugetlb_in(smaps), Bytes::mib(6));
        assert!(cpu_of(std::process::id()).unwrap() >= 0.0 && cpu_of(u32::MAX).is_err());
    }
}
