//! Transparent huge pages: the modes, and every multi-size (mTHP) folio size.
//!
//! A size's own mode decides, except `inherit`, which takes the top-level one.
//! Source: `Documentation/admin-guide/mm/transhuge.rst`.

use std::path::Path;

use super::mechanism::{Mechanism, State};
use super::roots::{chosen, page_sizes, text, why, why_path, Roots};
use crate::units::Bytes;

pub(super) fn rows(roots: &Roots, out: &mut Vec<Mechanism>) {
    let dir = roots.sys.join("kernel/mm/transparent_hugepage");
    let enabled = dir.join("enabled");
    let top = chosen(&enabled);
    let name = "transparent huge pages";
    out.push(match &top {
        Ok(mode) if mode != "never" => Mechanism::yes("thp", name, mode),
        Ok(mode) => {
            Mechanism::no("thp", name, format!("{} is {mode}", enabled.display()), echo(&enabled))
        }
        Err(error) => Mechanism::no(
            "thp",
            name,
            why_path(&enabled, error),
            "a kernel with CONFIG_TRANSPARENT_HUGEPAGE=y",
        ),
    });
    out.push(defrag_row(&dir));
    for (kib, size) in page_sizes(&dir) {
        let top = top.as_deref().unwrap_or("never");
        out.push(size_row(&dir.join(format!("hugepages-{size}")), &size, kib, top));
    }
}

fn echo(file: &Path) -> String {
    format!("as root: echo madvise > {}", file.display())
}

fn defrag_row(dir: &Path) -> Mechanism {
    const KEY: &str = "thp.defrag";
    const NAME: &str = "compaction at the fault of an advised range";
    let file = dir.join("defrag");
    match chosen(&file) {
        Ok(mode) if matches!(&*mode, "always" | "defer+madvise" | "madvise") => {
            Mechanism::yes(KEY, NAME, mode)
        }
        Ok(mode) => {
            let reason = format!("{} is {mode}: only what is free already", file.display());
            Mechanism::no(KEY, NAME, reason, echo(&file)).with_detail(mode)
        }
        Err(error) => Mechanism::no(
            KEY,
            NAME,
            why_path(&file, &error),
            "a kernel with CONFIG_TRANSPARENT_HUGEPAGE=y",
        ),
    }
}

fn size_row(dir: &Path, size: &str, kib: u64, top: &str) -> Mechanism {
    let key = format!("mthp.{size}");
    let name = format!("anonymous folios of {}", Bytes::new(kib << 10));
    let file = dir.join("enabled");
    let own = match chosen(&file) {
        Ok(own) => own,
        Err(error) => {
            let shared = text(&dir.join("shmem_enabled")).is_ok();
            let (reason, remedy) = if shared {
                ("this size exists for shared memory only", "nothing: use the next larger size")
            } else {
                ("the mode cannot be read", "Linux 6.8 with CONFIG_TRANSPARENT_HUGEPAGE=y")
            };
            return Mechanism::no(
                key,
                name,
                format!("{reason}; {}", why("enabled", &error)),
                remedy,
            );
        }
    };
    let effective = if own == "inherit" { top } else { &own };
    if effective != "never" {
        let detail = if own == "inherit" { format!("inherit ({top})") } else { own };
        return Mechanism::yes(key, name, detail);
    }
    let reason = match &*own {
        "inherit" => "the mode is inherited, and that is never",
        _ => "the mode is never",
    };
    Mechanism::yes(key, name, own).lacking(State::No, reason, echo(&file))
}
