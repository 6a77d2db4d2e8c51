//! [`Pick`] is the picked row of a table. It stays with its row while the order changes.

use std::ops::Range;

/// Rows of a step by a page.
const PAGE: isize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
}

#[derive(Clone, Debug)]
pub struct Pick<K>(Option<K>);

impl<K: Clone + PartialEq> Pick<K> {
    pub fn none() -> Self {
        Self(None)
    }

    pub fn is(&self, row: &K) -> bool {
        self.0.as_ref() == Some(row)
    }

    /// Picks the first row if the picked one has gone.
    pub fn settle(&mut self, rows: &[K]) {
        if !rows.iter().any(|row| self.is(row)) {
            self.0 = rows.first().cloned();
        }
    }

    pub fn step(&mut self, rows: &[K], step: Step) {
        let at = rows.iter().position(|row| self.is(row)).unwrap_or(0);
        let last = rows.len().saturating_sub(1);
        let by = |rows: isize| at.saturating_add_signed(rows).min(last);
        let at = match step {
            Step::Up => by(-1),
            Step::Down => by(1),
            Step::PageUp => by(-PAGE),
            Step::PageDown => by(PAGE),
            Step::First => 0,
            Step::Last => last,
        };
        self.0 = rows.get(at).cloned();
    }
}

/// Returns the `room` rows of `count` that are shown: the picked row in the middle, if possible.
pub fn window(count: usize, picked: Option<usize>, room: usize) -> Range<usize> {
    let first = picked.unwrap_or(0).saturating_sub(room / 2).min(count.saturating_sub(room));
    first..count.min(first + room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_end_at_the_first_and_the_last_row() {
        let (rows, mut pick) = ((0..25).collect::<Vec<_>>(), Pick::none());
        pick.settle(&rows);
        let steps = [
            (Step::Up, 0),
            (Step::Down, 1),
            (Step::PageDown, 11),
            (Step::PageDown, 21),
            (Step::PageDown, 24),
            (Step::PageUp, 14),
            (Step::Last, 24),
            (Step::Down, 24),
            (Step::First, 0),
        ];
        for (step, row) in steps {
            pick.step(&rows, step);
            assert!(pick.is(&row), "{step:?}: {pick:?}");
        }
        pick.step(&[], Step::Down);
        assert!(!pick.is(&0), "{pick:?}");
    }

    #[test]
    fn the_pick_stays_with_its_row() {
        let mut pick = Pick::none();
        pick.settle(&[3, 4]);
        pick.settle(&[5, 3]);
        assert!(pick.is(&3));
        pick.settle(&[5, 4]);
        assert!(pick.is(&5));
    }

    #[test]
    fn a_window_has_the_picked_row_and_no_gap() {
        let all = [(0, 0..5), (2, 0..5), (3, 1..6), (25, 23..28), (49, 45..50)];
        for (picked, rows) in all {
            assert_eq!(window(50, Some(picked), 5), rows);
        }
        assert_eq!(
            [window(3, Some(2), 5), window(3, None, 0), window(0, None, 5)],
            [0..3, 0..0, 0..0]
        );
    }
}
