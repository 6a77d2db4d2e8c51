//! `glebe contig map` draws physical memory in frame order, as text, JSON or an SVG file.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;

use glebe::internal::sys::machine::absent::mark_absent;
use glebe::internal::sys::machine::kpage::{runs, uses, Use};
use glebe::internal::sys::machine::memory_block::MemoryBlocks;
use glebe::page_size;
use glebe::units::{Bytes, Pages};

use super::map_json;
use super::nodes::{views, NodeView};
use super::status::block;
use crate::Outcome;

const ROWS_MAX: usize = 24;
const LABEL: usize = 9;
const COLUMNS: usize = 80;
/// Cells in a row of an SVG file; a power of two.
const CELLS: usize = 512;

const KINDS: [(Use, char, &str, &str); 5] = [
    (Use::PoolInUse, '#', "#2563eb", "pool, in use"),
    (Use::PoolIdle, 'o', "#f2b134", "pool, idle"),
    (Use::Thp, 'T', "#8a5cc2", "transparent huge"),
    (Use::Other, ':', "#6b7280", "small pages, mixed"),
    (Use::Free, '.', "#e4e8ec", "free"),
];

/// The form of a map.
#[derive(Clone, Copy)]
pub enum Form<'a> {
    Text,
    Json,
    /// A picture in this file.
    Svg(&'a Path),
}

pub fn run(form: Form<'_>, out: &mut dyn Write) -> Outcome {
    let (page, size) = (page_size(), block());
    let pages = size.bytes().pages_down(page);
    let mut uses = uses(pages)?;
    if let Ok(blocks) = MemoryBlocks::machine() {
        mark_absent(&mut uses, pages, &blocks)?;
    }
    let views = views(Some(&uses), size)?;
    if let Form::Json = form {
        let value = map_json::value(size, &uses, &views);
        serde_json::to_writer_pretty(&mut *out, &value).map_err(io::Error::from)?;
        return Ok(writeln!(out)?);
    }
    let runs = runs(&uses, pages, Use::is_pool);
    let longest = runs.iter().map(|(_, len)| len.bytes(page)).max().unwrap_or(Bytes::ZERO);
    let free = longest_free(&uses);
    let free_len = Bytes::new(free.len() as u64 * size.bytes().get());
    let there = uses.iter().filter(|of| **of != Use::Absent).count() as u64;
    let all = Bytes::new(there * size.bytes().get());
    let number = match runs.len() {
        1 => "1 run".to_owned(),
        number => format!("{number} runs"),
    };
    let told = format!(
        "longest free run {free_len}; {number} of huge pages, the longest {longest}, in {all}"
    );
    let head = format!("{told}. In a virtual machine the frames are the guest's.");
    // The head says all of a single node.
    let nodes: Vec<String> = match views.len() {
        0 | 1 => Vec::new(),
        _ => views.iter().filter_map(NodeView::map_line).collect(),
    };
    let Form::Svg(file) = form else {
        let named = || std::env::var("COLUMNS").ok()?.parse().ok();
        let columns = terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
        let columns = columns.or_else(named).unwrap_or(COLUMNS);
        return Ok(out.write_all(text((&head, &nodes), size.bytes(), &uses, columns).as_bytes())?);
    };
    let drawn = svg((&head, &nodes), size.bytes(), &uses, &free);
    fs::write(file, drawn).map_err(|e| format!("write({}): {e}", file.display()))?;
    writeln!(out, "{told}: {}", file.display())?;
    nodes.iter().try_for_each(|node| writeln!(out, "{node}"))?;
    Ok(())
}

/// Returns the indices of the longest run of free blocks; empty if no block is free.
fn longest_free(uses: &[Use]) -> Range<usize> {
    let runs = runs(uses, Pages::new(1), |of| of == Use::Free).into_iter();
    let longest = runs.max_by_key(|(_, len)| *len);
    longest.map_or(0..0, |(start, len)| {
        let start = start.get() as usize;
        start..start + len.get() as usize
    })
}

/// Returns the bytes of a cell and, for each row, its start in bytes and its cells. Skips rows
/// without memory.
fn rows(block: Bytes, uses: &[Use], cells: usize) -> (Bytes, Vec<(Bytes, Vec<Use>)>) {
    let share = uses.len().div_ceil(cells * ROWS_MAX).max(1).next_power_of_two();
    let cell = Bytes::new(block.get().saturating_mul(share as u64));
    let drawn: Vec<Use> = uses.chunks(share).map(most).collect();
    let rows = drawn.chunks(cells).enumerate();
    let rows = rows.filter(|(_, row)| row.iter().any(|of| *of != Use::Absent));
    let start = |nth: usize| Bytes::new(cell.get() * (nth * cells) as u64);
    (cell, rows.map(|(nth, row)| (start(nth), row.to_vec())).collect())
}

/// Returns the use to draw for a cell: `PoolInUse` or else `PoolIdle` if any block has it,
/// otherwise the most frequent use.
fn most(uses: &[Use]) -> Use {
    let of = |kind: Use| uses.iter().filter(|of| **of == kind).count();
    for pool in [Use::PoolInUse, Use::PoolIdle] {
        if of(pool) > 0 {
            return pool;
        }
    }
    let rest = [Use::Free, Use::Thp, Use::Other, Use::Absent];
    rest.into_iter().max_by_key(|kind| of(*kind)).unwrap_or(Use::Absent)
}

fn bytes_of(kind: Use, block: Bytes, uses: &[Use]) -> Bytes {
    Bytes::new(uses.iter().filter(|of| **of == kind).count() as u64 * block.get())
}

/// Returns the map, with rows of at most `columns` characters; fewer than 20 count as 20. The lines
/// of several nodes follow the head.
fn text((head, nodes): (&str, &[String]), block: Bytes, uses: &[Use], columns: usize) -> String {
    // A power of two makes rows begin at round numbers.
    let cells = 1 << (columns.max(20) - LABEL - 2).ilog2();
    let (cell, rows) = rows(block, uses, cells);
    let mut text = format!("Physical memory\n{head}\n");
    nodes.iter().for_each(|node| text += &format!("{node}\n"));
    for (kind, sign, _, name) in KINDS {
        let all = bytes_of(kind, block, uses).to_string();
        text += &format!("  {sign} {name:<20}{all:>10}\n");
    }
    text += &format!("  each {cell}, a row {}\n", Bytes::new(cell.get() * cells as u64));
    for (start, row) in rows {
        let sign = |of: &Use| KINDS.iter().find(|(kind, ..)| kind == of).map_or(' ', |k| k.1);
        let line: String = row.iter().map(sign).collect();
        let start = start.to_string();
        text += &format!("{start:>LABEL$}  {}\n", line.trim_end());
    }
    text
}

/// Returns an SVG picture, with the lines of several nodes above it. A rectangle shows adjacent
/// cells of one use, but none shows absent memory. A line marks the blocks `free`.
fn svg(
    (head, nodes): (&str, &[String]),
    block: Bytes,
    uses: &[Use],
    free: &Range<usize>,
) -> String {
    const ROW: usize = 16;
    const LEFT: usize = 80;
    const LETTER: usize = 7;
    const LINE: &str = "#d1570c";
    let (cell, rows) = rows(block, uses, CELLS);
    let mut body = String::new();
    let mut line = |x: usize, y: usize, text: &str| {
        let _ = writeln!(body, "<text x=\"{x}\" y=\"{y}\">{text}</text>");
    };
    line(10, 20, &format!("Physical memory: {head}"));
    line(10, 40, &format!("Each cell is {cell}. The line marks the longest free run."));
    nodes.iter().zip(0..).for_each(|(node, nth)| line(10, 60 + nth * ROW, node));
    let below = nodes.len() * ROW;
    let mut legend = Vec::new();
    let mut at = LEFT;
    for (kind, _, _, name) in KINDS {
        let text = format!("{name} {}", bytes_of(kind, block, uses));
        line(at + 18, 60 + below, &text);
        legend.push((at, kind));
        at += 18 + LETTER * text.len() + 20;
    }
    for (nth, (start, _)) in rows.iter().enumerate() {
        line(10, 90 + below + nth * ROW, &start.to_string());
    }
    let mut rect = |x: usize, y: usize, width: usize, height: usize, colour: &str| {
        let place = format!("x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"");
        let _ = writeln!(body, "<rect {place} fill=\"{colour}\"/>");
    };
    let colour = |kind: Use| KINDS.iter().find(|(of, ..)| *of == kind).map(|kind| kind.2);
    for (x, kind) in legend {
        colour(kind).iter().for_each(|colour| rect(x, 49 + below, 13, 13, colour));
    }
    let share = (cell.get() / block.get()) as usize;
    for (nth, (start, row)) in rows.iter().enumerate() {
        let (y, mut at) = (79 + below + nth * ROW, 0);
        for part in row.chunk_by(|a, b| a == b) {
            colour(part[0])
                .iter()
                .for_each(|colour| rect(LEFT + 2 * at, y, 2 * part.len(), 11, colour));
            at += part.len();
        }
        let first = (start.get() / cell.get()) as usize;
        let marked =
            first.max(free.start / share)..(first + row.len()).min(free.end.div_ceil(share));
        if !marked.is_empty() {
            rect(LEFT + 2 * (marked.start - first), y + 12, 2 * marked.len(), 2, LINE);
        }
    }
    let (width, height) = (LEFT + 2 * CELLS + 10, 100 + below + rows.len() * ROW);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<title>Physical memory</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uses() -> Vec<Use> {
        let mut uses = vec![Use::Free; 3000];
        uses[0] = Use::PoolIdle;
        uses[2999] = Use::PoolInUse;
        uses[1000..1400].fill(Use::Absent);
        uses
    }

    #[test]
    fn every_block_has_a_place_and_no_line_is_too_long() {
        for columns in [0, 20, 40, 80, 81, 200] {
            let text = text(("of a test", &[]), Bytes::mib(2), &uses(), columns);
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest.unwrap() <= columns.max(40), "{columns}\n{text}");
            let rows: Vec<&str> = text.lines().filter(|line| line.contains('.')).collect();
            assert!(rows.len() <= ROWS_MAX + 1, "{columns}\n{text}");
            let first = text.lines().find(|line| line.starts_with("      0 B"));
            assert!(first.unwrap().starts_with("      0 B  o."), "{text}");
            assert!(text.trim_end().ends_with('#'), "{text}");
        }
        let text = text(("", &[]), Bytes::mib(2), &uses(), 80);
        assert!(
            text.contains("each 2 MiB, a row 128 MiB") || text.contains("each 4 MiB"),
            "{text}"
        );
    }

    #[test]
    fn a_picture_has_a_rectangle_for_each_run() {
        let uses = uses();
        let svg = svg(("of a test", &[]), Bytes::mib(2), &uses, &longest_free(&uses));
        let of = |colour: &str| svg.matches(&format!("fill=\"{colour}\"")).count();
        // The legend adds one rectangle for each use, and row ends split free runs.
        assert_eq!((of("#2563eb"), of("#f2b134"), of("#8a5cc2")), (2, 2, 1));
        assert!(of("#e4e8ec") >= 6, "{svg}");
        assert!(of("#d1570c") >= 1, "{svg}");
    }

    #[test]
    fn the_longest_free_run_is_marked_in_each_row_that_it_crosses() {
        let uses = uses();
        assert_eq!(longest_free(&uses), 1400..2999);
        let svg = svg(("of a test", &[]), Bytes::mib(2), &uses, &longest_free(&uses));
        let marks = svg.lines().filter(|line| line.contains("#d1570c"));
        let width = |line: &str| -> usize {
            line.split("width=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap()
        };
        // Each block is one cell, two units wide.
        assert_eq!(marks.map(width).sum::<usize>(), 2 * (2999 - 1400));
        assert_eq!(longest_free(&[Use::Other]), 0..0);
    }

    #[test]
    fn the_lines_of_nodes_move_the_rows_down() {
        let (uses, nodes) = (uses(), ["node 0: a".to_owned(), "node 1: b".to_owned()]);
        let text = text(("of a test", &nodes), Bytes::mib(2), &uses, 80);
        assert!(text.starts_with("Physical memory\nof a test\nnode 0: a\nnode 1: b\n"), "{text}");
        let heights = |nodes| {
            let svg = svg(("of a test", nodes), Bytes::mib(2), &uses, &longest_free(&uses));
            let number = |after: &str| -> usize {
                svg.split(after).nth(1).unwrap().split('"').next().unwrap().parse().unwrap()
            };
            let place = |text: &str| svg.find(text).map(|at| svg[..at].rfind("y=\"").unwrap() + 3);
            let lines = ["node 0: a", "node 1: b"]
                .map(|line| place(line).map(|at| svg[at..].split('"').next().unwrap().to_owned()));
            (number("height=\""), lines)
        };
        let (none, two) = (heights(&[]), heights(&nodes));
        assert_eq!(two.0, none.0 + 32);
        assert_eq!(none.1, [None, None]);
        assert_eq!(two.1, [Some("60".to_owned()), Some("76".to_owned())]);
    }
}
