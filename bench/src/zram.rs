//! [`Device`] is a zram device that compresses with LZ4.
//!
//! `hot_add` makes a new device, never one in use. Dropping a [`Device`] removes it, or prints that
//! the removal failed. Unit: bytes. Source: Documentation/admin-guide/blockdev/zram.rst.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use glebe::units::Bytes;

use crate::pressure::patiently;
use crate::Outcome;

const CONTROL: &str = "/sys/class/zram-control";

pub(crate) struct Device(u32);

impl Device {
    pub(crate) fn new(len: Bytes) -> Outcome<Self> {
        let number = fs::read_to_string(Path::new(CONTROL).join("hot_add"));
        let number = number.map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => "no zram here: modprobe zram".into(),
            io::ErrorKind::PermissionDenied => "zram takes root".into(),
            _ => format!("zram: {e}"),
        })?;
        let device = Self(number.trim().parse()?);
        device.set("comp_algorithm", "lz4").map_err(|_| "this kernel's zram has no LZ4")?;
        device.set("disksize", &len.get().to_string())?;
        Ok(device)
    }

    pub(crate) fn name(&self) -> String {
        format!("zram{}", self.0)
    }

    pub(crate) fn node(&self) -> String {
        format!("/dev/zram{}", self.0)
    }

    /// Opens the device for direct I/O, once its node exists.
    pub(crate) fn open(&self) -> io::Result<File> {
        let (node, mut options) = (self.node(), OpenOptions::new());
        options.read(true).write(true).custom_flags(libc::O_DIRECT | libc::O_CLOEXEC);
        patiently(|| {
            // An ordinary file may have the name until the kernel makes the node.
            match fs::metadata(&node)?.file_type().is_block_device() {
                true => options.open(&node),
                false => Err(io::ErrorKind::NotFound.into()),
            }
        })
    }

    pub(crate) fn path(&self, name: &str) -> String {
        format!("/sys/block/zram{}/{name}", self.0)
    }

    pub(crate) fn set(&self, name: &str, value: &str) -> io::Result<()> {
        fs::write(self.path(name), value)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Retries, because udev may still have the device open.
        let removed = patiently(|| {
            self.set("reset", "1")?;
            fs::write(Path::new(CONTROL).join("hot_remove"), self.0.to_string())
        });
        if let Err(e) = removed {
            eprintln!("glebe-bench: zram{} is left behind: {e}", self.0);
        }
    }
}
