//! [`run`] executes a byte string as calls to a [`FreeTree`] and to an oracle, an ordered map.

use std::collections::BTreeMap;

use super::{Classes, FreeTree, FreeTreeError};
use glebe_os::extent::Extent;

/// Reference model of a free tree.
#[derive(Debug)]
pub struct Oracle {
    span: Extent,
    limit: usize,
    free: BTreeMap<u64, u64>,
}

impl Oracle {
    /// Like [`FreeTree::new`].
    #[must_use]
    pub fn new(span: Extent, max_extents: usize) -> Self {
        let most = span.len() / 2 + span.len() % 2;
        Self { span, limit: max_extents.min(most as usize), free: BTreeMap::new() }
    }

    /// Like [`FreeTree::iter`].
    pub fn iter(&self) -> impl Iterator<Item = Extent> + '_ {
        self.free.iter().map(|(&start, &end)| Extent::new(start, end - start).unwrap())
    }

    /// Like [`FreeTree::find`].
    #[allow(clippy::missing_errors_doc)]
    pub fn find(
        &self,
        len: u64,
        align: u64,
        within: Option<Extent>,
    ) -> Result<Option<Extent>, FreeTreeError> {
        if len == 0 {
            return Err(FreeTreeError::ZeroLen);
        }
        if align.count_ones() != 1 {
            return Err(FreeTreeError::BadAlign { align });
        }
        let fit = |extent: Extent| {
            let part = within.map_or(Some(extent), |within| extent.intersection(within))?;
            let start = part.start().checked_next_multiple_of(align)?;
            Extent::new(start, len).filter(|&found| part.contains(found))
        };
        Ok(self.iter().find_map(fit))
    }

    /// Like [`FreeTree::alloc`].
    #[allow(clippy::missing_errors_doc)]
    pub fn alloc(
        &mut self,
        len: u64,
        align: u64,
        within: Option<Extent>,
    ) -> Result<Option<Extent>, FreeTreeError> {
        let found = self.find(len, align, within)?;
        found.map_or(Ok(()), |found| self.take(found))?;
        Ok(found)
    }

    /// Like [`FreeTree::take`].
    #[allow(clippy::missing_errors_doc)]
    pub fn take(&mut self, given: Extent) -> Result<(), FreeTreeError> {
        if !self.span.contains(given) {
            return Err(FreeTreeError::OutsideSpan { given, span: self.span });
        }
        let Some(whole) = self.iter().find(|free| free.contains(given)) else {
            let (mut start, mut end) = (given.start(), given.end());
            for free in self.iter() {
                if free.start() <= start && start < free.end() {
                    start = free.end();
                } else if free.start() > start {
                    end = end.min(free.start());
                }
            }
            return Err(FreeTreeError::NotFree {
                given,
                held: Extent::new(start, end - start).unwrap(),
            });
        };
        let parts = [(whole.start(), given.start()), (given.end(), whole.end())];
        let left = parts.iter().filter(|(start, end)| start < end);
        self.room_for(self.free.len() - 1 + left.clone().count())?;
        self.free.remove(&whole.start());
        self.free.extend(left.copied());
        Ok(())
    }

    /// Like [`FreeTree::free`].
    #[allow(clippy::missing_errors_doc)]
    pub fn free(&mut self, given: Extent) -> Result<(), FreeTreeError> {
        if !self.span.contains(given) {
            return Err(FreeTreeError::OutsideSpan { given, span: self.span });
        }
        if let Some(overlaps) = self.iter().find(|free| free.overlaps(given)) {
            return Err(FreeTreeError::AlreadyFree { given, overlaps });
        }
        let before = self.iter().find(|free| free.end() == given.start());
        let after = self.iter().find(|free| free.start() == given.end());
        let merged = [before, after].into_iter().flatten();
        self.room_for(self.free.len() - merged.clone().count() + 1)?;
        let start = before.map_or(given.start(), Extent::start);
        let end = after.map_or(given.end(), Extent::end);
        for extent in merged {
            self.free.remove(&extent.start());
        }
        self.free.insert(start, end);
        Ok(())
    }

    fn room_for(&self, extents: usize) -> Result<(), FreeTreeError> {
        match extents > self.limit {
            true => Err(FreeTreeError::OutOfNodes { limit: self.limit }),
            false => Ok(()),
        }
    }

    /// Like [`FreeTree::next_fit`].
    #[must_use]
    pub fn next_fit(&self, from: u64, min_len: u64) -> Option<Extent> {
        self.iter().find(|free| free.end() > from && free.len() >= min_len)
    }

    /// Like [`FreeTree::containing`].
    #[must_use]
    pub fn containing(&self, position: u64) -> Option<Extent> {
        self.iter().find(|free| free.start() <= position && position < free.end())
    }

    /// Panics unless `tree` is sound and has the same free extents.
    #[allow(clippy::missing_panics_doc)]
    pub fn check(&self, tree: &FreeTree) {
        tree.check_invariants();
        assert!(tree.iter().eq(self.iter()), "free: {:x?}, oracle {self:x?}", tree);
        assert_eq!(tree.extents(), self.free.len());
        assert_eq!(tree.free_len(), self.iter().map(Extent::len).sum::<u64>());
        assert_eq!(tree.largest(), self.iter().map(Extent::len).max().unwrap_or(0));
    }
}

/// Runs `program` on a tree and an oracle, and compares them. The first bytes choose the tree, the
/// rest are calls.
///
/// # Panics
/// At the first difference or broken invariant.
pub fn run(program: &[u8]) {
    let mut bytes = Bytes(program);
    let span = bytes.span();
    let limit = [usize::MAX, 1, 2, 3, 5, 8, 40, 200][usize::from(bytes.next() % 8)];
    let limit = limit.min(4096);
    let kind = bytes.next();
    let classes = if kind / 2 % 2 == 0 { Classes::All } else { Classes::None };
    let tree = match kind % 2 {
        0 => FreeTree::deep(span, limit, classes),
        _ => FreeTree::with_classes(span, limit, classes).expect("memory"),
    };
    let mut both = Both { tree, oracle: Oracle::new(span, limit), span };
    if bytes.next() % 4 != 0 {
        both.free(span);
    }
    while !bytes.0.is_empty() {
        both.step(&mut bytes);
        both.oracle.check(&both.tree);
    }
}

struct Both {
    tree: FreeTree,
    oracle: Oracle,
    span: Extent,
}

impl Both {
    fn step(&mut self, bytes: &mut Bytes<'_>) {
        match bytes.next() % 12 {
            0..=3 => {
                let (len, align) = (bytes.len(self.span), bytes.align());
                let within = bytes.within(self.span);
                let expected = self.oracle.find(len, align, within);
                assert_eq!(
                    self.tree.find(len, align, within),
                    expected,
                    "find {len:#x} {align:#x}"
                );
                let expected = self.oracle.alloc(len, align, within);
                let answer = self.tree.alloc(len, align, within);
                assert_eq!(answer, expected, "alloc {len:#x} {align:#x} {within:x?}");
            }
            4..=6 => {
                if let Some(extent) = bytes.extent(self.span) {
                    self.free(extent);
                }
            }
            // Frees the first positions in use at or after `at`: the whole run, or only its first
            // part.
            7 | 8 => {
                let at = bytes.position(self.span);
                if let Err(FreeTreeError::NotFree { held, .. }) = self.rest_from(at) {
                    let len = if bytes.next() % 2 == 0 { held.len() } else { bytes.len(self.span) };
                    let len = len.clamp(1, held.len());
                    self.free(Extent::new(held.start(), len).unwrap());
                }
            }
            9 | 10 => {
                if let Some(extent) = bytes.extent(self.span) {
                    let answer = self.tree.take(extent);
                    assert_eq!(answer, self.oracle.take(extent), "take {extent}");
                }
            }
            _ => {
                let (at, len) = (bytes.position(self.span), bytes.len(self.span));
                let expected = self.oracle.next_fit(at, len);
                assert_eq!(self.tree.next_fit(at, len), expected, "next_fit {at:#x} {len:#x}");
                assert_eq!(self.tree.containing(at), self.oracle.containing(at), "at {at:#x}");
            }
        }
    }

    fn free(&mut self, extent: Extent) {
        assert_eq!(self.tree.free(extent), self.oracle.free(extent), "free {extent}");
    }

    fn rest_from(&self, at: u64) -> Result<(), FreeTreeError> {
        let Some(len) = self.span.end().checked_sub(at) else { return Ok(()) };
        let Some(rest) = Extent::new(at, len) else { return Ok(()) };
        let mut oracle =
            Oracle { span: self.span, limit: usize::MAX, free: self.oracle.free.clone() };
        oracle.take(rest)
    }
}

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// Chooses a short span, so that extents collide, or a span that is huge or ends near
    /// `u64::MAX`.
    fn span(&mut self) -> Extent {
        let (kind, fine) = (self.next(), u64::from(self.next()));
        let (start, len) = match kind % 8 {
            0 => (0, fine + 1),
            1 => (fine, 64),
            2 => (0, 4096),
            3 => (0x1000 * fine + 1, 0x3ff + fine),
            4 => (1 << 62, (1 << 63) + fine),
            5 => (0, u64::MAX),
            6 => (u64::MAX - 300, 300 - fine),
            _ => (u64::MAX - (fine << 40) - 1, (fine << 40) + 1),
        };
        Extent::new(start, len).unwrap()
    }

    fn position(&mut self, span: Extent) -> u64 {
        let (coarse, fine) = (u64::from(self.next()), self.next());
        let step = (span.len() / 256).max(1);
        let near = span.start().saturating_add(step.saturating_mul(coarse % 256));
        // Puts half of all positions at 256ths of the span, so that extents of several calls touch.
        match fine {
            0..=127 => near.min(span.end() - 1),
            128..=191 => near.saturating_sub(u64::from(fine - 128)),
            _ => near.saturating_add(u64::from(fine - 192)),
        }
    }

    fn len(&mut self, span: Extent) -> u64 {
        let (kind, fine) = (self.next(), u64::from(self.next()));
        match kind % 8 {
            0..=2 => fine % 8 + u64::from(kind > 8),
            3 => fine,
            4 | 5 => (span.len() / 256).max(1) * (fine % 16),
            6 => 1 << (fine % 64),
            _ => span.len().saturating_sub(fine),
        }
    }

    fn align(&mut self) -> u64 {
        match self.next() {
            0 => 0,
            1 => 3,
            2 => u64::MAX,
            kind @ 3..=127 => 1 << (kind % 8),
            kind => 1 << (kind % 64),
        }
    }

    fn within(&mut self, span: Extent) -> Option<Extent> {
        match self.next() % 3 {
            0 => None,
            1 => self.extent(span),
            _ => {
                let (a, b) = (self.position(span), self.position(span));
                Extent::new(a.min(b), a.abs_diff(b))
            }
        }
    }

    fn extent(&mut self, span: Extent) -> Option<Extent> {
        let (start, len) = (self.position(span), self.len(span));
        Extent::new(start, len)
    }
}
