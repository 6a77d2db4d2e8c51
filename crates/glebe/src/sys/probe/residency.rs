//! What can be learnt and asked of pages: pagemap, its scan, and the advices of madvise(2).
//!
//! Source: pagemap(5), PAGEMAP_SCAN(2const), madvise(2).

use std::fs::File;
use std::io;

use super::call::{self, Scratch};
use super::mechanism::{Mechanism, State};
use super::roots::{remedy, why, why_path, Roots};

/// Bits of a pagemap entry that hold the page frame number.
const PFN_MASK: u64 = (1 << 55) - 1;
const PRESENT: u64 = 1 << 63;

/// Advice, key, name, first version of Linux.
const TRIED: [(libc::c_int, &str, &str, &str); 3] = [
    (libc::MADV_FREE, "madv.free", "MADV_FREE: contents may go under pressure", "4.5"),
    (
        libc::MADV_POPULATE_WRITE,
        "madv.populate_write",
        "MADV_POPULATE_WRITE: populate with an error, not a SIGBUS",
        "5.14",
    ),
    (
        libc::MADV_WIPEONFORK,
        "madv.wipeonfork",
        "MADV_WIPEONFORK: a forked child sees zeros",
        "4.14",
    ),
];

pub(super) fn rows(roots: &Roots, out: &mut Vec<Mechanism>) {
    match Scratch::new() {
        Ok(page) => {
            page.touch();
            out.extend(pagemap_rows(roots, &page));
            for (advice, key, name, since) in TRIED {
                out.push(advice_row(key, name, since, page.advise(advice)));
            }
        }
        Err(error) => {
            let reason = why("mmap(2) of one page", &error);
            let mut no = |key, name| out.push(Mechanism::no(key, name, &*reason, FREE_MAPS));
            no("pagemap.pfn", PFN_NAME);
            no("pagemap.scan", SCAN_NAME);
            TRIED.iter().for_each(|(_, key, name, _)| no(key, name));
        }
    }
    // A collapse proper would cost a huge page, so only the advice itself is tried.
    out.push(advice_row(
        "madv.collapse",
        "MADV_COLLAPSE: huge pages at once, best effort",
        "6.1 with CONFIG_TRANSPARENT_HUGEPAGE=y",
        call::advice_known(libc::MADV_COLLAPSE),
    ));
}

const PFN_NAME: &str = "page frame numbers in /proc/self/pagemap";
const SCAN_NAME: &str = "PAGEMAP_SCAN: runs of pages by state";
const FREE_MAPS: &str = "unmap something, or sysctl -w vm.max_map_count=N with a larger N";

fn advice_row(key: &str, name: &str, since: &str, tried: io::Result<()>) -> Mechanism {
    match tried {
        Ok(()) => Mechanism::yes(key, name, ""),
        Err(error) => Mechanism::no(
            key,
            name,
            why("madvise(2)", &error),
            remedy("madvise", &error, format!("Linux {since}")),
        ),
    }
}

fn pagemap_rows(roots: &Roots, page: &Scratch) -> [Mechanism; 2] {
    let path = roots.proc.join("self/pagemap");
    let pagemap = match File::open(&path) {
        Ok(file) => file,
        Err(error) => {
            let reason = why_path(&path, &error);
            let remedy = "/proc mounted, a kernel with CONFIG_PROC_PAGE_MONITOR=y";
            return [
                Mechanism::no("pagemap.pfn", PFN_NAME, &*reason, remedy),
                Mechanism::no("pagemap.scan", SCAN_NAME, reason, remedy),
            ];
        }
    };
    [pfn_row(&pagemap, page), scan_row(&pagemap, page)]
}

fn pfn_row(pagemap: &File, page: &Scratch) -> Mechanism {
    use std::os::unix::fs::FileExt;
    const KEY: &str = "pagemap.pfn";
    const REMEDY: &str = "CAP_SYS_ADMIN: run as root, or setcap cap_sys_admin+ep PROGRAM";
    let mut entry = [0; 8];
    let at = page.start() as u64 / page.len() as u64 * entry.len() as u64;
    if let Err(error) = pagemap.read_exact_at(&mut entry, at) {
        return Mechanism::no(KEY, PFN_NAME, why("read of one entry", &error), REMEDY);
    }
    let entry = u64::from_ne_bytes(entry);
    if entry & PRESENT == 0 {
        let reason = "a page just touched is not present";
        return Mechanism::no(KEY, PFN_NAME, reason, "less memory pressure: probe again");
    }
    if entry & PFN_MASK == 0 {
        let reason = "the number reads as zero without CAP_SYS_ADMIN; presence can be read";
        return Mechanism::yes(KEY, PFN_NAME, "").lacking(State::No, reason, REMEDY);
    }
    Mechanism::yes(KEY, PFN_NAME, "")
}

fn scan_row(pagemap: &File, page: &Scratch) -> Mechanism {
    const KEY: &str = "pagemap.scan";
    match call::pagemap_scan(pagemap, page) {
        Ok(1) => Mechanism::yes(KEY, SCAN_NAME, ""),
        Ok(n) => Mechanism::no(
            KEY,
            SCAN_NAME,
            format!("found {n} runs in one present page"),
            "less memory pressure: probe again",
        ),
        Err(error) => {
            Mechanism::no(KEY, SCAN_NAME, why("ioctl(PAGEMAP_SCAN)", &error), "Linux 6.7")
        }
    }
}
