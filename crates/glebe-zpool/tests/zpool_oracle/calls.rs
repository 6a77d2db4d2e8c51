//! Reads programs for pools, and makes their objects.

pub struct Program<'a>(pub &'a [u8]);

impl Program<'_> {
    pub fn next(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    pub fn below(&mut self, end: usize) -> usize {
        (usize::from(self.next()) << 8 | usize::from(self.next())) % end.max(1)
    }
}

/// Returns bytes that look random, are equal, or repeat.
pub fn object(kind: u8, seed: u64, len: usize) -> Vec<u8> {
    let random = |at: u64| (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (at * at * 41)) >> 5;
    let byte = |at: u64| match kind % 4 {
        0 => kind,
        1 => (at / 32 + seed) as u8,
        _ => random(at) as u8,
    };
    (0..len as u64).map(byte).collect()
}
