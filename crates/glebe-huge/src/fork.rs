//! A forked child gets a copy of private mappings.
//!
//! The mappings are shared, so the parent waits until the child has copied them into ordinary
//! memory. Threads of the parent that write meanwhile may be seen in the copy. With `leave-out` the
//! child does not get them. Children of vfork(2), posix_spawn(3) and system(3) share the parent's
//! memory until they become another program, and need no copy; children of a bare clone(2) get
//! none.
//!
//! # Safety
//! The lock is held from before the fork, and the child has one thread.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::io::Read;
use std::os::unix::net::UnixStream;

use glebe_os::internal::sys::memory::direct::{
    self, MADV_HUGEPAGE, MAP_ANONYMOUS, MAP_NORESERVE, MAP_PRIVATE, MREMAP_FIXED, MREMAP_MAYMOVE,
    PROT_READ, PROT_WRITE,
};
use glebe_os::internal::sys::processes::atfork::{self, Step};

use crate::pieces::Piece;
use crate::place::{Place, Spot};
use crate::state::{locked, Locked, State};

static STEP: Step = Step { prepare, parent, child };

struct Forking {
    locked: Locked,
    /// Both ends of a socket. The parent reads the first until the child has copied. Without a
    /// socket, nobody would know when, so the child copies nothing.
    copied: Option<(UnixStream, UnixStream)>,
}

struct Slot(UnsafeCell<Option<Forking>>);

// SAFETY: only the forking thread uses the slot, while it holds the lock.
unsafe impl Sync for Slot {}

static FORKING: Slot = Slot(UnsafeCell::new(None));

/// Has every fork of the process run the steps.
pub(crate) fn install() {
    let _ = atfork::add(&STEP);
}

fn prepare() {
    let mut locked = locked();
    let copies = locked.begun().is_some_and(|state| {
        state.keep_in(0..usize::MAX);
        state.leave_files();
        state.private().next().is_some()
    });
    let copied = copies.then(|| UnixStream::pair().ok()).flatten();
    // SAFETY: this thread holds the lock.
    unsafe { *FORKING.0.get() = Some(Forking { locked, copied }) };
}

fn taken() -> Option<Forking> {
    // SAFETY: this thread holds the lock.
    unsafe { (*FORKING.0.get()).take() }
}

fn parent() {
    let Some(Forking { mut locked, copied }) = taken() else { return };
    if let Some(state) = locked.begun() {
        state.note_fork();
    }
    if let Some((mut reader, writer)) = copied {
        // The child's end closes when it has copied, or has ended.
        drop(writer);
        let _ = reader.read(&mut [0]);
    }
    drop(locked);
}

fn child() {
    let Some(Forking { mut locked, copied }) = taken() else { return };
    if let Some(state) = locked.begun() {
        state.begin_child(copied.is_some());
    }
    drop(copied);
    drop(locked);
}

impl State {
    /// Returns the private pieces that a child gets.
    fn private(&self) -> impl Iterator<Item = (usize, Piece)> + '_ {
        self.pieces.all().filter(|(_, piece)| !piece.is_shared && piece.is_inherited)
    }

    fn begin_child(&mut self, may_copy: bool) {
        self.move_in();
        self.note_fork();
        let all: Vec<_> = self.private().collect();
        let is_lost = |(start, piece): &&(usize, Piece)| !may_copy || !copy(*start, piece);
        let failed: Vec<_> = all.iter().filter(is_lost).collect();
        for (start, piece) in &failed {
            // Else the child would write to the parent's memory.
            if let Ok(place) = Place::reserve(Spot::Fixed(*start), piece.len, piece.len) {
                place.keep();
            }
        }
        if !failed.is_empty() {
            let count = failed.len();
            self.tell(&format!("{count} mappings could not be copied for this child"));
        }
        let is_gone = |piece: &Piece| !piece.is_shared || !piece.is_inherited;
        let gone: Vec<_> = self.pieces.all().filter(|(_, piece)| is_gone(piece)).collect();
        for (start, piece) in gone {
            self.forget(start..start + piece.len);
        }
        self.client = None;
        self.counts.begin_again();
    }
}

/// Replaces a piece by ordinary memory with the same contents.
fn copy(start: usize, piece: &Piece) -> bool {
    let (len, flags) = (piece.len, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
    // SAFETY: the child's only thread replaces a mapping that it has.
    unsafe {
        let both = PROT_READ | PROT_WRITE;
        let Ok(to) = direct::mmap(0, len, both, flags, -1, 0) else { return false };
        let _ = direct::madvise(to, len, MADV_HUGEPAGE);
        if piece.prot & PROT_READ == 0 && direct::mprotect(start, len, PROT_READ).is_err() {
            return false;
        }
        direct::copy(start, to, len);
        let _ = direct::mprotect(to, len, piece.prot);
        direct::mremap(to, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, start).is_ok()
    }
}
