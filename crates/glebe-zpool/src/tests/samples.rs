//! Objects that codecs compress, or cannot.

pub(crate) fn text(seed: u64, len: usize) -> Vec<u8> {
    let words: [&[u8]; 6] =
        [b"static int ", b"return ", b"struct page *", b"unsigned ", b"{\n", b");\n"];
    let mut state = seed.wrapping_mul(2) + 1;
    let mut out = Vec::new();
    while out.len() < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        out.extend_from_slice(words[(state >> 33) as usize % words.len()]);
        out.push(b'a' + (state >> 40) as u8 % 26);
    }
    out.truncate(len);
    out
}

pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
        (state >> 56) as u8
    })
    .take(len)
    .collect()
}
