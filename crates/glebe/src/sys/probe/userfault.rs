//! userfaultfd: how a descriptor is had, and which features it then has.
//!
//! Source: userfaultfd(2), `Documentation/admin-guide/mm/userfaultfd.rst`.

use std::io;

use super::call::Scratch;
use super::mechanism::{Mechanism, State};
use super::roots::{open_device, remedy, why, why_path, Roots};
use crate::sys::uffd::{Faults, Uffd};

/// Bit of UFFDIO_API, key, name, first version of Linux.
const FEATURES: [(u32, &str, &str, &str); 8] = [
    (7, "uffd.sigbus", "SIGBUS with the address of a lost page", "4.14"),
    (5, "uffd.missing.shmem", "missing pages of shared memory", "4.11 with CONFIG_SHMEM=y"),
    (4, "uffd.missing.hugetlb", "missing pages of hugetlb", "4.11 with CONFIG_HUGETLBFS=y"),
    (10, "uffd.minor.shmem", "minor faults of shared memory", "5.14 (x86-64, arm64)"),
    (9, "uffd.minor.hugetlb", "minor faults of hugetlb", "5.13 (x86-64, arm64)"),
    (0, "uffd.wp", "write protection", "5.7 (x86-64; arm64 later)"),
    (12, "uffd.wp.shared", "write protection of shared memory and hugetlb", "5.19"),
    (15, "uffd.wp.async", "write tracking without a fault handler", "6.7"),
];

/// Bit of UFFDIO_ZEROPAGE in the answer to UFFDIO_REGISTER.
const IOCTL_ZEROPAGE: u32 = 4;
const ZEROPAGE_NAME: &str = "zero page into a hole (UFFDIO_ZEROPAGE)";

pub(super) fn rows(roots: &Roots, out: &mut Vec<Mechanism>) {
    let user = Uffd::open(Faults::User);
    let all = Uffd::open(Faults::All);
    out.push(user_row(&user));
    out.push(kernel_row(roots, &all, &user));
    let (row, device) = device_row(roots);
    out.push(row);
    let lost = user.as_ref().err().map(|error| why("no descriptor: userfaultfd(2)", error));
    let Some(uffd) = user.ok().or(all.ok()).or(device) else {
        let reason = lost.unwrap_or_default();
        let remedy = "what uffd.user asks for";
        for (_, key, name, _) in FEATURES {
            out.push(Mechanism::no(key, name, &*reason, remedy));
        }
        out.push(Mechanism::no("uffd.zeropage", ZEROPAGE_NAME, reason, remedy));
        return;
    };
    let features = uffd.api(0);
    for (bit, key, name, since) in FEATURES {
        out.push(match &features {
            Ok(mask) if mask >> bit & 1 == 1 => Mechanism::yes(key, name, ""),
            Ok(mask) => Mechanism::no(
                key,
                name,
                format!("not among the features of UFFDIO_API ({mask:#x})"),
                format!("Linux {since}"),
            ),
            Err(error) => {
                Mechanism::no(key, name, why("ioctl(UFFDIO_API)", error), format!("Linux {since}"))
            }
        });
    }
    out.push(zeropage_row(&uffd));
}

fn user_row(tried: &io::Result<Uffd>) -> Mechanism {
    const KEY: &str = "uffd.user";
    const NAME: &str = "userfaultfd of user-mode faults";
    let error = match tried {
        Ok(_) => return Mechanism::yes(KEY, NAME, "by system call, no privilege needed"),
        Err(error) => error,
    };
    let otherwise = match error.raw_os_error() {
        Some(libc::EINVAL) => "Linux 5.11, or what uffd.kernel asks for",
        _ => "a kernel with CONFIG_USERFAULTFD=y",
    };
    let remedy = remedy("userfaultfd", error, otherwise);
    Mechanism::no(KEY, NAME, why("userfaultfd(UFFD_USER_MODE_ONLY)", error), remedy)
}

fn kernel_row(roots: &Roots, tried: &io::Result<Uffd>, user: &io::Result<Uffd>) -> Mechanism {
    const KEY: &str = "uffd.kernel";
    const NAME: &str = "userfaultfd of system calls' faults too";
    let detail = match roots.sysctl("vm/unprivileged_userfaultfd") {
        Ok(value) => format!("vm.unprivileged_userfaultfd {value}"),
        Err(_) => String::new(),
    };
    let error = match tried {
        Ok(_) => return Mechanism::yes(KEY, NAME, detail),
        Err(error) => error,
    };
    // Where the call is denied or missing altogether, no sysctl gives it.
    let denied = user.as_ref().err().is_some_and(|e| e.raw_os_error() != Some(libc::EINVAL));
    let remedy = if denied {
        "what uffd.user asks for, then CAP_SYS_PTRACE or sysctl -w vm.unprivileged_userfaultfd=1"
    } else {
        "sysctl -w vm.unprivileged_userfaultfd=1, or CAP_SYS_PTRACE, or /dev/userfaultfd"
    };
    Mechanism::no(KEY, NAME, why("userfaultfd(2)", error), remedy).with_detail(detail)
}

fn device_row(roots: &Roots) -> (Mechanism, Option<Uffd>) {
    const KEY: &str = "uffd.device";
    const NAME: &str = "userfaultfd by its device file";
    let path = roots.dev.join("userfaultfd");
    let opened = open_device(&path).map_err(|error| why_path(&path, &error));
    let made = opened.and_then(|device| {
        Uffd::from_device(&device).map_err(|error| why("ioctl(USERFAULTFD_IOC_NEW)", &error))
    });
    match made {
        Ok(uffd) => (Mechanism::yes(KEY, NAME, path.display().to_string()), Some(uffd)),
        Err(reason) => {
            let remedy = format!(
                "Linux 6.1 with CONFIG_USERFAULTFD=y, then as root: chmod o+rw {}",
                path.display()
            );
            (Mechanism::no(KEY, NAME, reason, remedy), None)
        }
    }
}

fn zeropage_row(uffd: &Uffd) -> Mechanism {
    const KEY: &str = "uffd.zeropage";
    let ioctls = Scratch::new().and_then(|page| page.range_ioctls(uffd));
    match ioctls {
        Ok(mask) if mask >> IOCTL_ZEROPAGE & 1 == 1 => Mechanism::yes(KEY, ZEROPAGE_NAME, ""),
        Ok(mask) => Mechanism::no(
            KEY,
            ZEROPAGE_NAME,
            format!("not among the ioctls of a registered anonymous range ({mask:#x})"),
            "Linux 4.3 on an architecture that has it",
        ),
        Err(error) => Mechanism::yes(KEY, ZEROPAGE_NAME, "").lacking(
            State::No,
            why("ioctl(UFFDIO_REGISTER)", &error),
            "Linux 4.3 with CONFIG_USERFAULTFD=y",
        ),
    }
}
