//! `glebe contig map`: a picture of physical memory, as text or in a file.

use std::io::Write;
use std::path::Path;

use glebe::sys::kpage::{pool_runs, uses, Use};
use glebe::sys::page_size;
use glebe::units::Bytes;
use glebe_bench::svg::{frames, frames_text, FrameMap};
use glebe_bench::terminal;
use glebe_bench::whole_file;

use super::status::block;
use crate::Outcome;

/// Draws it.
pub fn run(file: Option<&Path>, out: &mut dyn Write) -> Outcome {
    let (page, size) = (page_size(), block());
    let pages = size.bytes().pages_down(page);
    let uses = uses(pages)?;
    let runs = pool_runs(&uses, pages);
    let longest = runs.iter().map(|(_, len)| len.bytes(page)).max().unwrap_or(Bytes::ZERO);
    let there = uses.iter().filter(|of| **of != Use::Absent).count() as u64;
    let all = Bytes::new(there * size.bytes().get());
    let told = format!("{} runs of huge pages, the longest {longest}, in {all}", runs.len());
    let map = FrameMap {
        title: "Physical memory".into(),
        subtitle: format!("{told}. In a virtual machine the frames are the guest's."),
        block: size.bytes(),
        uses,
    };
    let Some(file) = file else {
        return Ok(out.write_all(frames_text(&map, terminal::columns()).as_bytes())?);
    };
    whole_file::write(file, frames(&map).as_bytes())?;
    writeln!(out, "{told}: {}", file.display())?;
    Ok(())
}
