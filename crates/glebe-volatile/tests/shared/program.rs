//! [`run`] turns bytes into calls on a shared file. [`spoil`] overwrites the file's state with such
//! bytes, except the header's layout, because a file with a wrong layout would be refused.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};
use glebe_volatile::{Order, Priority, Purger, Shared};

pub const GRANULES: u64 = 24;
/// Offset of the header's first changing word, in bytes.
const CHANGING: u64 = 9 * 8;

fn at(granule: u64) -> Bytes {
    Pages::new(granule).bytes(page_size())
}

pub fn spoil(file: &File, state: u64, program: &[u8], from: usize) {
    if program.is_empty() {
        return;
    }
    let page = page_size().bytes().get();
    let bytes = |at: u64, len: usize| -> Vec<u8> {
        (0..len).map(|i| program[(from + at as usize * 7 + i) % program.len()]).collect()
    };
    file.write_all_at(&bytes(0, 512), CHANGING).expect("the header");
    let mut at = page;
    while at < state {
        file.write_all_at(&bytes(at, GRANULES as usize * 8), at).expect("a page of the state");
        at += page;
    }
}

pub fn file_of(shared: &Shared) -> (File, u64) {
    let path = format!("/proc/self/fd/{}", shared.fd().as_raw_fd());
    let file = File::options().read(true).write(true).open(path).expect("its own file");
    let total = file.metadata().expect("an open file").len();
    (file, total)
}

pub fn run(program: &[u8]) {
    let options = || Shared::options().holders(3).pin_quota(at(GRANULES));
    let shared = options().create(at(GRANULES)).expect("memory");
    let (file, total) = file_of(&shared);
    let state = total - shared.len().get();
    let copy = || shared.fd().try_clone_to_owned().expect("a descriptor");
    let purger = Purger::adopt(copy()).expect("the file is right");
    let mut pins = Vec::new();
    spoil(&file, state, program, 0);
    for (nth, call) in program.chunks_exact(3).enumerate().take(60) {
        let (start, len) = (u64::from(call[1]) % GRANULES, 1 + u64::from(call[2]) % 6);
        let range = at(start)..at((start + len).min(GRANULES));
        let level = Priority::new(call[2] % 8).expect("a level");
        match call[0] % 10 {
            0 => pins.extend(shared.pin(range)),
            1 => drop(pins.pop()),
            2 => drop(shared.mark(range, level, Order::Fifo)),
            3 => drop(shared.mark(range, level, Order::Lifo)),
            4 => drop(shared.unmark(range)),
            5 => drop(shared.purge(at(len), level)),
            6 => drop(purger.look().map(|look| purger.purge(look.purged, level))),
            7 => drop(pins.last().map(|pin| (pin.restored(), pin.write(Bytes::ZERO, &[1; 100])))),
            8 => spoil(&file, state, program, nth),
            _ => drop((options().adopt(copy()).map(|other| other.stats()), shared.drop_now(range))),
        }
    }
    drop(pins);
    let _ = shared.stats().to_openmetrics();
    assert_eq!(file.metadata().expect("an open file").len(), total);
    drop(Purger::adopt(copy()).expect("the layout stays"));
}
