//! `glebe contig explain`: what could be had now, why not, and what would help.

use std::io::Write;
use std::path::Path;

use glebe::contig::{explain, Contig, Verdict};
use glebe::sys::page_size;
use glebe::sys::pagemap::frames_visible;
use glebe::units::Bytes;

use crate::Outcome;

/// Prints the outlook, and with `attempt` what came.
pub fn run(len: Bytes, attempt: bool, file: Option<&Path>, out: &mut dyn Write) -> Outcome {
    let all = explain(len)?;
    for outlook in &all {
        writeln!(out, "{}: {}", outlook.source, outlook.verdict.as_str())?;
        writeln!(out, "    {}", outlook.why)?;
        for help in &outlook.helps {
            writeln!(out, "    {help}")?;
        }
    }
    if !frames_visible() {
        let hidden = "page frames are hidden from this process, so that contiguity is proved only \
            within one page of the source; CAP_SYS_ADMIN shows them";
        writeln!(out, "{hidden}")?;
    }
    if !attempt {
        return match all.iter().any(|outlook| outlook.verdict != Verdict::No) {
            true => Ok(()),
            false => Err(format!("{len} cannot be had now").into()),
        };
    }
    let memory = Contig::options().prefer_run(len).map(len)?;
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
