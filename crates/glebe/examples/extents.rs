//! Free extents of something that is no memory of this process: the blocks of a device, handed out
//! lowest address first, aligned and in windows.

use std::io::Write;

use glebe::extent::Extent;
use glebe::free_tree::{Error, FreeTree};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout();
    let device = Extent::new(0, 1 << 20).ok_or("an empty device")?;
    let mut free = FreeTree::new(device, 1024);
    free.free(device)?;
    // The first 34 blocks are the table that the device begins with.
    free.take(Extent::new(0, 34).ok_or("an empty table")?)?;

    let file = free.alloc(1000, 1, None)?.ok_or("no place for the file")?;
    // A region that starts at a multiple of 2048 blocks fits behind it; the gap stays free.
    let region = free.alloc(4096, 2048, None)?.ok_or("no place for the region")?;
    // The lowest 2048 blocks alone can be addressed by the loader.
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

    // What is not there is said, and a second free is an error that changes nothing.
    if let Some(extent) = free.alloc(64, 2048, Some(low))? {
        return Err(format!("{extent} is held").into());
    }
    free.free(file)?;
    match free.free(file) {
        Err(error @ Error::AlreadyFree { .. }) => writeln!(out, "{error}")?,
        other => return Err(format!("freed twice: {other:?}").into()),
    }
    free.free(region)?;
    free.free(loader)?;
    writeln!(out, "all back: {} free in {} extent", free.free_len(), free.extents())?;
    Ok(())
}
