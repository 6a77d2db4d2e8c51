//! LZ4 blocks, by the reference implementation. Source: LZ4 block format description.
//!
//! `lzzzz` borrows a state that the thread has once. The caller's bytes may lie in a
//! [region](crate::swap::Region), where a touch runs the codec of the region in a signal handler:
//! so they are copied before the state is borrowed. Longer objects, for which that costs more, get
//! a state of their own on the stack.

use super::with_buffer;

/// The longest object that is copied: a page of any machine.
const COPIED_MAX: usize = 64 << 10;

/// The most bytes that `len` bytes become.
pub(super) fn bound(len: usize) -> usize {
    lzzzz::lz4::max_compressed_size(len)
}

/// Codes into `out`, which has [`bound`] bytes; how many are used.
pub(super) fn encode(object: &[u8], out: &mut [u8]) -> Option<usize> {
    if object.len() > COPIED_MAX {
        // All of the object, since `out` has room for whatever it becomes.
        let (read, len) = lzzzz::lz4::compress_fill(object, out).ok()?;
        return (read == object.len()).then_some(len);
    }
    with_buffer(object.len(), |copy| {
        copy.copy_from_slice(object);
        lzzzz::lz4::compress(copy, out, lzzzz::lz4::ACC_LEVEL_DEFAULT).ok()
    })
}

/// Decodes into `out`; how many bytes that made, or what is wrong.
pub(super) fn decode(coded: &[u8], out: &mut [u8]) -> Result<usize, &'static str> {
    lzzzz::lz4::decompress(coded, out).map_err(|_| "malformed or too long")
}
