//! [`recast`] replaces bricks that another process has held by new ones.
//!
//! Lock: `TURN`, while a page is freed and filled again, so that no other thread gets its frame.

use std::sync::PoisonError;

use super::pool::{Keeping, PoolLock};
use super::Contig;
use glebe_os::error::OsError;
use glebe_os::internal::mapping::{frames_of, Bricks};
use glebe_os::internal::sync::StaticMutex;
use glebe_os::internal::sys::memory::brick::Brick;
use glebe_os::internal::sys::processes::atfork;
use glebe_os::units::{Bytes, PageSize, Pfn};

/// Returns the bricks of memory built with [`Options::bricks`](super::Options::bricks).
#[must_use]
pub fn bricks(contig: &Contig) -> Option<&Bricks> {
    contig.mapping().bricks()
}

static TURN: StaticMutex<()> = StaticMutex::new(());

fn in_turn<T>(step: impl FnOnce() -> T) -> T {
    atfork::without_forks(|| {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        step()
    })
}

/// Cuts `old` bricks and fills new ones of `lens`, page by page from the last on, so that each page
/// gets the same frame again: a pool hands out first what was freed last. Has a share of
/// [`Keeping`] meanwhile, because the kernel would otherwise take surplus pages out of the pool. An
/// error is the kernel's refusal of one brick.
pub fn recast(
    old: &[Brick],
    page: PageSize,
    lens: impl Iterator<Item = Bytes>,
) -> Vec<Result<Brick, OsError>> {
    // Made first, so that pages are free for a short time only.
    let made = lens.map(|len| (len, Brick::new(len, page)));
    let mut made: Vec<(Bytes, Result<Brick, OsError>)> = made.collect();
    // Without the lock, the kernel may keep pages.
    let _keeping = (!old.is_empty()).then(|| Keeping::of(page, PoolLock::PATIENCE));
    let each = |brick: &Brick| (0..brick.len().pages_up(page).get()).rev();
    let mut cuts = old.iter().rev().flat_map(|brick| each(brick).map(move |nth| (brick, nth)));
    for (len, new) in made.iter_mut().rev() {
        for nth in (0..len.pages_up(page).get()).rev() {
            in_turn(|| {
                // A page that is not cut stays, so a new one cannot be filled.
                cuts.next().into_iter().for_each(|(brick, nth)| brick.cut(nth));
                if let Some(error) = new.as_ref().ok().and_then(|new| new.fill(nth).err()) {
                    *new = Err(error);
                }
            });
        }
    }
    cuts.for_each(|(brick, nth)| brick.cut(nth));
    made.into_iter().map(|(_, new)| new).collect()
}

/// A brick with the frames of its pages, if they are visible.
pub type Joined = (Brick, Vec<Option<Pfn>>);

/// Moves the pages of `old` bricks into one new brick, as [`recast`] does, but ends at the first
/// error. The caller has a share of [`Keeping`].
///
/// # Errors
/// The kernel's refusal, with the number of `old` bricks that are still whole. The pages of the
/// others are free then.
pub fn join(old: &[Brick], page: PageSize) -> Result<Joined, (OsError, usize)> {
    let len = Bytes::new(old.iter().map(|brick| brick.len().get()).sum());
    let new = Brick::new(len, page).map_err(|why| (why, old.len()))?;
    let mut whole = old.len();
    match fill_from(old, &new, &mut whole).and_then(|()| frames_of(&new)) {
        Ok(frames) => Ok((new, frames)),
        Err(why) => {
            cut(std::iter::once(&new));
            Err((why, whole))
        }
    }
}

fn fill_from(old: &[Brick], new: &Brick, whole: &mut usize) -> Result<(), OsError> {
    let mut place = new.len().pages_up(new.page()).get();
    for (at, brick) in old.iter().enumerate().rev() {
        *whole = at;
        for nth in (0..brick.len().pages_up(new.page()).get()).rev() {
            place -= 1;
            in_turn(|| {
                brick.cut(nth);
                new.fill(place)
            })?;
        }
    }
    Ok(())
}

/// Frees single pages of bricks, in their order. [`recast`] can fill their frames again later.
pub fn punch<'a>(pages: impl Iterator<Item = (&'a Brick, u64)>) {
    // A page that is not punched stays with its brick.
    in_turn(|| pages.for_each(|(brick, nth)| _ = brick.punch(nth)));
}

/// Frees all pages of bricks, the first page first. [`recast`] can fill their frames again later.
pub fn cut<'a>(bricks: impl Iterator<Item = &'a Brick>) {
    in_turn(|| bricks.for_each(|brick| brick.cut(0)));
}
