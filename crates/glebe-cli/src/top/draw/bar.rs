//! A bar shows the parts of a reserve, each by a sign and a colour of its own.

use ratatui::style::Color;
use ratatui::text::{Line, Span};

use super::super::reserves::bytes;
use super::super::screen::Screen;
use super::colored;

pub struct Stripe {
    pub sign: char,
    pub color: Color,
    pub pages: u64,
    pub name: &'static str,
}

pub fn bar(screen: &Screen, width: usize, stripes: &[Stripe]) -> Line<'static> {
    let pages: Vec<u64> = stripes.iter().map(|stripe| stripe.pages).collect();
    let cells = filled(width.saturating_sub(2), &pages);
    let spans = stripes.iter().zip(cells).map(|(Stripe { sign, color, .. }, count)| {
        Span::styled(sign.to_string().repeat(count), colored(screen, *color))
    });
    let spans: Vec<Span> = ["[".into()].into_iter().chain(spans).chain(["]".into()]).collect();
    Line::from(spans)
}

pub fn legend(stripes: &[Stripe]) -> String {
    let one = |it: &Stripe| format!("{} {} {}", it.sign, it.name, bytes(it.pages));
    stripes.iter().map(one).collect::<Vec<_>>().join("  ")
}

/// Divides `width` cells by pages. Any pages have at least one cell, while there are cells.
fn filled(width: usize, pages: &[u64]) -> Vec<usize> {
    let sum: u128 = pages.iter().map(|pages| u128::from(*pages)).sum();
    let share = |pages: &u64| {
        let share = (u128::from(*pages) * width as u128).checked_div(sum).unwrap_or(0) as usize;
        share.max(usize::from(*pages > 0))
    };
    let mut cells: Vec<usize> = pages.iter().map(share).collect();
    let Some(most) = (0..pages.len()).max_by_key(|nth| pages[*nth]) else { return cells };
    let others: usize = cells.iter().sum::<usize>() - cells[most];
    cells[most] = width.saturating_sub(others);
    let mut left = width;
    for cell in &mut cells {
        *cell = left.min(*cell);
        left -= *cell;
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_full_and_shows_what_is_there() {
        for (width, pages) in [(10, [1, 1, 998]), (10, [0, 0, 0]), (1, [5, 5, 5]), (0, [1, 1, 1])] {
            let cells = filled(width, &pages);
            assert_eq!(cells.iter().sum::<usize>(), width, "{pages:?}");
        }
        assert_eq!(filled(10, &[1, 1, 998]), [1, 1, 8]);
        assert_eq!(filled(10, &[999, 1, 1]), [8, 1, 1]);
        assert_eq!(filled(11, &[5, 5, 0]), [5, 6, 0]);
        assert_eq!(filled(10, &[u64::MAX, u64::MAX, 0]), [5, 5, 0]);
        assert_eq!(filled(20, &[5, 5, 1, 9]), [5, 5, 1, 9]);
        assert_eq!(filled(20, &[]), [0; 0]);
    }
}
