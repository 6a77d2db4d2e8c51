//! Physical memory as lines of text: a character for each so many blocks.

use glebe::sys::kpage::Use;
use glebe::units::Bytes;

use super::frames::most;
use super::FrameMap;

/// A picture has no more rows, gaps left out.
const ROWS_MAX: usize = 24;
/// Before the characters of a row: where it begins.
const LABEL: usize = 9;

const KINDS: [(Use, char, &str); 5] = [
    (Use::PoolInUse, '#', "pool, in use"),
    (Use::PoolIdle, 'o', "pool, idle"),
    (Use::Thp, 'T', "transparent huge"),
    (Use::Other, ':', "small pages, mixed"),
    (Use::Free, '.', "free"),
];

/// The map in lines of at most `columns` characters; narrower than 20 it does not become.
pub(super) fn draw(map: &FrameMap, columns: usize) -> String {
    let room = columns.max(20) - LABEL - 2;
    // A power of two, so that rows begin at round numbers.
    let cells = 1 << room.ilog2();
    let share = map.uses.len().div_ceil(cells * ROWS_MAX).max(1).next_power_of_two();
    let cell = map.block.get().saturating_mul(share as u64);
    let mut text = format!("{}\n{}\n", map.title, map.subtitle);
    for (of, sign, name) in KINDS {
        let blocks = map.uses.iter().filter(|there| **there == of).count() as u64;
        let all = Bytes::new(blocks * map.block.get());
        text += &format!("  {sign} {name:<20}{all:>10}\n");
    }
    text += &format!("  each {}, a row {}\n", Bytes::new(cell), Bytes::new(cell * cells as u64));
    let drawn: Vec<Use> = map.uses.chunks(share).map(most).collect();
    for (nth, row) in drawn.chunks(cells).enumerate() {
        // Where the machine has no memory there is nothing to see.
        if row.iter().all(|of| *of == Use::Absent) {
            continue;
        }
        let start = Bytes::new(cell * (nth * cells) as u64).to_string();
        let sign = |of: &Use| KINDS.iter().find(|(kind, ..)| kind == of).map_or(' ', |k| k.1);
        let line: String = row.iter().map(sign).collect();
        text += &format!("{start:>LABEL$}  {}\n", line.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_has_a_place_and_no_line_is_too_long() {
        let mut uses = vec![Use::Free; 3000];
        uses[0] = Use::PoolIdle;
        uses[2999] = Use::PoolInUse;
        uses[1000..1400].fill(Use::Absent);
        let (title, subtitle) = ("Physical memory".into(), "of a test".into());
        let map = FrameMap { title, subtitle, block: Bytes::mib(2), uses };
        for columns in [0, 20, 40, 80, 81, 200] {
            let text = draw(&map, columns);
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest.unwrap() <= columns.max(40), "{columns}\n{text}");
            let rows: Vec<&str> = text.lines().filter(|line| line.contains('.')).collect();
            assert!(rows.len() <= ROWS_MAX + 1, "{columns}\n{text}");
            let first = text.lines().find(|line| line.starts_with("      0 B"));
            assert!(first.unwrap().starts_with("      0 B  o."), "{text}");
            assert!(text.trim_end().ends_with('#'), "{text}");
        }
        let text = draw(&map, 80);
        assert!(
            text.contains("each 2 MiB, a row 128 MiB") || text.contains("each 4 MiB"),
            "{text}"
        );
    }
}
