//! Uses up memory for tests.

use std::thread;
use std::time::{Duration, Instant};

use crate::time::slowed;

const CHUNK: usize = 256 << 10;

/// Touches `len` bytes of new memory, at most `a_second` bytes per second, and returns them. A
/// delayed thread does not catch up. `GLEBE_SLOW` divides the speed.
pub fn rise(len: usize, a_second: u64) -> Vec<u8> {
    let mut memory = vec![0_u8; len];
    let mut begin = Instant::now();
    let mut touched = 0;
    for chunk in memory.chunks_mut(CHUNK) {
        chunk.fill(1);
        touched += chunk.len() as u64;
        let due = slowed(Duration::from_micros(touched * 1_000_000 / a_second));
        thread::sleep(due.saturating_sub(begin.elapsed()));
        begin += begin.elapsed().saturating_sub(due);
    }
    memory
}
