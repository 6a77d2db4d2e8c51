//! [`write_within`] writes a file of `/sys` within a deadline, even if only a fatal signal stops
//! the kernel's work.
//!
//! A child process, the *writer*, shares the caller's memory and file table. A timer kills the
//! writer at the deadline, and the kernel kills it when the caller's thread ends. The shared table
//! keeps the caller's file locks until the writer has ended, so the locks' next holder finds no
//! write in progress. Source: clone(2), fcntl_locking(2).
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr;
use std::time::Duration;

use super::file;
use crate::internal::sync::{MappedWord, Ordering};
use crate::internal::sys::fault::point;
use crate::internal::sys::processes::signals;

const STACK: usize = 64 << 10;
const PENDING: u64 = u64::MAX;

struct Job<'a> {
    file: &'a File,
    bytes: &'a [u8],
    deadline: Duration,
    parent: u32,
    /// 0 or an error number; `PENDING` before the write returns.
    answer: MappedWord,
}

/// Writes `bytes` in one call. Fails with [`TimedOut`](io::ErrorKind::TimedOut) at the deadline.
pub fn write_within(path: &Path, bytes: &[u8], deadline: Duration) -> io::Result<()> {
    let file = file::open(path, OpenOptions::new().write(true).truncate(true))?;
    let (parent, answer) = (std::process::id(), MappedWord::new(PENDING));
    // A timer of 0 never fires.
    let deadline = deadline.max(Duration::from_micros(1));
    let job = Job { file: &file, bytes, deadline, parent, answer };
    point("write")?;
    run(&job)?;
    match job.answer.load(Ordering::Acquire) {
        0 => Ok(()),
        PENDING => {
            let what = format!("not done after {deadline:?}");
            Err(io::Error::new(io::ErrorKind::TimedOut, what))
        }
        errno => Err(io::Error::from_raw_os_error(errno as i32)),
    }
}

fn run(job: &Job<'_>) -> io::Result<()> {
    let _later = signals::Blocked::new();
    let mut stack = vec![0_u8; STACK];
    let top = stack.as_mut_ptr_range().end.map_addr(|end| end & !15);
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES;
    // SAFETY: CLONE_VFORK suspends this thread until the writer has ended, so the stack and the job
    // outlive the writer.
    let pid = unsafe { libc::clone(body, top.cast(), flags, ptr::from_ref(job).cast_mut().cast()) };
    if pid == -1 {
        return Err(io::Error::last_os_error());
    }
    loop {
        // SAFETY: the null pointer receives no status.
        if unsafe { libc::waitpid(pid, ptr::null_mut(), libc::__WALL) } != -1 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

extern "C" fn body(job: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `run` keeps the job alive. The system calls change only this child process.
    unsafe {
        let job = &*job.cast::<Job<'_>>();
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        // No signal comes if the caller ended before the prctl.
        if libc::getppid().unsigned_abs() != job.parent {
            return 0;
        }
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(libc::SIGALRM, &raw const action, ptr::null_mut());
        let mut timer: libc::itimerval = std::mem::zeroed();
        timer.it_value.tv_sec = job.deadline.as_secs() as _;
        timer.it_value.tv_usec = libc::suseconds_t::from(job.deadline.subsec_micros() as i32);
        libc::setitimer(libc::ITIMER_REAL, &raw const timer, ptr::null_mut());
        let mut alarm: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut alarm);
        libc::sigaddset(&raw mut alarm, libc::SIGALRM);
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const alarm, ptr::null_mut());
        let (from, len) = (job.bytes.as_ptr(), job.bytes.len());
        let wrote = libc::write(job.file.as_raw_fd(), from.cast(), len);
        let errno = if wrote < 0 { *libc::__errno_location() as u64 } else { 0 };
        job.answer.store(errno, Ordering::Release);
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn what_is_written_is_there_and_what_is_refused_is_told() {
        let path = std::env::temp_dir().join(format!("glebe-bounded-{}", std::process::id()));
        std::fs::write(&path, "before").unwrap();
        write_within(&path, b"after", Duration::from_secs(5)).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "after");
        std::fs::remove_file(&path).unwrap();
        let refused = write_within(Path::new("/dev/full"), b"a", Duration::from_secs(5));
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    }

    #[test]
    fn a_write_that_never_returns_ends_at_the_deadline() {
        let path = std::env::temp_dir().join(format!("glebe-bounded-pipe-{}", std::process::id()));
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the path is a C string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let mut options = OpenOptions::new();
        let reader = options.read(true).write(true).open(&path).unwrap();
        let more_than_a_pipe_holds = vec![0; 4 << 20];
        let begin = Instant::now();
        let late = write_within(&path, &more_than_a_pipe_holds, Duration::from_millis(50));
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!((50..5000).contains(&begin.elapsed().as_millis()), "{:?}", begin.elapsed());
        drop(reader);
        std::fs::remove_file(&path).unwrap();
    }
}
