//! Pressure stall information: readable, and able to wake a poller.

use std::fs::File;

use super::call;
use super::mechanism::Mechanism;
use super::roots::{text, why_path, Roots};
use crate::sys::psi;

/// Stall within one window that the attempted trigger asks for, in microseconds.
const STALL_US: u64 = 150_000;

pub(super) fn rows(roots: &Roots, out: &mut Vec<Mechanism>) {
    let path = roots.proc.join("pressure/memory");
    let remedy = "a kernel with CONFIG_PSI=y, booted with psi=1";
    let name = "memory pressure (PSI)";
    let read = text(&path);
    let shown = path.display().to_string();
    out.push(match &read {
        Ok(_) => Mechanism::yes("psi", name, shown),
        Err(error) => Mechanism::no("psi", name, why_path(&path, error), remedy),
    });
    let name = "PSI trigger with a window of 2 s";
    // A directory that stands for /proc is looked at and never written to.
    let armed = File::open(&path).and_then(|file| match call::on_procfs(&file) {
        true => psi::arm(&path, STALL_US, psi::WINDOW_STEP_US).map(drop),
        false => super::roots::writable(&path),
    });
    out.push(match armed {
        Ok(()) => Mechanism::yes("psi.trigger", name, ""),
        Err(error) => {
            let remedy = match &read {
                Err(_) => remedy,
                Ok(_) => "Linux 6.4 (before: CAP_SYS_RESOURCE), /proc writable",
            };
            Mechanism::no("psi.trigger", name, why_path(&path, &error), remedy)
        }
    });
}
