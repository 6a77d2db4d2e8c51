//! [`point`] precedes most kernel calls of this layer, so that a test can make the call fail.
//!
//! With the feature `faults`, a point costs one load until `arm`; then the calls of all threads are
//! counted. Reading a whole file counts as one `open` and one `read`.

use std::io;
use std::path::Path;

/// Returns Ok. With the feature `faults`, may return an error with which the caller must fail.
#[cfg(not(feature = "faults"))]
#[inline(always)]
#[allow(clippy::unnecessary_wraps)] // fails with `faults`
pub fn point(_call: &'static str) -> io::Result<()> {
    Ok(())
}

/// Does the same as [`point`] before a call that looks for `path`.
#[cfg(not(feature = "faults"))]
#[inline(always)]
#[allow(clippy::unnecessary_wraps)] // fails with `faults`
pub fn point_at(_call: &'static str, _path: &Path) -> io::Result<()> {
    Ok(())
}

/// Marks a step at which a test may kill the process.
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub fn step() {}

#[cfg(feature = "faults")]
pub use armed::{
    arm, deny, disarm, record, record_paths, recorded, recorded_paths, Fault, Lasting, Met, Point,
};
#[cfg(feature = "faults")]
pub use armed::{point, point_at, step};

#[cfg(feature = "faults")]
mod stack;

#[cfg(feature = "faults")]
mod armed {
    use std::path::PathBuf;

    use super::{io, stack, Path};
    use crate::internal::sync::{MappedByte, Ordering, StaticMutex};
    use crate::internal::sys::processes::signals;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Lasting {
        Once,
        /// The n-th call, and later calls of the same name.
        ThisCall,
        EveryCall,
        /// No call fails. The process kills itself at the n-th call or step.
        Kills,
    }

    #[derive(Clone, Copy, Debug)]
    pub struct Fault {
        /// Number of the call, from 1.
        pub nth: u64,
        /// Index into the errors of the call, modulo their number.
        pub choice: usize,
        pub lasting: Lasting,
    }

    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Met {
        /// Counted calls, except those that [`deny`] refused.
        pub calls: u64,
        pub refused: Vec<(&'static str, i32)>,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Point {
        pub call: &'static str,
        /// Hash of the return addresses; zero without glibc.
        pub stack: u64,
    }

    struct State {
        fault: Fault,
        met: Met,
        /// Points, recorded up to the capacity that [`record`] sets.
        points: Vec<Point>,
        paths: Option<Vec<PathBuf>>,
        denied: Option<(PathBuf, i32)>,
    }

    static ARMED: StaticMutex<Option<State>> = StaticMutex::new(None);

    /// 1 while `ARMED` has a state. At 0, points do not lock `ARMED`, because a forked child could
    /// wait for the lock for ever.
    static IS_ARMED: MappedByte = MappedByte::new(0);

    fn with<T>(look: impl FnOnce(&mut Option<State>) -> T) -> T {
        look(&mut ARMED.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Refusals noted without allocating.
    const NOTED: usize = 64;

    /// Points noted without allocating; later points are dropped.
    const POINTS: usize = 1 << 14;

    pub fn arm(fault: Fault) {
        set(fault, Vec::new());
    }

    pub fn disarm() -> Met {
        take().map_or_else(Met::default, |state| state.met)
    }

    /// Notes the next `POINTS` calls; none fails.
    pub fn record() {
        stack::warm_up();
        set(NONE, Vec::with_capacity(POINTS));
    }

    pub fn recorded() -> Vec<Point> {
        take().map_or_else(Vec::new, |state| state.points)
    }

    /// Notes each path that [`point_at`] gets; no call fails.
    pub fn record_paths() {
        set(NONE, Vec::new());
        with(|armed| armed.iter_mut().for_each(|state| state.paths = Some(Vec::new())));
    }

    pub fn recorded_paths() -> Vec<PathBuf> {
        take().and_then(|state| state.paths).unwrap_or_default()
    }

    /// Makes calls that open `path` fail until [`disarm`]. With ENOENT, all calls that look for
    /// `path` fail.
    pub fn deny(path: &Path, errno: i32) {
        set(NONE, Vec::new());
        let denied = (path.to_owned(), errno);
        with(|armed| armed.iter_mut().for_each(|state| state.denied = Some(denied.clone())));
    }

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

    pub fn point(call: &'static str) -> io::Result<()> {
        if IS_ARMED.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        with(|armed| armed.as_mut().map_or(Ok(()), |state| state.pass(call)))
    }

    pub fn point_at(call: &'static str, path: &Path) -> io::Result<()> {
        if IS_ARMED.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        with(|armed| armed.as_mut().map_or(Ok(()), |state| state.pass_at(call, path)))
    }

    pub fn step() {
        if IS_ARMED.load(Ordering::Acquire) != 0 {
            with(|armed| {
                let kills = armed.as_mut().filter(|state| state.fault.lasting == Lasting::Kills);
                // `pass` refuses nothing for `Lasting::Kills`.
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

    /// Returns errors with which a call may fail. EINTR is only for [`Lasting::Once`], because a
    /// caller repeats an interrupted call until it succeeds.
    fn errors_of(call: &str, lasting: Lasting) -> &'static [i32] {
        use libc::{
            EACCES, EAGAIN, EINTR, EINVAL, EIO, EMFILE, ENOLCK, ENOMEM, ENOSPC, ENOSYS, EPERM,
        };
        let once = lasting == Lasting::Once;
        match call {
            "mmap" => &[ENOMEM, EPERM, EAGAIN],
            "munmap" | "mprotect" | "munlock" | "mlock2" => &[ENOMEM],
            "fallocate" if once => &[EIO, ENOMEM, EINTR],
            "madvise" if once => &[ENOMEM, EINTR, EAGAIN],
            "madvise" => &[ENOMEM, EINVAL],
            "lock" if once => &[ENOLCK, EINTR],
            "lock" | "unlock" => &[ENOLCK],
            "userfaultfd" | "process_vm_readv" | "process_vm_writev" => &[EPERM, ENOSYS, ENOMEM],
            "process_madvise" => &[EPERM, ENOSYS, EINVAL],
            "membarrier" => &[ENOMEM, EPERM],
            // Only these errors (of a seccomp filter) prove that mremap left the target mapped.
            "mremap" => &[EPERM, ENOSYS],
            "open" => &[EMFILE, EACCES, ENOMEM],
            "stat" | "fstat" | "readdir" => &[ENOMEM, EACCES, EIO],
            "write" | "pwrite" => &[EIO, ENOSPC, ENOMEM],
            "unlink" | "rename" | "linkat" => &[EIO, ENOSPC, EACCES],
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
