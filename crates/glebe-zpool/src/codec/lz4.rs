//! LZ4 blocks, by the reference implementation. Source: LZ4 block format description.
//!
//! `lzzzz` borrows one state per thread. Reading the caller's bytes may run a codec in a signal
//! handler on this thread. So [`encode`] copies them first, or has a state on the stack
//! (`compress_fill`) for long objects.

use super::with_buffer;

/// Longest object that [`encode`] copies, in bytes: a page of any machine.
const COPIED_MAX: usize = 64 << 10;

/// Exists while `lzzzz` has its state of the thread: locals are destroyed in reverse order. A later
/// destructor may still call [`encode`].
struct HasState;

impl HasState {
    fn new() -> Self {
        // Makes the state.
        let _ = lzzzz::lz4::compress(&[0], &mut [0; 32], lzzzz::lz4::ACC_LEVEL_DEFAULT);
        Self
    }
}

impl Drop for HasState {
    // Without a destructor the thread would never destroy it.
    fn drop(&mut self) {}
}

thread_local! {
    static HAS_STATE: HasState = HasState::new();
}

pub(super) fn bound(len: usize) -> usize {
    lzzzz::lz4::max_compressed_size(len)
}

pub(super) fn encode(object: &[u8], out: &mut [u8]) -> Option<usize> {
    if object.len() > COPIED_MAX {
        let (read, len) = lzzzz::lz4::compress_fill(object, out).ok()?;
        return (read == object.len()).then_some(len);
    }
    HAS_STATE.try_with(|_| ()).ok()?;
    with_buffer(object.len(), |copy| {
        copy.copy_from_slice(object);
        lzzzz::lz4::compress(copy, out, lzzzz::lz4::ACC_LEVEL_DEFAULT).ok()
    })
}

pub(super) fn decode(coded: &[u8], out: &mut [u8]) -> Result<usize, &'static str> {
    lzzzz::lz4::decompress(coded, out).map_err(|_| "malformed or too long")
}
