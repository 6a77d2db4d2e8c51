//! Allocates extents of a device's blocks, lowest address first, with alignments and windows.

use std::io::Write;

use glebe_vmap::extent::Extent;
use glebe_vmap::free_tree::{FreeTree, FreeTreeError};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout();
    let device = Extent::new(0, 1 << 20).ok_or("an empty device")?;
    let mut free = FreeTree::new(device, 1024);
    free.free(device)?;
    // The device begins with a table of 34 blocks.
    free.take(Extent::new(0, 34).ok_or("an empty table")?)?;

    let file = free.alloc(1000, 1, None)?.ok_or("no place for the file")?;
    // A region follows at a multiple of 2048 blocks; the gap stays free.
    let region = free.alloc(4096, 2048, None)?.ok_or("no place for the region")?;
    let low = Extent::new(0, 2048).ok_or("an empty window")?;
    let loader = free.alloc(64, 8, Some(low))?.ok_or("no place for the loader")?;
    writeln!(out, "file {file}, region {region}, loader {loader}")?;
    writeln!(
        out,
        "largest {}, {} free in {} extents",
        free.largest(),
        free.free_len(),
        free.extents()
    )?;

    // `alloc` returns `None` if nothing fits. A second `free` is an error and changes nothing.
    if let Some(extent) = free.alloc(64, 2048, Some(low))? {
        return Err(format!("{extent} is held").into());
    }
    free.free(file)?;
    match free.free(file) {
        Err(error @ FreeTreeError::AlreadyFree { .. }) => writeln!(out, "{error}")?,
        other => return Err(format!("freed twice: {other:?}").into()),
    }
    free.free(region)?;
    free.free(loader)?;
    writeln!(out, "all back: {} free in {} extent", free.free_len(), free.extents())?;
    Ok(())
}
