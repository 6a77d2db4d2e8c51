//! What shmget(2) with `SHM_HUGETLB`, shmat(2), shmdt(2) and shmctl(2) do.
//!
//! A segment's memory is a lease. Its [token](crate::tokens) is a segment of the kernel's, which
//! has the key, the identifier and the permissions. Each attachment attaches the token too, so the
//! kernel counts attachments, also those of forked children, and removes the token after the last.
//! Then the lease ends.
//!
//! # Safety
//! The program owns the ranges that it names.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use glebe_os::internal::sys::errno::{EEXIST, EIDRM, EINVAL, EMFILE, ENOENT};
use glebe_os::internal::sys::memory::direct::{
    self, Answer, MAP_HUGE_MASK, MAP_HUGE_SHIFT, PROT_EXEC, PROT_READ, PROT_WRITE,
};
use glebe_os::internal::sys::memory::direct_files::copy_above;
use glebe_os::internal::sys::memory::direct_segments::{
    self as segments, segment_status, IPC_CREAT, IPC_EXCL, IPC_PRIVATE, IPC_RMID, IPC_STAT, MODE,
    SHM_EXEC, SHM_HUGETLB, SHM_RDONLY, SHM_REMAP, SHM_RND, SHM_STAT, SHM_STAT_ANY,
};
use glebe_os::internal::sys::page_size;

use crate::entry::{default_page, refused};
use crate::lease::LEAST_FILE;
use crate::loan::Loan;
use crate::own_files;
use crate::pieces::Piece;
use crate::place::{Place, Spot};
use crate::state::{locked, Holding, Source, State};
use crate::tokens;
use crate::unmap::replacing;

pub(crate) struct Segment {
    pub(crate) loan: Loan,
    file: File,
    /// Length that the program asked for.
    size: usize,
    page: usize,
}

impl Segment {
    fn len(&self) -> usize {
        self.size.next_multiple_of(self.page)
    }
}

/// The process, or an ancestor, has made a segment.
static IS_ANY: AtomicBool = AtomicBool::new(false);

fn is_any() -> bool {
    IS_ANY.load(Relaxed)
}

pub(crate) fn shmget(key: i32, size: usize, flags: i32) -> Answer {
    let call = || segments::shmget(key, size, flags);
    let is_huge = flags & SHM_HUGETLB != 0;
    if !is_huge && !is_any() {
        return call();
    }
    let mut locked = locked();
    let state = locked.get();
    state.end_removed_segments();
    if key != IPC_PRIVATE {
        match segments::shmget(key, 0, flags & MODE) {
            Ok(id) => match state.segments.get(&(id as i32)) {
                Some(segment) => {
                    return match flags & (IPC_CREAT | IPC_EXCL) {
                        both if both == IPC_CREAT | IPC_EXCL => Err(EEXIST),
                        _ if size > segment.size => Err(EINVAL),
                        _ => Ok(id),
                    }
                }
                None if is_huge && flags & IPC_CREAT != 0 && tokens::removed(id as i32) => {}
                None => return call(),
            },
            Err(ENOENT) if flags & IPC_CREAT != 0 => {}
            Err(_) => return call(),
        }
    }
    let page = match flags >> MAP_HUGE_SHIFT & MAP_HUGE_MASK {
        0 => default_page(),
        shift => 1usize.checked_shl(shift as u32),
    };
    match page.filter(|page| is_huge && size.checked_next_multiple_of(*page) > Some(0)) {
        Some(page) => state.segment(key, size, flags, page),
        None => call(),
    }
}

pub(crate) unsafe fn shmat(id: i32, addr: usize, flags: i32) -> Answer {
    // SAFETY: the caller keeps the contract.
    let call = || unsafe { segments::shmat(id, addr, flags) };
    if is_any() {
        let mut locked = locked();
        let state = locked.get();
        state.end_removed_segments();
        if state.segments.contains_key(&id) {
            return state.attach(id, addr, flags);
        }
    }
    match flags & SHM_REMAP {
        0 => call(),
        _ => replacing(addr, segment_status(id).map_or(0, |status| status.len), call),
    }
}

pub(crate) unsafe fn shmdt(addr: usize) -> Answer {
    if is_any() {
        let mut locked = locked();
        let state = locked.get();
        if let Some(holding) = state.attached(addr) {
            for range in state.pieces.of(holding) {
                // SAFETY: the pieces are the segment's.
                unsafe { direct::munmap(range.start, range.len()) }?;
                state.forget(range);
            }
            return Ok(0);
        }
    }
    // SAFETY: the caller keeps the contract.
    unsafe { segments::shmdt(addr) }
}

pub(crate) unsafe fn shmctl(id: i32, command: i32, buffer: usize) -> Answer {
    // SAFETY: the caller keeps the contract.
    let done = unsafe { segments::shmctl(id, command, buffer) }?;
    if !is_any() {
        return Ok(done);
    }
    let mut locked = locked();
    let state = locked.get();
    let id = match command {
        IPC_STAT => id,
        SHM_STAT | SHM_STAT_ANY => done as i32,
        IPC_RMID => {
            state.end_removed_segments();
            return Ok(done);
        }
        _ => return Ok(done),
    };
    if let Some(segment) = state.segments.get(&id) {
        // SAFETY: the kernel filled the buffer.
        unsafe { segments::set_segment_len(buffer, segment.size) };
    }
    Ok(done)
}

impl State {
    /// Makes a segment, whose key nobody has.
    fn segment(&mut self, key: i32, size: usize, flags: i32, page: usize) -> Answer {
        let call = || segments::shmget(key, size, flags);
        let len = size.next_multiple_of(page);
        let (loan, file) = match self.lend(len, page) {
            Ok(lent) => lent,
            Err(why) => return refused(self, len, "segment", &why, call),
        };
        let made = high(&file).ok_or(EMFILE).and_then(|file| {
            let id = tokens::made(key, flags & MODE, loan.number())?;
            Ok((id, file))
        });
        match made {
            Ok((id, file)) => {
                own_files::add(file.as_raw_fd());
                self.segments.insert(id as i32, Segment { loan, file, size, page });
                IS_ANY.store(true, Relaxed);
                Ok(id)
            }
            Err(error) => {
                self.end_loan(loan);
                // Another process was faster.
                if error == EEXIST && flags & IPC_EXCL == 0 {
                    call()
                } else {
                    Err(error)
                }
            }
        }
    }

    fn attach(&mut self, id: i32, addr: usize, flags: i32) -> Answer {
        let segment = self.segments.get(&id).ok_or(EINVAL)?;
        let (len, page) = (segment.len(), segment.page);
        let spot = spot(addr, flags, page)?;
        // SAFETY: the kernel chooses the address.
        let token = unsafe { segments::shmat(id, 0, flags & SHM_RDONLY) }?;
        let prot = match flags & SHM_RDONLY {
            0 => PROT_READ | PROT_WRITE,
            _ => PROT_READ,
        };
        let prot = if flags & SHM_EXEC == 0 { prot } else { prot | PROT_EXEC };
        let placed = Place::reserve(spot, len, page).and_then(|place| {
            place.put(0, &segment.file, len, prot, 0)?;
            let base = place.base();
            place.keep();
            Ok(base)
        });
        let base = placed.map_err(|error| {
            // SAFETY: the token was just attached.
            let _ = unsafe { segments::shmdt(token) };
            if error == EEXIST {
                EINVAL
            } else {
                error
            }
        })?;
        self.forget(base..base + len);
        self.last += 1;
        let source = Source::Segment { base, token };
        self.holdings.insert(self.last, Holding { source, mapped: len });
        let holding = self.last;
        self.add(base, Piece { len, prot, holding, is_shared: true, is_inherited: true });
        Ok(base)
    }

    /// Returns the holding of the segment that begins at an address, also if that part of it is
    /// unmapped, or moved here.
    fn attached(&self, addr: usize) -> Option<u64> {
        let mut all = self.holdings.iter();
        let is_there =
            |source: &Source| matches!(source, Source::Segment { base, .. } if *base == addr);
        let first = all.find(|(_, it)| is_there(&it.source)).map(|(number, _)| *number);
        first.or_else(|| {
            let (_, piece) = self.pieces.all().find(|(start, _)| *start == addr)?;
            let source = &self.holdings.get(&piece.holding)?.source;
            matches!(source, Source::Segment { .. }).then_some(piece.holding)
        })
    }

    /// Nothing of an attachment is mapped.
    pub(crate) fn detached(&mut self, token: usize) {
        // SAFETY: the attachment's token is attached there.
        let _ = unsafe { segments::shmdt(token) };
        self.end_removed_segments();
    }

    /// Ends the leases of segments that somebody has removed and nobody has attached.
    fn end_removed_segments(&mut self) {
        let is_gone = |id: &&i32| matches!(segment_status(**id), Err(EINVAL | EIDRM));
        let gone: Vec<i32> = self.segments.keys().filter(is_gone).copied().collect();
        for id in gone {
            let Some(Segment { loan, file, .. }) = self.segments.remove(&id) else { continue };
            own_files::remove(file.as_raw_fd());
            drop(file);
            self.end_loan(loan);
        }
    }
}

fn high(file: &File) -> Option<File> {
    let fd = copy_above(file.as_raw_fd(), LEAST_FILE)?;
    // SAFETY: nobody else has the new descriptor.
    Some(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

fn spot(addr: usize, flags: i32, page: usize) -> Result<Spot, i32> {
    let small = page_size().bytes().as_usize();
    let addr = if flags & SHM_RND == 0 { addr } else { addr - addr % small };
    match flags & SHM_REMAP {
        0 if addr == 0 => Ok(Spot::Anywhere),
        _ if addr == 0 || addr % page != 0 => Err(EINVAL),
        0 => Ok(Spot::Unused(addr)),
        _ => Ok(Spot::Fixed(addr)),
    }
}
