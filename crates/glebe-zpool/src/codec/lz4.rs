//! LZ4 blocks, by the reference implementation. Source: LZ4 block format description.
//!
//! `lzzzz` compresses in a thread-local state, which only one call may borrow. A fault on the
//! caller's bytes may run a signal handler that compresses too. So [`encode`] copies the bytes
//! first or, for long objects, uses a state on the stack.

use super::with_buffer;

const COPIED_MAX: usize = 64 << 10;

/// A thread destroys `HAS_STATE` before the older state of `lzzzz`. Then [`encode`] returns `None`
/// for objects of up to [`COPIED_MAX`] bytes.
struct HasState;

impl HasState {
    fn new() -> Self {
        // Makes the state.
        let _ = lzzzz::lz4::compress(&[0], &mut [0; 32], lzzzz::lz4::ACC_LEVEL_DEFAULT);
        Self
    }
}

impl Drop for HasState {
    // Without a destructor, `HAS_STATE` would outlive the state of `lzzzz`.
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
