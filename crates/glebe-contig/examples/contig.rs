//! Lists the transfers of a contiguous buffer for a device without an IOMMU.

use std::io::Write;

use glebe_contig::page_size;
use glebe_contig::units::Bytes;
use glebe_contig::{Contig, Proof};

const TRANSFER_MAX: Bytes = Bytes::mib(4);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout();
    let buffer = Contig::options().prefer_run(Bytes::mib(8)).build(Bytes::mib(16))?;
    writeln!(
        out,
        "{} of {}, held by {}",
        buffer.len(),
        buffer.source(),
        buffer.held_by().as_str()
    )?;
    writeln!(out, "{} runs, {}", buffer.runs().len(), buffer.proof())?;
    for reason in buffer.why_not_better() {
        writeln!(out, "not better: {reason}")?;
    }

    let (mut at, mut transfers) = (Bytes::ZERO, 0);
    while at < buffer.len() {
        let place = buffer.query(buffer.mapping().addr() + at.as_usize());
        let contiguous = place.map_or(page_size().bytes(), |place| place.contiguous);
        let len = contiguous.min(TRANSFER_MAX).min(buffer.len() - at);
        if let Some(frame) = place.and_then(|place| place.pfn) {
            writeln!(out, "transfer {transfers}: {len} from frame {frame}")?;
        }
        (at, transfers) = (at + len, transfers + 1);
    }
    if buffer.proof() != Proof::Frames {
        writeln!(out, "{transfers} transfers; frames are seen with CAP_SYS_ADMIN only")?;
    }

    let moved = buffer.verify()?;
    writeln!(out, "{} runs were moved since", moved.len())?;
    Ok(())
}
