//! LZ4 blocks, by the reference implementation. Source: LZ4 block format description.

/// The most bytes that `len` bytes become.
pub(super) fn bound(len: usize) -> usize {
    lzzzz::lz4::max_compressed_size(len)
}

/// Codes into `out`, which has [`bound`] bytes; how many are used.
pub(super) fn encode(object: &[u8], out: &mut [u8]) -> Option<usize> {
    lzzzz::lz4::compress(object, out, lzzzz::lz4::ACC_LEVEL_DEFAULT).ok()
}

/// Decodes into `out`; how many bytes that made, or what is wrong.
pub(super) fn decode(coded: &[u8], out: &mut [u8]) -> Result<usize, &'static str> {
    lzzzz::lz4::decompress(coded, out).map_err(|_| "malformed or too long")
}
