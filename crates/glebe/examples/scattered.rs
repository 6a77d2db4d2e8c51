//! Memory in pieces: a reserve has no long run free, and gives one slice of scattered pages.

use std::io::Write;

use glebe::contig::{Contig, Source};
use glebe::reserve::{Error, Reserve};
use glebe::units::{Bytes, Pages};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout();
    let options = Contig::options().source(Source::Plain);
    let reserve = Reserve::builder().views().map_with(options, Bytes::mib(16))?;
    let one = Pages::new(1);

    // Small blocks everywhere, of which every other one goes.
    let mut held = Vec::new();
    while let Ok(block) = reserve.alloc(one, one) {
        held.push(block);
    }
    held.retain(|block| block.extent().start() % 2 == 0);
    let free = reserve.stats().free;
    writeln!(
        out,
        "{} pages free, the longest run has {}",
        free.get(),
        reserve.largest_run()?.get()
    )?;

    let len = Pages::new(free.get() / 2);
    match reserve.alloc(len, one) {
        Err(Error::NoRun { asked, .. }) => writeln!(out, "no run of {} pages", asked.get())?,
        other => return Err(format!("a run where none should be: {other:?}").into()),
    }
    let mut block = reserve.alloc_virtual(len)?;
    for (n, byte) in block.bytes_mut()?.iter_mut().enumerate() {
        *byte = (n % 251) as u8;
    }
    writeln!(
        out,
        "{} pages in {} extents, as one slice",
        block.pages().get(),
        block.extents().count()
    )?;

    // Where they lie, each has its part of it.
    let parts = block.into_blocks();
    let whole = parts.iter().map(|part| part.bytes()).collect::<Result<Vec<_>, _>>()?.concat();
    if whole.iter().enumerate().any(|(n, byte)| usize::from(*byte) != n % 251) {
        return Err("a byte is not where it was written".into());
    }
    writeln!(out, "every byte is where it was written")?;
    Ok(())
}
