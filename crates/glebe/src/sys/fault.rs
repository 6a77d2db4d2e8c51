//! Fault points: every kernel call of this layer passes [`point`] first, where a test can make
//! the n-th of them fail without being made.
//!
//! Only with the feature `faults`, which is for tests: without it a point is nothing at all. All
//! tests run with it: until one asks for a failure, a point is a load. Calls are counted over all
//! threads of the process, from [`arm`] on, a file read or written as a whole as one of each kind
//! that it needs (open, read). The errors are those that the call's manual page lists and that this
//! crate may meet; EINTR only where a call can return it.
//!
//! No point stands before a call that cannot fail (getpid, geteuid, sysconf of a constant).
//!
//! [`record`] notes the points that a process passes and the stack of calls that leads to each, so
//! that a test can choose among them. [`deny`] makes one file as if it were missing or closed to
//! the process, and [`recorded_paths`] says which files there are to deny.

use std::io;
use std::path::Path;

/// Passed just before the kernel call of that name: an error is what the call is to return.
#[cfg(not(feature = "faults"))]
#[inline(always)]
#[allow(clippy::unnecessary_wraps)] // it does fail where tests ask for that
pub(crate) fn point(_call: &'static str) -> io::Result<()> {
    Ok(())
}

/// As [`point`], before a call that looks for a file by its path.
#[cfg(not(feature = "faults"))]
#[inline(always)]
#[allow(clippy::unnecessary_wraps)] // as there
pub(crate) fn point_at(_call: &'static str, _path: &Path) -> io::Result<()> {
    Ok(())
}

/// Passed between two steps of which the kernel makes none: where a test may end the process.
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub(crate) fn step() {}

#[cfg(feature = "faults")]
pub use armed::{
    arm, deny, disarm, record, record_paths, recorded, recorded_paths, Fault, Lasting, Met, Point,
};
#[cfg(feature = "faults")]
pub(crate) use armed::{point, point_at, step};

#[cfg(feature = "faults")]
mod stack;

#[cfg(feature = "faults")]
mod armed {
    use std::path::PathBuf;

    use super::{io, stack, Path};
    use crate::sync::{MappedByte, Ordering, StaticMutex};
    use crate::sys::signals;

    /// How many of the calls fail.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Lasting {
        /// The n-th alone.
        Once,
        /// The n-th and every later one of that name.
        ThisCall,
        /// The n-th and every later one.
        EveryCall,
        /// None: the process is killed (SIGKILL) before the n-th, or at a step between calls.
        Kills,
    }

    /// Which call fails, and how.
    #[derive(Clone, Copy, Debug)]
    pub struct Fault {
        /// The number of the call, from 1 on.
        pub nth: u64,
        /// Which of the errors that fit the call, counted round.
        pub choice: usize,
        /// How many fail.
        pub lasting: Lasting,
    }

    /// What had been counted, and met, when the fault was taken away.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Met {
        /// Calls made or refused.
        pub calls: u64,
        /// Those that were refused, with the error number of each.
        pub refused: Vec<(&'static str, i32)>,
    }

    /// A call that was passed while [`record`] noted them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Point {
        /// Its name.
        pub call: &'static str,
        /// A hash of the return addresses behind it. It holds in this process alone. Zero where
        /// the C library gives none.
        pub stack: u64,
    }

    struct State {
        fault: Fault,
        met: Met,
        /// With a capacity while points are noted.
        points: Vec<Point>,
        /// Files that were looked for, while these are noted.
        paths: Option<Vec<PathBuf>>,
        /// A file that cannot be opened, and the error.
        denied: Option<(PathBuf, i32)>,
    }

    static ARMED: StaticMutex<Option<State>> = StaticMutex::new(None);

    /// 1 where there is a state. A call where there is none takes no lock, which a forked child or
    /// a signal's handler might wait for without end.
    static IS_ARMED: MappedByte = MappedByte::new(0);

    /// Looks at the state; a test that panicked meanwhile is no reason to stop.
    fn with<T>(look: impl FnOnce(&mut Option<State>) -> T) -> T {
        look(&mut ARMED.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Refusals that are noted without an allocation: some tests forbid any in what they test.
    const NOTED: usize = 64;

    /// Points that are noted; for the same reason the rest is not.
    const POINTS: usize = 1 << 14;

    /// Counts calls from now on and makes one fail.
    pub fn arm(fault: Fault) {
        set(fault, Vec::new());
    }

    /// No call fails any more; what was met.
    pub fn disarm() -> Met {
        take().map_or_else(Met::default, |state| state.met)
    }

    /// Notes where each call stands from now on, the first 16384 of them. None fails.
    pub fn record() {
        stack::warm_up();
        set(NONE, Vec::with_capacity(POINTS));
    }

    /// Ends what [`record`] began. Returns the points in the order of the calls.
    pub fn recorded() -> Vec<Point> {
        take().map_or_else(Vec::new, |state| state.points)
    }

    /// Notes which files are looked for by their paths from now on. None is denied.
    pub fn record_paths() {
        set(NONE, Vec::new());
        with(|armed| armed.iter_mut().for_each(|state| state.paths = Some(Vec::new())));
    }

    /// Ends what [`record_paths`] began. Returns the paths in the order of the calls.
    pub fn recorded_paths() -> Vec<PathBuf> {
        take().and_then(|state| state.paths).unwrap_or_default()
    }

    /// Lets each call fail with `errno` that opens the file at `path`; with ENOENT, each that looks
    /// for it. [`disarm`] ends that.
    pub fn deny(path: &Path, errno: i32) {
        set(NONE, Vec::new());
        let denied = (path.to_owned(), errno);
        with(|armed| armed.iter_mut().for_each(|state| state.denied = Some(denied.clone())));
    }

    /// No fault.
    const NONE: Fault = Fault { nth: u64::MAX, choice: 0, lasting: Lasting::Once };

    fn set(fault: Fault, points: Vec<Point>) {
        let met = Met { calls: 0, refused: Vec::with_capacity(NOTED) };
        let state = State { fault, met, points, paths: None, denied: None };
        with(|armed| *armed = Some(state));
        IS_ARMED.store(1, Ordering::Release);
    }

    fn take() -> Option<State> {
        IS_ARMED.store(0, Ordering::Release);
        with(Option::take)
    }

    /// Passed just before the kernel call of that name: an error is what the call is to return.
    pub(crate) fn point(call: &'static str) -> io::Result<()> {
        if IS_ARMED.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        with(|armed| armed.as_mut().map_or(Ok(()), |state| state.pass(call)))
    }

    /// As [`point`], before a call that looks for a file by its path.
    pub(crate) fn point_at(call: &'static str, path: &Path) -> io::Result<()> {
        if IS_ARMED.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        with(|armed| armed.as_mut().map_or(Ok(()), |state| state.pass_at(call, path)))
    }

    /// Passed between two steps of which the kernel makes none: where a test may end the process.
    pub(crate) fn step() {
        if IS_ARMED.load(Ordering::Acquire) != 0 {
            with(|armed| {
                let kills = armed.as_mut().filter(|state| state.fault.lasting == Lasting::Kills);
                // It refuses nothing.
                kills.map_or(Ok(()), |state| state.pass("step")).unwrap_or(())
            });
        }
    }

    impl State {
        fn pass_at(&mut self, call: &'static str, path: &Path) -> io::Result<()> {
            if let Some(paths) = &mut self.paths {
                paths.push(path.to_owned());
            }
            let denied = self.denied.as_ref().filter(|(denied, errno)| {
                denied == path && (call == "open" || *errno == libc::ENOENT)
            });
            if let Some((_, errno)) = denied {
                self.met.refused.push((call, *errno));
                return Err(io::Error::from_raw_os_error(*errno));
            }
            self.pass(call)
        }

        fn pass(&mut self, call: &'static str) -> io::Result<()> {
            let Self { fault, met, points, .. } = self;
            met.calls += 1;
            if points.len() < points.capacity() {
                points.push(Point { call, stack: stack::hash() });
            }
            let begun = met.refused.first().map(|(first, _)| *first);
            let refuse = match fault.lasting {
                Lasting::Once => met.calls == fault.nth,
                Lasting::ThisCall => met.calls == fault.nth || begun == Some(call),
                Lasting::EveryCall => met.calls >= fault.nth,
                Lasting::Kills if met.calls == fault.nth => signals::kill_self(),
                Lasting::Kills => false,
            };
            if !refuse {
                return Ok(());
            }
            let errors = errors_of(call, fault.lasting);
            let errno = errors[fault.choice % errors.len()];
            met.refused.push((call, errno));
            Err(io::Error::from_raw_os_error(errno))
        }
    }

    /// A signal interrupts a call now and then, never every time.
    fn errors_of(call: &str, lasting: Lasting) -> &'static [i32] {
        use libc::{
            EACCES, EAGAIN, EINTR, EINVAL, EIO, EMFILE, ENOLCK, ENOMEM, ENOSPC, ENOSYS, EPERM,
        };
        let once = lasting == Lasting::Once;
        match call {
            "mmap" => &[ENOMEM, EPERM, EAGAIN],
            "munmap" | "mprotect" | "munlock" | "mlock2" => &[ENOMEM],
            "madvise" if once => &[ENOMEM, EINTR, EAGAIN],
            "madvise" => &[ENOMEM, EINVAL],
            "lock" if once => &[ENOLCK, EINTR],
            "lock" | "unlock" => &[ENOLCK],
            "userfaultfd" | "process_vm_readv" | "process_vm_writev" => &[EPERM, ENOSYS, ENOMEM],
            "process_madvise" => &[EPERM, ENOSYS, EINVAL],
            "membarrier" => &[ENOMEM, EPERM],
            // As a filter refuses it: what else the kernel may say leaves its target in doubt.
            "mremap" => &[EPERM, ENOSYS],
            "open" => &[EMFILE, EACCES, ENOMEM],
            "stat" | "fstat" | "readdir" => &[ENOMEM, EACCES, EIO],
            "write" | "pwrite" => &[EIO, ENOSPC, ENOMEM],
            "unlink" | "rename" => &[EIO, ENOSPC, EACCES],
            "clone" => &[EAGAIN, ENOMEM],
            "mkdir" | "bind" => &[ENOSPC, EACCES, ENOMEM],
            "chmod" => &[EIO, EPERM],
            "dup" | "accept" => &[EMFILE],
            "memfd_create" => &[EMFILE, ENOMEM],
            "ftruncate" | "fcntl" => &[EINVAL, EPERM],
            _ => &[EIO, ENOMEM],
        }
    }
}
