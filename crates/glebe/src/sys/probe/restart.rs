//! Restartable sequences and the barriers that abort them. Nothing is registered here.
//!
//! Source: rseq(2), membarrier(2), `include/uapi/linux/auxvec.h`.

use super::call;
use super::mechanism::{Mechanism, State};
use super::roots::{remedy, why};

/// Command bit and registration bit of the barrier that restarts sequences.
const BARRIER: (u32, u32) = (7, 8);

/// Bytes of `struct rseq` that every kernel with rseq fills.
const RSEQ_ORIGINAL_BYTES: u64 = 20;

pub(super) fn rows(out: &mut Vec<Mechanism>) {
    let known = call::rseq_known();
    let has = known.is_ok();
    let name = "restartable sequences in the kernel";
    out.push(match known {
        Ok(()) => {
            let bytes = call::rseq_size_of_kernel().max(RSEQ_ORIGINAL_BYTES);
            Mechanism::yes("rseq.kernel", name, format!("feature size {bytes}"))
        }
        Err(error) => Mechanism::no(
            "rseq.kernel",
            name,
            why("rseq(2)", &error),
            remedy("rseq", &error, "Linux 4.18 with CONFIG_RSEQ=y"),
        ),
    });
    out.push(libc_row(has));
    out.push(barrier_row());
}

fn barrier_row() -> Mechanism {
    const KEY: &str = "membarrier.rseq";
    const NAME: &str = "a barrier that restarts every restartable sequence of the process";
    let needed = "Linux 5.10 with CONFIG_MEMBARRIER=y and CONFIG_RSEQ=y";
    let (command, register) = BARRIER;
    let wanted = 1u64 << command | 1 << register;
    match call::membarrier_commands() {
        Ok(mask) if mask & wanted == wanted => Mechanism::yes(KEY, NAME, ""),
        Ok(mask) => {
            let reason = format!("not among the commands of membarrier(2) ({mask:#x})");
            Mechanism::no(KEY, NAME, reason, needed)
        }
        Err(error) => {
            let needed = remedy("membarrier", &error, needed);
            Mechanism::no(KEY, NAME, why("membarrier(2)", &error), needed)
        }
    }
}

fn libc_row(in_kernel: bool) -> Mechanism {
    const KEY: &str = "rseq.libc";
    const NAME: &str = "restartable sequences registered by the C library";
    let (reason, remedy) = match call::rseq_size_of_libc() {
        Some(size) if size > 0 => {
            return Mechanism::yes(KEY, NAME, format!("__rseq_size {size}"));
        }
        Some(_) if !in_kernel => {
            ("the C library could not register any", "what rseq.kernel asks for")
        }
        Some(_) => (
            "__rseq_size is 0: the C library was told not to, or the kernel refused",
            "run with GLIBC_TUNABLES=glibc.pthread.rseq=1",
        ),
        None => ("the C library has no __rseq_size", "glibc 2.35, dynamically linked"),
    };
    let state = if in_kernel { State::Partly } else { State::No };
    Mechanism::yes(KEY, NAME, "").lacking(state, reason, remedy)
}
