//! Tries once to get contiguous memory, for `scripts/aged/accept.py`, which judges the result.
//!
//! `aged_try run|search|reserve|blocks LEN`: a required run of LEN bytes from `Contig`, the run
//! with a search of all spare memory, a default reserve, or the run from evacuated memory blocks.
//! Prints JSON, holds the memory until its standard input ends, gives it back and prints the time.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use glebe::contig::{Contig, Source};
use glebe::internal::sys::machine::meminfo;
use glebe::internal::sys::page_size;
use glebe::reserve::Reserve;
use glebe::units::Bytes;
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(60);

type Failure = Box<dyn std::error::Error>;

enum Had {
    Contig(Box<Contig>),
    Reserve(Reserve),
}

impl Had {
    fn contig(&self) -> &Contig {
        match self {
            Self::Contig(contig) => contig,
            Self::Reserve(reserve) => reserve.contig(),
        }
    }
}

/// Returns the memory that a search may take: available memory less 1 GiB or a tenth, whichever is
/// more.
fn spare() -> Result<Bytes, Failure> {
    let available = meminfo::available()?;
    Ok(available.saturating_sub(Bytes::gib(1).max(Bytes::new(available.get() / 10))))
}

fn attempt(what: &str, len: Bytes) -> Result<Had, Failure> {
    let options = Contig::options().require_run(len);
    Ok(match what {
        "run" => Had::Contig(options.build(len)?.into()),
        "search" => Had::Contig(options.search(spare()?).search_time(PATIENCE).build(len)?.into()),
        "reserve" => Had::Reserve(Reserve::new(len)?),
        "blocks" => Had::Contig(options.source(Source::Blocks).build(len)?.into()),
        other => return Err(format!("{other}: run, search, reserve or blocks").into()),
    })
}

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let (Some(what), Some(len)) = (args.next(), args.next()) else {
        return Err("usage: aged_try run|search|reserve|blocks LEN".into());
    };
    let len = Bytes::new(len.parse()?);
    let mut out = std::io::stdout();
    let start = Instant::now();
    let had = attempt(&what, len);
    let ms = start.elapsed().as_secs_f64() * 1e3;
    let why = had.as_ref().err().map(ToString::to_string);
    let Ok(had) = had else {
        return Ok(writeln!(out, "{}", json!({ "had": false, "ms": ms, "why": why }))?);
    };
    let contig = had.contig();
    let line = json!({
        "had": true,
        "ms": ms,
        "address": contig.mapping().addr(),
        "len": contig.len().get(),
        "longest": contig.longest_run().bytes(page_size()).get(),
        "source": contig.source().to_string(),
        "why": contig.why_not_better().join("; "),
    });
    writeln!(out, "{line}")?;
    out.flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let start = Instant::now();
    drop(had);
    writeln!(out, "{}", json!({ "given_back_ms": start.elapsed().as_secs_f64() * 1e3 }))?;
    Ok(())
}
