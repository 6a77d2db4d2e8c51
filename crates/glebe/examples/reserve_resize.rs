//! Three times grows a reserve, fills it with cached pages, and shrinks it. Arguments: MiB to add
//! and remove, and `plain` or `hugetlb`.

use std::io::Write;
use std::time::Instant;

use glebe::contig::{Contig, Source};
use glebe::page_size;
use glebe::reserve::{Reserve, Resized};
use glebe::units::{Bytes, Pages};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout();
    let mut args = std::env::args().skip(1);
    let more = Bytes::mib(args.next().map_or(Ok(32), |mib| mib.parse())?);
    let options = match args.next().as_deref() {
        Some("plain") => Contig::options().source(Source::Plain),
        Some("hugetlb") => Contig::options().source(Source::HUGETLB_2M),
        _ => Contig::options(),
    };
    let first = Bytes::mib(16);
    let reserve = Reserve::options().room(first + more).memory(options).build(first)?;
    writeln!(out, "{} of {}, room for {}", first, reserve.footing()?.source, reserve.room())?;
    let pool = reserve.page_cache().namespace("example")?;
    let page = vec![7; page_size().bytes().as_usize()];
    for round in 0..3 {
        let begin = Instant::now();
        let Resized { len, longest_run, .. } = reserve.grow(more)?;
        writeln!(out, "{len} came in {:?}, longest run {longest_run}", begin.elapsed())?;
        for index in 0..2 * reserve.len().get() {
            pool.put(round, index, &page)?;
        }
        let cached = reserve.stats().live;
        let begin = Instant::now();
        let gone = reserve.shrink(more)?;
        let took = begin.elapsed();
        let dropped = Pages::new(cached.get() - reserve.stats().live.get());
        writeln!(out, "{} went in {took:?}, and {dropped} cached pages with it", gone.len)?;
    }
    reserve.stats().check()?;
    Ok(())
}
