//! The calls that are made all the time, compiled once more for processors with wider registers.
//!
//! Owns nothing. The loops over lanes are plain ones of which the compiler makes vector
//! instructions; what every x86-64 processor has is four lanes at a time, without a maximum of
//! unsigned ones. What gains from wide vectors below these calls is `inline(always)`.
//!
//! # Safety
//! [`Tree::wide`] is [`is_wide`], which says yes only where all features are there.
#![allow(unsafe_code)]

use super::super::lanes::Lane;
use super::{Need, Paths, Refused, Tree};

/// Whether the processor has wide vectors, and whatever else the code for them uses.
pub(super) fn is_wide() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt")
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

impl<L: Lane, const B: usize> Tree<L, B> {
    /// Takes the lowest place that is as `need` says; `None` if there is none.
    pub(in crate::free_tree) fn take_lowest(
        &mut self,
        paths: &mut Paths,
        need: &Need<L>,
    ) -> Result<Option<L>, Refused<L>> {
        #[cfg(target_arch = "x86_64")]
        if self.wide {
            // SAFETY: as the file's head says.
            return unsafe { self.take_lowest_wide(paths, need) };
        }
        self.take_lowest_with(paths, need)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn take_lowest_wide(
        &mut self,
        paths: &mut Paths,
        need: &Need<L>,
    ) -> Result<Option<L>, Refused<L>> {
        self.take_lowest_with(paths, need)
    }

    #[inline(always)]
    fn take_lowest_with(
        &mut self,
        paths: &mut Paths,
        need: &Need<L>,
    ) -> Result<Option<L>, Refused<L>> {
        let path = paths.next();
        self.refresh_class(need.log);
        let Some((spot, at)) = self.find(need, path) else { return Ok(None) };
        self.carve(path, spot, at, need.len)?;
        Ok(Some(at))
    }

    /// Adds an extent, as one with those that it touches; refuses if any of it is there already, or
    /// if it touches none and there may be no more.
    pub(in crate::free_tree) fn add(
        &mut self,
        paths: &mut Paths,
        start: L,
        len: L,
    ) -> Result<(), Refused<L>> {
        #[cfg(target_arch = "x86_64")]
        if self.wide {
            // SAFETY: as the file's head says.
            return unsafe { self.add_wide(paths, start, len) };
        }
        self.add_with(paths, start, len)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn add_wide(&mut self, paths: &mut Paths, start: L, len: L) -> Result<(), Refused<L>> {
        self.add_with(paths, start, len)
    }

    /// Makes the maxima right again of the leaf that is noted at `place`.
    pub(in crate::free_tree) fn refresh(&mut self, place: usize) {
        #[cfg(target_arch = "x86_64")]
        if self.wide {
            // SAFETY: as the file's head says.
            return unsafe { self.refresh_wide(place) };
        }
        self.refresh_with(place)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn refresh_wide(&mut self, place: usize) {
        self.refresh_with(place)
    }
}
