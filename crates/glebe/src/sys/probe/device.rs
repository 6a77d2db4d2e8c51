//! Device files: dma-heaps, udmabuf, zram.
//!
//! Source: `Documentation/userspace-api/dma-buf-heaps.rst`, `drivers/dma-buf/udmabuf.c`,
//! `Documentation/admin-guide/blockdev/zram.rst`.

use super::mechanism::{Mechanism, State};
use super::roots::{names, number, open_device, why_path, writable, Roots};
use crate::units::Bytes;

/// The heap whose buffers are contiguous in no address space but its own.
const SCATTERED_HEAP: &str = "system";

pub(super) fn rows(roots: &Roots, out: &mut Vec<Mechanism>) {
    heap_rows(roots, out);
    out.push(udmabuf_row(roots));
    out.push(zram_row(roots));
}

fn heap_rows(roots: &Roots, out: &mut Vec<Mechanism>) {
    let dir = roots.dev.join("dma_heap");
    let heaps = names(&dir);
    if heaps.is_empty() {
        out.push(Mechanism::no(
            "dma_heap",
            "dma-heaps",
            format!("no device below {}", dir.display()),
            "a kernel with CONFIG_DMABUF_HEAPS_CMA=y, booted with cma=SIZE",
        ));
    }
    for heap in heaps {
        let key = format!("dma_heap.{heap}");
        let name = format!("dma-heap {heap}");
        let path = dir.join(&heap);
        out.push(match open_device(&path) {
            Err(error) => Mechanism::no(
                key,
                name,
                why_path(&path, &error),
                format!("as root: chmod o+rw {} (or a udev rule)", path.display()),
            ),
            Ok(_) if heap.starts_with(SCATTERED_HEAP) => {
                Mechanism::yes(key, name, "buffers of scattered pages").lacking(
                    State::Partly,
                    "this heap promises no physical contiguity",
                    "a CMA heap: boot with cma=SIZE, CONFIG_DMABUF_HEAPS_CMA=y",
                )
            }
            Ok(_) => Mechanism::yes(key, name, "physically contiguous buffers"),
        });
    }
}

fn udmabuf_row(roots: &Roots) -> Mechanism {
    const NAME: &str = "udmabuf: a dma-buf of a memfd";
    let path = roots.dev.join("udmabuf");
    if let Err(error) = open_device(&path) {
        let remedy = if error.kind() == std::io::ErrorKind::NotFound {
            "as root: modprobe udmabuf (CONFIG_UDMABUF)".to_owned()
        } else {
            format!("as root: chmod o+rw {} (or a udev rule)", path.display())
        };
        return Mechanism::no("udmabuf", NAME, why_path(&path, &error), remedy);
    }
    let parameters = roots.sys.join("module/udmabuf/parameters");
    let detail = match number(&parameters.join("size_limit_mb")) {
        Ok(mib) => format!("at most {} each", Bytes::mib(mib)),
        Err(_) => String::new(),
    };
    Mechanism::yes("udmabuf", NAME, detail)
}

fn zram_row(roots: &Roots) -> Mechanism {
    const NAME: &str = "zram, to compare with";
    let made: Vec<String> = names(&roots.sys.join("block"))
        .into_iter()
        .filter(|name| name.strip_prefix("zram").is_some_and(|n| n.parse::<u32>().is_ok()))
        .collect();
    let add = roots.sys.join("class/zram-control/hot_add");
    if made.is_empty() && !add.exists() {
        let reason = why_path(&add, &std::io::Error::from_raw_os_error(libc::ENOENT));
        return Mechanism::no("zram", NAME, reason, "as root: modprobe zram (CONFIG_ZRAM)");
    }
    let detail = match made.len() {
        0 => "no device yet".to_owned(),
        _ => made.join(", "),
    };
    let row = Mechanism::yes("zram", NAME, detail);
    // Reading hot_add makes a device, so that needs the same right as setting one up.
    let right = match made.first() {
        Some(device) => roots.sys.join("block").join(device).join("disksize"),
        None => add,
    };
    match writable(&right) {
        Ok(()) => row,
        Err(error) => row.lacking(State::No, why_path(&right, &error), "run as root"),
    }
}
