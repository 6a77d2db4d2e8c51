//! `glebe contig release` returns free pages of the machine's pool to the system.

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;

use glebe::contig::{shrink_pool, PoolChange, PoolLock};
use glebe::units::{Bytes, PageSize, Pages};

use super::record::Recorded;
use super::reserve::page_of;
use crate::size::parse;
use crate::Outcome;

/// Options of `glebe contig release`.
#[derive(clap::Args)]
pub struct ReleaseArgs {
    /// Length, rounded up to whole pages, or `all`
    #[arg(value_parser = amount, required_unless_present = "record")]
    len: Option<Amount>,
    /// Size of a page, for example 2M or 1G; default: the machine's smallest huge page
    #[arg(long, value_parser = parse, value_name = "SIZE")]
    page: Option<Bytes>,
    /// Print the file that would be written, and write none
    #[arg(long)]
    dry_run: bool,
    /// Release at most the pages that FILE counts, by default all; those in use stay counted
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    record: Option<PathBuf>,
}

#[derive(Clone, Copy)]
enum Amount {
    All,
    Len(Bytes),
}

fn amount(text: &str) -> Result<Amount, String> {
    match text {
        "all" => Ok(Amount::All),
        _ => parse(text).map(Amount::Len).map_err(|error| format!("{error}; or all")),
    }
}

/// Shrinks the pool, unless `dry_run` is set. Fails if the pool can release fewer pages than the
/// given length has.
pub fn run(args: &ReleaseArgs, out: &mut dyn Write) -> Outcome {
    let size = page_of(args.page)?;
    let wanted = match args.len {
        None | Some(Amount::All) => None,
        Some(Amount::Len(len)) => Some(len.pages_up(size).get()),
    };
    if let Some(path) = &args.record {
        return recorded(Recorded::open(path, size)?, wanted, size, out);
    }
    let change = shrink_pool(size, wanted.unwrap_or(u64::MAX), args.dry_run)?;
    let PoolChange { before, pages: given, write: (path, number), .. } = change;
    let (of, verb) = (size.bytes(), if args.dry_run { "would write" } else { "wrote" });
    match given {
        0 => writeln!(out, "wrote nothing: none of {before} pages of {of} is free to go")?,
        _ => writeln!(out, "{verb} {number} to {}", path.display())?,
    }
    if given > 0 && !args.dry_run {
        let back = Pages::new(given).checked_bytes(size).unwrap_or_default();
        writeln!(out, "{before} pages of {of} before, {given} given back ({back})")?;
    }
    match wanted {
        Some(wanted) if given < wanted => Err(format!(
            "{given} of {wanted} pages of {of} could go; the rest is in use or promised"
        )
        .into()),
        _ => Ok(()),
    }
}

fn recorded(
    mut record: Recorded,
    wanted: Option<u64>,
    size: PageSize,
    out: &mut dyn Write,
) -> Outcome {
    let before = record.pages;
    let given = match wanted.unwrap_or(u64::MAX).min(before) {
        // The lock's holder undoes what a killed process left undone.
        0 => PoolLock::acquire().map(|_| 0)?,
        pages => given_back(&mut record, size, pages)?,
    };
    let (of, left) = (size.bytes(), record.pages);
    Ok(writeln!(out, "{given} of {before} pages of {of} given back; {left} stay counted")?)
}

/// Records the release first, so that a kill leaves no page on record that is gone.
fn given_back(record: &mut Recorded, size: PageSize, pages: u64) -> Result<u64, Box<dyn Error>> {
    record.begin(i64::try_from(pages).map_or(i64::MIN, |pages| -pages))?;
    match shrink_pool(size, pages, false) {
        Ok(PoolChange { pages: given, .. }) => {
            record.set(record.pages.saturating_sub(given))?;
            Ok(given)
        }
        Err(error) => {
            // The library has undone the change, or its next call does.
            record.set(record.pages)?;
            Err(error.into())
        }
    }
}
