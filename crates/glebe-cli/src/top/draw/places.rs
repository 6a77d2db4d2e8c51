//! [`places`] divides the rows of the terminal among the parts of the picture.

use ratatui::layout::Rect;

use super::super::screen::Focus;

/// Parts from top to bottom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Head,
    Reserves,
    /// The picked reserve.
    Detail,
    /// Its times to give a block.
    Times,
    Leases,
    Notes,
    Keys,
}

pub const PARTS: usize = 7;

/// Divides the rows. `wants` holds the rows that each part can use. The parts that a user needs
/// most get rows first. Rows that no part wants are below the reserves.
pub fn places(area: Rect, wants: [u16; PARTS], focus: Focus) -> [Rect; PARTS] {
    const ALL: u16 = u16::MAX;
    // Names of columns and three reserves; a line of space, two of names, and three leases.
    let (reserves, leases) = ((Part::Reserves, 4), (Part::Leases, 6));
    let tables = match focus {
        Focus::Reserves => [reserves, (Part::Detail, ALL), leases],
        Focus::Leases => [leases, reserves, (Part::Detail, ALL)],
    };
    let rest = match focus {
        Focus::Reserves => [Part::Reserves, Part::Leases],
        Focus::Leases => [Part::Leases, Part::Reserves],
    };
    let first = [(Part::Head, 1), (Part::Keys, ALL)];
    let others = [Part::Head, Part::Notes, Part::Times].into_iter().chain(rest);
    let order = first.into_iter().chain(tables).chain(others.map(|part| (part, ALL)));
    let (mut rows, mut left) = ([0; PARTS], area.height);
    for (part, most) in order {
        let nth = part as usize;
        let had: u16 = rows[nth];
        let more = wants[nth].min(most).saturating_sub(had).min(left);
        rows[nth] += more;
        left -= more;
    }
    rows[Part::Reserves as usize] += left;
    let mut y = area.y;
    rows.map(|height| {
        let place = Rect { y, height, ..area };
        y += height;
        place
    })
}

/// Returns the places of the title, of a page, and of the keys.
pub fn page_places(area: Rect) -> [Rect; 3] {
    let title = area.height.min(1);
    let keys = (area.height - title).min(1);
    let text = area.height - title - keys;
    let mut y = area.y;
    [title, text, keys].map(|height| {
        let place = Rect { y, height, ..area };
        y += height;
        place
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heights(height: u16, wants: [u16; PARTS], focus: Focus) -> [u16; PARTS] {
        let places = places(Rect::new(0, 0, 80, height), wants, focus);
        let mut y = 0;
        for place in places {
            assert_eq!(place.y, y, "no gap");
            y += place.height;
        }
        assert_eq!(y, height, "all rows");
        places.map(|place| place.height)
    }

    #[test]
    fn the_table_in_use_gets_rows_before_the_other() {
        let wants = [4, 51, 4, 2, 53, 1, 1];
        let by = |focus| [24, 10, 3, 1, 0].map(|height| heights(height, wants, focus));
        let [tall, small, three, one, none] = by(Focus::Reserves);
        assert_eq!(tall, [4, 6, 4, 2, 6, 1, 1]);
        assert_eq!(small, [1, 4, 4, 0, 0, 0, 1]);
        assert_eq!(three, [1, 1, 0, 0, 0, 0, 1]);
        assert_eq!((one, none), ([1, 0, 0, 0, 0, 0, 0], [0; PARTS]));
        let [tall, small, ..] = by(Focus::Leases);
        assert_eq!(tall, [4, 4, 4, 2, 8, 1, 1]);
        assert_eq!(small, [1, 2, 0, 0, 6, 0, 1]);
    }

    #[test]
    fn rows_that_no_part_wants_are_below_the_reserves() {
        let wants = [4, 2, 4, 2, 5, 0, 1];
        assert_eq!(heights(30, wants, Focus::Reserves), [4, 14, 4, 2, 5, 0, 1]);
    }

    #[test]
    fn a_page_has_all_rows_but_two() {
        let by = [24, 3, 2, 1, 0].map(|rows| page_places(Rect::new(0, 0, 80, rows)));
        let heights = by.map(|places| places.map(|place| place.height));
        assert_eq!(heights, [[1, 22, 1], [1, 1, 1], [1, 0, 1], [1, 0, 0], [0, 0, 0]]);
        assert_eq!(by[0].map(|place| place.y), [0, 1, 23]);
    }
}
