//! `glebe reclaim` purges shared volatile memory when memory is short.
//!
//! One thread waits until a poll of the reclaimer is due, a signal arrives, or the next check of
//! the files is due. Each check logs the bytes purged since the last check.

mod files;
mod log;
mod once;
mod open;
mod shortage;
mod signals;

use std::error::Error as Failure;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use glebe::reclaim::{Policy, Reclaimer};
use glebe::units::Bytes;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::{size, usage, Outcome};
use files::WatchedFiles;
use log::{one_line, Log};
use open::Judge;
use shortage::Shortage;
use signals::Signals;

const CHECK: Duration = Duration::from_secs(1);

/// Options of `glebe reclaim`.
#[derive(clap::Args)]
pub struct ReclaimArgs {
    /// Files of shared volatile memory: on tmpfs, or memfds as /proc/PID/fd/N
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Directory of a memory cgroup to watch, in place of those above this process; may be repeated
    #[arg(long = "cgroup", value_name = "DIR")]
    cgroups: Vec<PathBuf>,
    /// Memory to keep free; default: a sixteenth of the limit, but 4 to 256 MiB
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    margin: Option<Bytes>,
    /// Log each process whose pins in a file exceed this
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    quota: Option<Bytes>,
    /// Purge this much now, print what was purged, and end
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    once: Option<Bytes>,
    /// Purge nothing: print what a purge could free (up to the size of --once), and end
    #[arg(long)]
    dry_run: bool,
    /// Wait for files that cannot be opened yet or have another purger
    #[arg(long)]
    wait: bool,
    /// Log errors only
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,
    /// Log each look that found memory short
    #[arg(short, long)]
    verbose: bool,
}

impl ReclaimArgs {
    fn log(&self) -> Log {
        match (self.quiet, self.verbose) {
            (true, _) => Log::Quiet,
            (_, true) => Log::Verbose,
            _ => Log::Plain,
        }
    }

    fn policy(&self) -> Policy {
        // The kernel may drop page cache first, because page cache can be read again.
        let policy = Policy::default().keep_files(false);
        self.margin.map_or(policy, |margin| policy.margin(margin))
    }
}

pub fn run(args: &ReclaimArgs, out: &mut dyn Write) -> Outcome {
    let goes_on = !args.dry_run && args.once.is_none();
    if !goes_on && (args.wait || args.quota.is_some() || !args.cgroups.is_empty()) {
        return usage("--wait, --quota and --cgroup are for a purger that goes on");
    }
    let done = match args.once {
        size if args.dry_run => once::show(&args.files, size, out),
        Some(size) => once::purge(&args.files, size, out),
        None => Running::start(args).and_then(Running::go_on),
    };
    // Escapes control characters, which file names in the message may contain.
    done.map_err(|e| if e.is::<std::io::Error>() { e } else { one_line(&e.to_string()).into() })
}

struct Running<'a> {
    args: &'a ReclaimArgs,
    log: Log,
    signals: Signals,
    reclaimer: Reclaimer,
    files: WatchedFiles,
    shortage: Shortage,
}

impl<'a> Running<'a> {
    fn start(args: &'a ReclaimArgs) -> Result<Self, Box<dyn Failure>> {
        let log = args.log();
        let signals = Signals::new().map_err(|e| format!("signals: {e}"))?;
        let reclaimer = Reclaimer::of_groups(&args.cgroups, args.policy())?;
        let mut files = WatchedFiles::new(&args.files);
        if !args.wait {
            files.open(&reclaimer)?;
        }
        let shortage = Shortage::default();
        let mut running = Self { args, log, signals, reclaimer, files, shortage };
        // The first poll arms the kernel's notifications.
        running.look();
        running.tell_start()?;
        running.check();
        Ok(running)
    }

    fn tell_start(&mut self) -> Outcome {
        let watched = self.reclaimer.watched()?;
        match &watched.limit {
            Ok(limit) => {
                self.log.tell(format!("started: the limit with the least room is {limit}"))
            }
            Err(_) => self.shortage.groups(&watched, self.log),
        }
        for (what, told) in [("of usage", &watched.threshold), ("of stalls", &watched.stalls)] {
            self.log.tell(match told {
                Ok(file) => format!("the kernel tells {what}: {file}"),
                Err(why) => format!("the kernel does not tell {what}: {why}"),
            });
        }
        let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
        Ok(())
    }

    fn go_on(mut self) -> Outcome {
        let mut checked = Instant::now();
        loop {
            let left = CHECK.saturating_sub(checked.elapsed());
            let is_due = self.wait(left)?;
            if self.signals.is_end() {
                self.files.all().for_each(|open| open.tell_freed(self.log));
                self.log.tell("ended by a signal");
                return Ok(());
            }
            let is_reopen = self.signals.is_reopen();
            if is_reopen {
                self.log.tell("SIGHUP: the files are opened anew");
                self.files.close();
            }
            let is_new = is_due && self.look();
            if is_reopen || is_new || checked.elapsed() >= CHECK {
                self.check();
                checked = Instant::now();
            }
        }
    }

    /// Waits at most `time` for a signal or for the reclaimer's wake-up. Returns true if a poll of
    /// the reclaimer is due.
    fn wait(&self, time: Duration) -> Result<bool, String> {
        let fds = [self.reclaimer.as_fd(), self.signals.as_fd()];
        let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        match poll(&mut fds, Some(&time)) {
            Ok(_) => Ok(!fds[0].revents().is_empty()),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(format!("poll: {error}")),
        }
    }

    fn look(&mut self) -> bool {
        let done = self.reclaimer.poll();
        self.shortage.look(done, &self.reclaimer, Instant::now(), self.log)
    }

    fn check(&mut self) {
        let judge = Judge {
            reclaimer: &self.reclaimer,
            log: self.log,
            quota: self.args.quota,
            is_short: self.shortage.is_short(),
        };
        // Logs purges first, because `WatchedFiles::check` may drop a file.
        self.files.all().for_each(|open| open.tell_freed(self.log));
        self.files.check(judge);
        // `watched` fails only in a forked child.
        let _ = self.reclaimer.watched().map(|watched| self.shortage.groups(&watched, self.log));
    }
}
