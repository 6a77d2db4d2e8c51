//! Physical memory, block by block in the order of frames: runs of a pool, and what lies between.

use glebe::sys::kpage::Use;
use glebe::units::Bytes;

use super::canvas::{width, Anchor, Canvas, LEFT, RIGHT};
use super::FrameMap;

/// Blocks a row: a GiB of 2 MiB.
const COLUMNS: usize = 512;
/// Above this many rows neighbours share one.
const ROWS_MAX: usize = 64;
const ROW: f64 = 15.0;

const KINDS: [(Use, &str, &str); 5] = [
    (Use::PoolInUse, "first", "pool, in use"),
    (Use::PoolIdle, "tenant", "pool, idle"),
    (Use::Thp, "s3 m", "transparent huge"),
    (Use::Other, "s5 m", "small pages, mixed"),
    (Use::Free, "free", "free"),
];

/// Draws the map below what is on the canvas.
pub(super) fn draw(canvas: &mut Canvas, map: &FrameMap) {
    canvas.heading(&map.title, &map.subtitle);
    legend(canvas, map);
    let share = map.uses.len().div_ceil(COLUMNS * ROWS_MAX).max(1);
    let cells: Vec<Use> = map.uses.chunks(share).map(most).collect();
    let label = 64.0;
    let cell = (RIGHT - LEFT - label) / COLUMNS as f64;
    for (n, row) in cells.chunks(COLUMNS).enumerate() {
        // Where the machine has no memory there is nothing to see.
        if row.iter().all(|of| *of == Use::Absent) {
            continue;
        }
        let start = Bytes::new((n * COLUMNS * share) as u64 * map.block.get());
        canvas.text("d", Anchor::End, LEFT + label - 8.0, canvas.y + 10.5, &start.to_string());
        let mut at = 0;
        for part in row.chunk_by(|a, b| a == b) {
            let x = LEFT + label + at as f64 * cell;
            if let Some((_, class, _)) = KINDS.iter().find(|(of, ..)| *of == part[0]) {
                canvas.rect(class, x, canvas.y, (part.len() as f64 * cell, ROW - 2.0), 0.0);
            }
            at += part.len();
        }
        canvas.y += ROW;
    }
    let block = Bytes::new(map.block.get() * share as u64);
    let foot = format!(
        "{} a row, by frame number; each block {block}",
        Bytes::new(block.get() * COLUMNS as u64)
    );
    canvas.text("d", Anchor::Start, LEFT, canvas.y + 14.0, &foot);
    canvas.y += 18.0;
}

fn legend(canvas: &mut Canvas, map: &FrameMap) {
    let mut x = LEFT;
    for (of, class, name) in KINDS {
        let blocks = map.uses.iter().filter(|there| **there == of).count() as u64;
        let text = format!("{name}  {}", Bytes::new(blocks * map.block.get()));
        canvas.rect(class, x, canvas.y, (13.0, 13.0), 3.0);
        canvas.text("l", Anchor::Start, x + 20.0, canvas.y + 11.0, &text);
        x += 20.0 + width(&text, 13.0) + 8.0;
        if x > RIGHT - 150.0 {
            (x, canvas.y) = (LEFT, canvas.y + 20.0);
        }
    }
    canvas.y += 26.0;
}

/// The use of neighbours that share a cell: a pool's if any of them is, else that of most.
pub(super) fn most(uses: &[Use]) -> Use {
    let of = |kind: Use| uses.iter().filter(|of| **of == kind).count();
    for pool in [Use::PoolInUse, Use::PoolIdle] {
        if of(pool) > 0 {
            return pool;
        }
    }
    let rest = [Use::Free, Use::Thp, Use::Other, Use::Absent];
    rest.into_iter().max_by_key(|kind| of(*kind)).unwrap_or(Use::Absent)
}
