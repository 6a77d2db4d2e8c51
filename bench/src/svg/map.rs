//! The map of a reserve: one square a granule, filled from below by tenants, then by first class.

use glebe::units::{Bytes, Pages};

use super::canvas::{width, Anchor, Canvas, LEFT, RIGHT};
use super::{MapCell, ReserveMap};

/// Above this many cells neighbours share a square.
const SQUARES_MAX: usize = 1536;

/// Draws the map below what is on the canvas.
pub(super) fn draw(canvas: &mut Canvas, map: &ReserveMap) {
    canvas.heading(&map.title, &map.subtitle);
    let total = sum(&map.cells);
    legend(canvas, map, total);
    let share = map.cells.len().div_ceil(SQUARES_MAX).max(1);
    let squares: Vec<MapCell> = map.cells.chunks(share).map(sum).collect();
    grid(canvas, &squares);
    let most = squares.iter().map(|square| pages(*square)).max().unwrap_or(0);
    let bytes = Pages::new(most).checked_bytes(map.page).unwrap_or(Bytes::new(u64::MAX));
    let foot = match most {
        0 => "empty".into(),
        _ => format!("one square: {bytes}, in the order of addresses"),
    };
    canvas.text("d", Anchor::Start, LEFT, canvas.y + 14.0, &foot);
    canvas.y += 18.0;
}

/// Totals by holder as names, and as one bar.
fn legend(canvas: &mut Canvas, map: &ReserveMap, total: MapCell) {
    let all = pages(total).max(1);
    let holders = [
        ("first", "first class", total.first_class),
        ("tenant", "lent to tenants", total.tenant),
        ("free", "free", total.free),
    ];
    let mut x = LEFT;
    for (class, name, held) in holders {
        let bytes = Pages::new(held).checked_bytes(map.page).unwrap_or(Bytes::new(u64::MAX));
        let percent = held as f64 / all as f64 * 100.0;
        let text = format!("{name}  {bytes}  ({percent:.0} %)");
        canvas.rect(class, x, canvas.y, (13.0, 13.0), 3.0);
        canvas.text("l", Anchor::Start, x + 20.0, canvas.y + 11.0, &text);
        x += 20.0 + width(&text, 13.0) + 22.0;
    }
    canvas.y += 24.0;
    let mut x = LEFT;
    for (class, _, held) in holders {
        let w = (RIGHT - LEFT) * held as f64 / all as f64;
        canvas.rect(class, x, canvas.y, ((w - 1.0).max(w / 2.0), 8.0), 0.0);
        x += w;
    }
    canvas.y += 22.0;
}

/// The squares, row by row.
fn grid(canvas: &mut Canvas, squares: &[MapCell]) {
    let columns = match squares.len() {
        0..=48 => 16,
        49..=512 => 32,
        _ => 64,
    };
    let pitch = (RIGHT - LEFT) / columns as f64;
    let gap = if columns == 64 { 1.5 } else { 2.5 };
    let side = pitch - gap;
    for (i, &square) in squares.iter().enumerate() {
        let x = LEFT + (i % columns) as f64 * pitch + gap / 2.0;
        let y = canvas.y + (i / columns) as f64 * pitch;
        canvas.group("cell");
        cell(canvas, square, x, y, side);
        canvas.end_group();
    }
    canvas.y += squares.len().div_ceil(columns) as f64 * pitch + 4.0;
}

/// One square; one that has a single holder is one rounded rectangle.
fn cell(canvas: &mut Canvas, square: MapCell, x: f64, y: f64, side: f64) {
    const ROUND: f64 = 2.0;
    let all = pages(square).max(1) as f64;
    let tenant = side * square.tenant as f64 / all;
    let first = side * square.first_class as f64 / all;
    if tenant >= side || first >= side {
        let class = if tenant >= side { "tenant" } else { "first" };
        return canvas.rect(class, x, y, (side, side), ROUND);
    }
    canvas.rect("free", x, y, (side, side), ROUND);
    canvas.rect("tenant", x, y + side - tenant, (side, tenant), 0.0);
    canvas.rect("first", x, y + side - tenant - first, (side, first), 0.0);
}

fn sum(cells: &[MapCell]) -> MapCell {
    cells.iter().fold(MapCell::default(), |a, b| MapCell {
        free: a.free.saturating_add(b.free),
        first_class: a.first_class.saturating_add(b.first_class),
        tenant: a.tenant.saturating_add(b.tenant),
    })
}

fn pages(cell: MapCell) -> u64 {
    cell.free.saturating_add(cell.first_class).saturating_add(cell.tenant)
}
