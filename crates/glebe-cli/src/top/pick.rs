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

    /// Returns the place of the picked row. The first row stands for one that is not there, which
    /// may come back with the next look.
    pub fn at<'a>(&self, rows: impl IntoIterator<Item = &'a K>) -> Option<usize>
    where
        K: 'a,
    {
        let mut rows = rows.into_iter().peekable();
        rows.peek()?;
        Some(rows.position(|row| self.0.as_ref() == Some(row)).unwrap_or(0))
    }

    /// Picks the first row, if none was picked before.
    pub fn settle(&mut self, first: Option<&K>) {
        if self.0.is_none() {
            self.0 = first.cloned();
        }
    }

    pub fn step(&mut self, rows: &[&K], step: Step) {
        if let Some(at) = self.at(rows.iter().copied()) {
            self.0 = Some(rows[stepped(at, rows.len(), step)].clone());
        }
    }
}

/// Returns the place of a row after a step from `at`, of `count` rows.
pub fn stepped(at: usize, count: usize, step: Step) -> usize {
    let last = count.saturating_sub(1);
    let by = |rows: isize| at.saturating_add_signed(rows).min(last);
    match step {
        Step::Up => by(-1),
        Step::Down => by(1),
        Step::PageUp => by(-PAGE),
        Step::PageDown => by(PAGE),
        Step::First => 0,
        Step::Last => last,
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
        let numbers: Vec<i32> = (0..25).collect();
        let (rows, mut pick) = (numbers.iter().collect::<Vec<_>>(), Pick::none());
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
            assert_eq!(pick.at(&numbers), Some(row), "{step:?}: {pick:?}");
        }
        pick.step(&[], Step::Down);
        assert_eq!(pick.at([]), None);
    }

    #[test]
    fn the_pick_stays_with_its_row() {
        let mut pick = Pick::none();
        pick.settle(Some(&3));
        pick.settle(Some(&5));
        assert_eq!(pick.at(&[5, 3]), Some(1));
        assert_eq!(pick.at(&[5, 4]), Some(0), "the first, while it is away");
        assert_eq!(pick.at(&[5, 4, 3]), Some(2), "it came back");
        pick.step(&[&5, &4], Step::Down);
        assert_eq!(pick.at(&[3, 4]), Some(1), "a step picks another");
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
