//! [`supervise`] starts a program, and gives huge pages to its calls and those of all processes
//! that it starts.
//!
//! It serves programs in which nothing can be preloaded, and raw system calls. The kernel holds
//! each mmap(2) with MAP_HUGETLB and each shmget(2) with SHM_HUGETLB. Meanwhile the supervisor
//! leases as many pages as the machine's pool lacks, and frees them into the pool. Then the call
//! goes on unchanged, so the kernel decides.
//!
//! # Limits
//! - The pool is common. Until the held call reserves its pages, any process of the machine can
//!   take them, also another supervised program. After its reservation nobody can take them.
//! - Pages that the program unmaps, and pages that a failed call leaves, are in the pool for all
//!   processes of the machine until the tree ends.
//! - If the pool has surplus pages, pages that the program unmaps leave it. The supervisor leases
//!   others for the next call, until the daemon or the quota refuses.
//! - A call with MAP_NORESERVE or SHM_NORESERVE reserves nothing: others can take its pages until
//!   the program touches them.
//! - The supervisor sees no memfd_create(2) and no files of hugetlbfs.
//! - A segment of shmget(2) outlives its program, and its pages stay away from the daemon, until
//!   somebody removes the segment.
//! - A process tree has one listener, so a supervised program cannot be supervised again.
//! - Without CAP_SYS_ADMIN the program gets no_new_privs: setuid programs gain no privilege.
//!
//! # Processes
//! The leases end when the last process of the tree has ended, and so does the supervisor. It
//! adopts the tree's orphans to see that. If the supervisor is killed, the kernel kills the
//! program. Other processes of the tree live on; their calls for huge pages fail with ENOSYS.
//!
//! The supervisor passes signals on to the program, except those that the kernel sends, since a
//! terminal sends them to the program too. A terminal's hang-up reaches only the leader of its
//! session. If the supervisor is the leader, it passes the kernel's HUP and CONT on. After the
//! program's end, a signal that asks for the end makes the supervisor leave the rest of the tree.

mod report;
mod supply;

use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use glebe::internal::sys::files::signal_fd::SignalFd;
use glebe::internal::sys::processes::children;
use glebe::internal::sys::processes::seccomp::{
    self, CallListener, HeldCall, NotSpawned, PoolCall,
};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{getpid, getsid, kill_process, wait, Pid, Signal, WaitOptions, WaitStatus};

use self::report::Report;
use self::supply::{Supplied, Supply};
use super::{not_executed, NotRun};

/// Signals that end a program, unless it decides otherwise.
const ENDING: [Signal; 4] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM];
const FURTHER: [Signal; 5] =
    [Signal::USR1, Signal::USR2, Signal::CONT, Signal::WINCH, Signal::ALARM];

/// Signals of a hang-up, which the kernel sends to the leader of the terminal's session alone.
const HANG_UP: [Signal; 2] = [Signal::HUP, Signal::CONT];

/// Longest wait for the last process of the tree, once the kernel says that it is ending. A child
/// that this process had before it became the supervisor would otherwise be waited for.
const LAST: Duration = Duration::from_secs(1);

/// Longest time that a released call may take to reserve its pages. Some calls reserve none: the
/// kernel refuses them, or the segment exists.
const TAKEN: Duration = Duration::from_secs(1);
/// Time between two looks at the pool.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000 };

/// Wishes of the user.
#[derive(Clone, Debug, Default)]
pub struct Wishes {
    /// Kill the program if a call gets no pages.
    pub required: bool,
    /// Most bytes of all leases together.
    pub quota: Option<u64>,
    /// NUMA node of the leases.
    pub node: Option<u32>,
    /// Print a line for each call.
    pub is_verbose: bool,
    /// The daemon's socket.
    pub socket: PathBuf,
}

/// Runs the program of `command`, and returns its exit status: 128 and the signal's number if a
/// signal ended it.
///
/// # Errors
/// [`NotRun`] if the program was not started, or was killed because it got no pages.
pub fn supervise(mut command: Command, wishes: &Wishes) -> Result<u8, NotRun> {
    if let Some(lack) = seccomp::lack() {
        return Err(NotRun::refused(format!("huge pages cannot be given: {lack}")));
    }
    let program = Path::new(command.get_program()).to_owned();
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut supply = Supply::new(&name, wishes)?;
    supply.connect().or_else(|why| match wishes.required {
        true => Err(NotRun::refused(why)),
        false => Ok(()),
    })?;
    let numbers: Vec<i32> = all_signals().map(Signal::as_raw).collect();
    children::adopt_orphans().map_err(failed)?;
    let signals = SignalFd::new(&numbers).map_err(failed)?;
    signals.unblock_in(&mut command);
    let (child, listener) = seccomp::spawn(&mut command).map_err(|error| match error {
        NotSpawned::Exec(error) => not_executed(&program, &error),
        NotSpawned::Filter(error) => not_held(&error),
    })?;
    let is_leader = getsid(None) == Ok(getpid());
    let program = Pid::from_child(&child);
    let mut tree = Tree { program, is_leader, status: None, hung_up: None };
    let (waiting, report) = (VecDeque::new(), Report::default());
    let mut supervisor = Supervisor { listener, waiting, supply, wishes, report };
    let mut killed = None;
    while !tree.has_ended() {
        let is_signal = supervisor.look(&mut tree, &signals).map_err(failed)?;
        if let Some(held) = supervisor.waiting.pop_front() {
            killed = killed.or(supervisor.serve(&held, &tree).map_err(failed)?);
        }
        if is_signal && tree.pass_on(&signals) {
            break;
        }
    }
    let _ = writeln!(io::stderr(), "glebe: {}", supervisor.report);
    match killed {
        Some(why) => Err(NotRun::refused(why)),
        None => Ok(tree.exit_status()),
    }
}

fn all_signals() -> impl Iterator<Item = Signal> {
    ENDING.into_iter().chain(FURTHER).chain([Signal::CHILD])
}

fn failed(error: impl Display) -> NotRun {
    NotRun::refused(format!("the program cannot be supervised: {error}"))
}

fn not_held(error: &io::Error) -> NotRun {
    let why = match Errno::from_io_error(error) {
        Some(Errno::BUSY) => " (a debugger, a container or another glebe holds its calls already)",
        _ => "",
    };
    NotRun::refused(format!("the kernel does not hold the program's system calls: {error}{why}"))
}

/// The program and the processes that it started.
struct Tree {
    program: Pid,
    /// True if the supervisor leads its session.
    is_leader: bool,
    /// `None` while the program runs.
    status: Option<WaitStatus>,
    /// When the listener hung up.
    hung_up: Option<Instant>,
}

impl Tree {
    /// Reaps ended processes. Returns true if no process of the tree is left.
    fn has_ended(&mut self) -> bool {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.program => self.status = Some(status),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Err(_) => return true,
                Ok(None) => {
                    let is_over = self.hung_up.is_some_and(|at| at.elapsed() >= LAST);
                    return is_over && self.status.is_some();
                }
            }
        }
    }

    /// Passes signals on. Returns true if one asks for the end, and the program has ended.
    fn pass_on(&self, signals: &SignalFd) -> bool {
        let mut is_end = false;
        while let Some(arrived) = signals.take() {
            let Some(signal) = Signal::from_named_raw(arrived.number) else { continue };
            let is_program_s = arrived.is_kernels && !(self.is_leader && HANG_UP.contains(&signal));
            match self.status {
                _ if signal == Signal::CHILD => {}
                Some(_) => is_end |= ENDING.contains(&signal),
                // The program got it, too.
                None if is_program_s => {}
                // Fails if the program has just ended.
                None => _ = kill_process(self.program, signal),
            }
        }
        is_end
    }

    fn exit_status(&self) -> u8 {
        let Some(status) = self.status else { return 125 };
        let by_signal = status.terminating_signal().map(|signal| 128 + signal);
        let code = by_signal.or(status.exit_status()).and_then(|code| u8::try_from(code).ok());
        code.unwrap_or(u8::MAX)
    }
}

struct Supervisor<'a> {
    listener: CallListener,
    /// Held calls in the order of their arrival.
    waiting: VecDeque<HeldCall>,
    supply: Supply,
    wishes: &'a Wishes,
    report: Report,
}

impl Supervisor<'_> {
    /// Waits for a held call, a signal or the daemon. Returns true if a signal is there.
    fn look(&mut self, tree: &mut Tree, signals: &SignalFd) -> io::Result<bool> {
        let mut all = vec![PollFd::new(signals, PollFlags::IN)];
        // The listener hangs up for ever once it did.
        if tree.hung_up.is_none() {
            all.push(PollFd::new(&self.listener, PollFlags::IN));
            let daemon = self.supply.connection();
            all.extend(daemon.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        }
        let left = match self.waiting.is_empty() {
            true => tree.hung_up.map(|at| LAST.saturating_sub(at.elapsed())),
            false => Some(Duration::ZERO),
        };
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut all, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let seen = |nth: usize| all.get(nth).map_or(PollFlags::empty(), PollFd::revents);
        let [signal, call, daemon] = [0, 1, 2].map(seen);
        if call.contains(PollFlags::HUP) {
            tree.hung_up = Some(Instant::now());
        }
        if call.contains(PollFlags::IN) {
            self.waiting.extend(self.listener.next()?);
        }
        if !daemon.is_empty() {
            self.supply.release_late();
        }
        Ok(signal.contains(PollFlags::IN))
    }

    /// Gives pages to a held call. Returns why the program was killed, if it was.
    fn serve(&mut self, held: &HeldCall, tree: &Tree) -> io::Result<Option<String>> {
        // It may have ended while it waited.
        if !self.listener.is_held(held) {
            return Ok(None);
        }
        let begin = Instant::now();
        let supplied = self.supply.supply(held);
        if self.wishes.is_verbose {
            let (thread, time) = (held.thread, begin.elapsed());
            let what = described(held);
            let _ =
                writeln!(io::stderr(), "glebe: thread {thread}: {what}: {supplied} ({time:.1?})");
        }
        self.report.add(&supplied);
        if let (Supplied::Refused(why), true) = (&supplied, self.wishes.required) {
            if !self.supply.suffices(held) && self.listener.is_held(held) {
                end(tree, held);
                // The kernel does not show the process if it is in another PID namespace.
                self.listener.proceed(held)?;
                self.supply.close();
                return Ok(Some(format!("the program was killed: {}: {why}", described(held))));
            }
        }
        let takes_pages = matches!(supplied, Supplied::Leased(_) | Supplied::Free);
        if self.listener.proceed(held)? && takes_pages {
            match held.reserves {
                true => self.wait_until_taken(held)?,
                false => self.supply.keep_for(held),
            }
        }
        self.supply.close();
        Ok(None)
    }

    /// Waits until a released call has reserved its pages. Otherwise the next call would count them
    /// as free, and the pool might lose them. If the thread makes another call, this one is over:
    /// the kernel refused it, or its pages are free again.
    fn wait_until_taken(&mut self, held: &HeldCall) -> io::Result<()> {
        let begin = Instant::now();
        while self.supply.awaits(held) {
            if held.thread != 0 && self.waiting.iter().any(|next| next.thread == held.thread) {
                return Ok(());
            }
            if begin.elapsed() >= TAKEN {
                self.supply.keep_for(held);
                return Ok(());
            }
            let mut call = [PollFd::new(&self.listener, PollFlags::IN)];
            // Without this wait, which a signal may end, the loop only turns faster.
            let _ = poll(&mut call, Some(&LOOK));
            let seen = call[0].revents();
            if seen.contains(PollFlags::IN) {
                self.waiting.extend(self.listener.next()?);
            } else if seen.contains(PollFlags::HUP) {
                return Ok(());
            }
        }
        Ok(())
    }
}

fn described(held: &HeldCall) -> String {
    let call = match held.call {
        PoolCall::Mmap => "mmap",
        PoolCall::Shmget => "shmget",
    };
    format!("{call} of {} in huge pages", held.len)
}

/// Kills the program, and the process that made the call.
fn end(tree: &Tree, held: &HeldCall) {
    let program = tree.status.is_none().then_some(tree.program);
    // The kernel kills the process of a thread.
    let caller = i32::try_from(held.thread).ok().and_then(Pid::from_raw);
    for process in [program, caller].into_iter().flatten() {
        let _ = kill_process(process, Signal::KILL);
    }
}
