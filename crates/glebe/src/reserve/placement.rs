//! [`Placement`]: which of the places that fit a first-class block gets.
//!
//! It decides how long the longest free run stays as blocks come and go (fragmentation), and how
//! many lent pages a block costs. Owns the names only; the searches are those of the free trees
//! and of [`super::positions`].

/// How the place of a block is chosen among those that fit.
///
/// A block asked for as [long-lived](super::Request::long_lived) goes to the highest place under
/// every one of them. None of them overrules two things: where writers are counted, a place
/// without one, and for a zeroed block a place that is zero, while there are zeroed granules.
///
/// Complexity: for g granules in the reserve and n free extents that fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Placement {
    /// The lowest place: first class stays together at the bottom, away from where tenants fill
    /// from. O(log n).
    #[default]
    Lowest,
    /// The lowest place in the shortest free extent that fits: long ones stay whole for as long as
    /// a short one will do. O(n log n).
    BestFit,
    /// The place whose granules hold the fewest lent pages, the lowest of equals; below a granule,
    /// the lowest place, or one in an unlent granule. Costs tenants the least at each block, and
    /// scatters blocks until long runs are gone. O(g + n log n).
    LeastToClear,
    /// Blocks of a granule and more at the highest place, smaller ones at the lowest: small blocks
    /// do not pin the space between large ones. O(log n).
    BySize,
}
