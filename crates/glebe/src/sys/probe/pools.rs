//! hugetlb pools: what each size holds, whether it can grow, and whether it can be demoted.
//!
//! Counts are pages of the pool's own size. Source: `Documentation/admin-guide/mm/hugetlbpage.rst`.

use std::io;
use std::path::Path;

use super::call;
use super::mechanism::{Mechanism, State};
use super::roots::{number, page_sizes, remedy, text, why, why_path, writable, Roots};
use crate::units::Bytes;

/// The five counts of one pool.
struct Pool {
    nr: u64,
    free: u64,
    reserved: u64,
    surplus: u64,
    overcommit: u64,
}

impl Pool {
    fn read(dir: &Path) -> io::Result<Self> {
        Ok(Self {
            nr: number(&dir.join("nr_hugepages"))?,
            free: number(&dir.join("free_hugepages"))?,
            reserved: number(&dir.join("resv_hugepages"))?,
            surplus: number(&dir.join("surplus_hugepages"))?,
            overcommit: number(&dir.join("nr_overcommit_hugepages"))?,
        })
    }

    /// Pages that a mapping could still have without a larger pool.
    fn available(&self) -> u64 {
        let idle = self.free.saturating_sub(self.reserved);
        idle + self.overcommit.saturating_sub(self.surplus)
    }
}

pub(super) fn rows(roots: &Roots, out: &mut Vec<Mechanism>) {
    let dir = roots.sys.join("kernel/mm/hugepages");
    let sizes = page_sizes(&dir);
    if sizes.is_empty() {
        out.push(Mechanism::no(
            "hugetlb",
            "hugetlb pools",
            format!("no pool below {}", dir.display()),
            "a kernel with CONFIG_HUGETLBFS=y, and /sys mounted",
        ));
    }
    for (kib, size) in &sizes {
        out.push(pool_row(&dir.join(format!("hugepages-{size}")), size, *kib));
    }
    for (kib, size) in &sizes {
        let pool = dir.join(format!("hugepages-{size}"));
        if let Ok(to) = text(&pool.join("demote_size")) {
            out.push(demote_row(&pool, size, *kib, &to));
        }
    }
    out.push(memfd_row());
    if let Some((kib, size)) = sizes.first() {
        let name = "memfd of huge pages (memfd_create with MFD_HUGETLB)";
        out.push(match call::memfd(Some(kib << 10)) {
            Ok(()) => Mechanism::yes("memfd.hugetlb", name, format!("{size} tried")),
            Err(error) => Mechanism::no(
                "memfd.hugetlb",
                name,
                why("memfd_create(2)", &error),
                remedy("memfd_create", &error, "Linux 4.14 with CONFIG_HUGETLBFS=y"),
            ),
        });
    }
}

fn pool_row(dir: &Path, size: &str, kib: u64) -> Mechanism {
    let key = format!("hugetlb.{size}");
    let name = format!("hugetlb pool of {} pages", Bytes::new(kib << 10));
    let nr = dir.join("nr_hugepages");
    let remedy = format!("as root: echo N > {}", nr.display());
    let pool = match Pool::read(dir) {
        Ok(pool) => pool,
        Err(error) => return Mechanism::no(key, name, why_path(dir, &error), remedy),
    };
    let Pool { nr: total, free, reserved, surplus, overcommit } = pool;
    let grow = writable(&nr);
    let detail = format!(
        "nr {total}, free {free}, reserved {reserved}, surplus {surplus}, \
         overcommit {overcommit}; {}",
        if grow.is_ok() { "can be grown" } else { "cannot be grown by this process" }
    );
    let row = Mechanism::yes(key, name, detail);
    match grow {
        Ok(()) => row,
        Err(error) if pool.available() > 0 => {
            row.lacking(State::Partly, why_path(&nr, &error), remedy)
        }
        Err(error) => {
            let reason = format!("no page is free and {}", why_path(&nr, &error));
            row.lacking(State::No, reason, remedy)
        }
    }
}

fn demote_row(dir: &Path, size: &str, kib: u64, to: &str) -> Mechanism {
    let key = format!("demote.{size}");
    let name = format!("demotion of free {} pages", Bytes::new(kib << 10));
    let file = dir.join("demote");
    match writable(&file) {
        Ok(()) => Mechanism::yes(key, name, format!("to {to}")),
        Err(error) => Mechanism::no(
            key,
            name,
            why_path(&file, &error),
            format!("as root: echo N > {}", file.display()),
        )
        .with_detail(format!("to {to}")),
    }
}

fn memfd_row() -> Mechanism {
    const NAME: &str = "memfd_create";
    match call::memfd(None) {
        Ok(()) => Mechanism::yes("memfd", NAME, ""),
        Err(error) => Mechanism::no(
            "memfd",
            NAME,
            why("memfd_create(2)", &error),
            remedy("memfd_create", &error, "Linux 3.17"),
        ),
    }
}
