//! `glebe contig explain` prints whether one run of a length is available now, and what would help.

use std::io::Write;
use std::path::Path;

use glebe::contig::{explain, Contig, Verdict};
use glebe::internal::sys::memory::pagemap::frames_visible;
use glebe::page_size;
use glebe::units::Bytes;

use crate::Outcome;

/// Prints the verdict; without `attempt`, `No` is an error. With `attempt`, allocates `len` and
/// writes the certificate to `file` if one is given.
pub fn run(len: Bytes, attempt: bool, file: Option<&Path>, out: &mut dyn Write) -> Outcome {
    let run = explain(len)?;
    writeln!(out, "{}", answer(run.verdict, len))?;
    for line in std::iter::once(&run.why).chain(&run.helps) {
        writeln!(out, "    {line}")?;
    }
    if !frames_visible() {
        let hidden = "page frames are hidden from this process, so that contiguity is proved only \
            within one page of the source; CAP_SYS_ADMIN shows them";
        writeln!(out, "{hidden}")?;
    }
    if !attempt {
        return match run.verdict {
            Verdict::No => Err(format!("{len} in one piece cannot be had now").into()),
            _ => Ok(()),
        };
    }
    let memory = Contig::options().prefer_run(len).build(len)?;
    let longest = memory.longest_run().bytes(page_size());
    writeln!(out, "tried: {} of {}, longest run {longest}", memory.len(), memory.source())?;
    writeln!(out, "    {}; held by {}", memory.proof(), memory.held_by())?;
    for why in memory.why_not_better() {
        writeln!(out, "    {why}")?;
    }
    if let Some(file) = file {
        memory.certificate().write(file)?;
        writeln!(out, "    certificate in {}", file.display())?;
    }
    Ok(())
}

fn answer(verdict: Verdict, len: Bytes) -> String {
    match verdict {
        Verdict::Now => format!("yes: {len} in one piece can be had now"),
        Verdict::ByGrowth => {
            format!("yes, by growth: {len} in one piece can be had if the kernel finds the pages")
        }
        Verdict::No => format!("no: {len} in one piece cannot be had now"),
        Verdict::Unknown => format!("unknown: whether {len} in one piece can be had"),
    }
}
