//! Fills a reserve with a cache, then takes contiguous memory out of it.

use std::io::Write;

use glebe::page_size;
use glebe::reserve::{Request, Reserve};
use glebe::units::{Bytes, Pages};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout();
    let reserve = Reserve::new(Bytes::mib(64))?;
    writeln!(out, "{} from {}", reserve.contig().len(), reserve.contig().source())?;
    for why in reserve.contig().why_not_better() {
        writeln!(out, "  {why}")?;
    }

    let pool = reserve.page_cache().namespace("example")?;
    let page = vec![7; page_size().bytes().as_usize()];
    for index in 0..reserve.len().get() {
        pool.put(1, index, &page)?;
    }

    // Without privileges only short runs are known; `any` accepts a block of several runs.
    let pages = Pages::new(8000);
    let mut block = reserve.alloc(Request::new(pages).any())?;
    block.bytes_mut()?.fill(0xa5);
    writeln!(out, "{} pages, contiguous: {}", block.pages().get(), block.contiguity())?;

    let mut buf = page.clone();
    let hits = (0..reserve.len().get()).filter(|i| pool.get(1, *i, &mut buf).unwrap_or(false));
    writeln!(out, "{} of {} pages are still cached", hits.count(), reserve.len().get())?;
    drop(block);
    print!("{}", reserve.stats());
    Ok(())
}
