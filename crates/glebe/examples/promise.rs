//! Lends promised memory to a cache until the promise is taken.

use std::io::Write;

use glebe::page_size;
use glebe::reserve::Reserve;
use glebe::units::{Bytes, Pages};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout();
    let reserve = Reserve::new(Bytes::mib(64))?;
    let run = reserve.largest_run()?;
    let promise = reserve.promise(Pages::new((run.get() / 2).max(1)))?;
    writeln!(out, "promised {} of {} pages", promise.pages().get(), run.get())?;

    // Fills the cache, which also uses the promised run.
    let pool = reserve.page_cache().namespace("example")?;
    let page = vec![1; page_size().bytes().as_usize()];
    for index in 0..reserve.len().get() {
        pool.put(1, index, &page)?;
    }
    writeln!(out, "{} pages lent to the cache", reserve.stats().live.get())?;

    let mut others = Vec::new();
    while let Ok(block) = reserve.alloc(reserve.largest_run()?.min(run)) {
        others.push(block);
    }
    let block = promise.take()?;
    writeln!(
        out,
        "taken: {} pages at {}, {:?}",
        block.pages().get(),
        block.extent(),
        block.contiguity()
    )?;
    if others.iter().any(|other| other.extent().overlaps(block.extent())) {
        return Err("the promised run was given to somebody else".into());
    }
    Ok(())
}
