//! Joins and cuts lists of extents in address order.

use crate::extent::Extent;

/// Sorts extents and joins those that overlap or touch.
pub fn merged(mut extents: Vec<Extent>) -> Vec<Extent> {
    if !extents.is_sorted() {
        extents.sort_unstable();
    }
    let mut merged = Vec::with_capacity(extents.len());
    for extent in extents {
        push(&mut merged, extent);
    }
    merged
}

/// Adds `next`, which must not start before the last extent. Joins extents that overlap or touch.
pub fn push(extents: &mut Vec<Extent>, next: Extent) {
    match extents.last_mut() {
        Some(last) if next.start() <= last.end() => {
            *last = last.joined(next);
        }
        _ => extents.push(next),
    }
}

/// Returns the parts outside `other`.
pub fn without(extents: &[Extent], other: Extent) -> Vec<Extent> {
    extents.iter().flat_map(|extent| extent.without(other)).collect()
}

/// Returns the parts of `extents` inside `other`.
pub fn within(extents: &[Extent], other: Extent) -> impl Iterator<Item = Extent> + '_ {
    extents.iter().filter_map(move |extent| extent.intersection(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_cut_out_and_kept() {
        let extent = |start, end| Extent::between(start, end).unwrap();
        let all = [extent(0, 4), extent(6, 8), extent(10, 20)];
        let asked = extent(2, 12);
        let inside: Vec<_> = within(&all, asked).collect();
        assert_eq!(inside, [extent(2, 4), extent(6, 8), extent(10, 12)]);
        assert_eq!(without(&all, asked), [extent(0, 2), extent(12, 20)]);
        let both = [extent(0, 2), extent(12, 30)];
        assert_eq!(without(&[extent(0, 30)], asked), both);
        assert_eq!(merged(vec![both[1], both[0], asked]), [extent(0, 30)]);
    }
}
