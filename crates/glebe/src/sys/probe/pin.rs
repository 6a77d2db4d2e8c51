//! What keeps pages where they are: mlock's limit, and io_uring's registered buffers.
//!
//! mlock keeps a page resident, not in place; a registered buffer is a long-term pin.
//! Source: mlock(2), io_uring_register(2), `Documentation/admin-guide/sysctl/kernel.rst`.

use super::call::{self, Scratch};
use super::capability::Effective;
use super::mechanism::{Mechanism, State};
use super::roots::{allow, is_filtered, remedy, why, Roots};
use crate::sys::io_uring::Ring;
use crate::units::Bytes;

/// What a seccomp profile must allow.
const CALLS: &str = "io_uring_setup and io_uring_register";
/// A ring and its buffers count as locked memory.
const MEMLOCK_REMEDY: &str = "a larger RLIMIT_MEMLOCK (ulimit -l), or CAP_IPC_LOCK";

pub(super) fn rows(roots: &Roots, effective: Effective, out: &mut Vec<Mechanism>) {
    out.push(mlock_row(effective));
    let ring = Ring::new();
    out.push(ring_row(roots, &ring));
    out.push(buffers_row(ring));
}

fn mlock_row(effective: Effective) -> Mechanism {
    const NAME: &str = "locked memory (mlock)";
    const REMEDY: &str = "CAP_IPC_LOCK, or ulimit -l unlimited (systemd: LimitMEMLOCK=infinity)";
    let (soft, hard) = match call::memlock_limits() {
        Ok(limits) => limits,
        Err(error) => {
            let reason = why("getrlimit(RLIMIT_MEMLOCK)", &error);
            return Mechanism::no("mlock", NAME, reason, REMEDY);
        }
    };
    let show = |limit: Option<u64>| match limit {
        Some(bytes) => Bytes::new(bytes).to_string(),
        None => "unlimited".to_owned(),
    };
    let limits = format!("RLIMIT_MEMLOCK {}, hard {}", show(soft), show(hard));
    match soft {
        _ if effective.ipc_lock() => {
            Mechanism::yes("mlock", NAME, format!("{limits}; no limit with CAP_IPC_LOCK"))
        }
        None => Mechanism::yes("mlock", NAME, limits),
        Some(0) => Mechanism::no("mlock", NAME, "RLIMIT_MEMLOCK is 0", REMEDY).with_detail(limits),
        Some(bytes) => {
            let reason = format!("at most {} can be locked", Bytes::new(bytes));
            Mechanism::yes("mlock", NAME, limits).lacking(State::Partly, reason, REMEDY)
        }
    }
}

fn ring_row(roots: &Roots, ring: &std::io::Result<Ring>) -> Mechanism {
    const NAME: &str = "io_uring";
    let disabled = roots.sysctl("kernel/io_uring_disabled");
    let detail = match &disabled {
        Ok(value) => format!("kernel.io_uring_disabled {value}"),
        Err(_) => String::new(),
    };
    let error = match ring {
        Ok(_) => return Mechanism::yes("io_uring", NAME, detail),
        Err(error) => error,
    };
    let asks = |sysctl: &str| match is_filtered(roots) {
        true => format!("{sysctl}; and {}", allow(CALLS)),
        false => sysctl.to_owned(),
    };
    let remedy = match disabled.as_deref() {
        _ if error.raw_os_error() == Some(libc::ENOMEM) => MEMLOCK_REMEDY.to_owned(),
        Ok("1") => {
            asks("sysctl -w kernel.io_uring_disabled=0, or CAP_SYS_ADMIN, or kernel.io_uring_group")
        }
        Ok("2") => asks("sysctl -w kernel.io_uring_disabled=0"),
        _ => remedy(CALLS, error, "Linux 5.1 with CONFIG_IO_URING=y"),
    };
    Mechanism::no("io_uring", NAME, why("io_uring_setup(2)", error), remedy).with_detail(detail)
}

fn buffers_row(ring: std::io::Result<Ring>) -> Mechanism {
    const KEY: &str = "io_uring.buffers";
    const NAME: &str = "long-term pin by registered buffers";
    let ring = match ring {
        Ok(ring) => ring,
        Err(error) => {
            let reason = why("no ring: io_uring_setup(2)", &error);
            return Mechanism::no(KEY, NAME, reason, "what io_uring asks for");
        }
    };
    let tried = Scratch::new().and_then(|page| {
        ring.pin(page.start(), page.len())?;
        ring.unpin()
    });
    match tried {
        Ok(()) => {
            Mechanism::yes(KEY, NAME, "at most 1 GiB a buffer, counted against mlock's limit")
        }
        Err(error) => {
            let remedy = remedy("io_uring_register", &error, MEMLOCK_REMEDY);
            Mechanism::no(KEY, NAME, why("io_uring_register(2)", &error), remedy)
        }
    }
}
