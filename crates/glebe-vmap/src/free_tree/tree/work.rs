//! The most frequent calls are compiled again for wide vectors, because the base vectors of x86-64
//! have four lanes and no unsigned maximum. Functions that gain from this are `inline(always)`.
//!
//! # Safety
//! [`Tree::wide`] is the result of [`is_wide`], which checks every feature that the code may use.
#![allow(unsafe_code)]

use super::super::lanes::Lane;
use super::{Need, Paths, Refused, Tree};

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
    pub(in crate::free_tree) fn take_lowest(
        &mut self,
        paths: &mut Paths,
        need: &Need<L>,
    ) -> Result<Option<L>, Refused<L>> {
        #[cfg(target_arch = "x86_64")]
        if self.wide {
            // SAFETY: `wide` is set, so `is_wide` found all features.
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

    pub(in crate::free_tree) fn add(
        &mut self,
        paths: &mut Paths,
        start: L,
        len: L,
    ) -> Result<(), Refused<L>> {
        #[cfg(target_arch = "x86_64")]
        if self.wide {
            // SAFETY: `wide` is set, so `is_wide` found all features.
            return unsafe { self.add_wide(paths, start, len) };
        }
        self.add_with(paths, start, len)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn add_wide(&mut self, paths: &mut Paths, start: L, len: L) -> Result<(), Refused<L>> {
        self.add_with(paths, start, len)
    }

    pub(in crate::free_tree) fn refresh(&mut self, place: usize) {
        #[cfg(target_arch = "x86_64")]
        if self.wide {
            // SAFETY: `wide` is set, so `is_wide` found all features.
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
