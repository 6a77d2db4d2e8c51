//! [`Cipher`]: what makes records of a [file](super::file) unreadable but for this process.
//!
//! ```text
//! sealed record   0 nonce | 8 tag | 24 the bytes, encrypted
//! ```
//!
//! ChaCha20-Poly1305 (RFC 8439), by a key for each file that is drawn from the kernel's generator.
//! The nonce is a count of what was sealed, so none comes twice. The tag is also of the place in
//! the file: what was changed or moved does not open. An older record that is put back in its own
//! place does, and fails by the checksum of its block. The key is in no core dump, and locked where
//! the limit on locked memory allows; on stacks its copies are wiped. A forked child has it, as it
//! has all memory, and seals nothing. Cost: 2 ns a byte. No lock.

#[cfg(feature = "encrypt")]
pub(super) use sealing::Cipher;

#[cfg(feature = "encrypt")]
mod sealing {
    use std::hint::black_box;

    use chacha20poly1305::aead::{AeadInPlace, KeyInit};
    use chacha20poly1305::{ChaCha20Poly1305, Key, Nonce, Tag};

    use super::HEAD;
    use crate::error::OsError;
    use crate::sync::{MappedWord, Ordering};
    use crate::sys::{page_size, random};
    use crate::zpool::Words;

    const WORD: usize = size_of::<u64>();
    const KEY_WORDS: usize = size_of::<Key>() / WORD;

    /// See the module.
    #[derive(Debug)]
    pub(in crate::swap) struct Cipher {
        key: Words,
        sealed: MappedWord,
    }

    impl Cipher {
        /// With a new key.
        pub(in crate::swap) fn new() -> Result<Self, OsError> {
            let key = Words::new(KEY_WORDS)?;
            key.populate(0, page_size().bytes())?;
            key.lock_in_memory();
            let mut bytes = Key::default();
            random::fill(&mut bytes)?;
            for (word, bytes) in key.iter().zip(bytes.chunks_exact(WORD)) {
                let bytes = bytes.try_into().expect("chunks of a word");
                word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
            }
            wipe(bytes);
            Ok(Self { key, sealed: MappedWord::new(0) })
        }

        fn engine(&self) -> ChaCha20Poly1305 {
            let mut bytes = Key::default();
            for (word, bytes) in self.key.iter().zip(bytes.chunks_exact_mut(WORD)) {
                bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
            }
            let engine = ChaCha20Poly1305::new(&bytes);
            wipe(bytes);
            engine
        }

        /// Seals what stands behind the first [`HEAD`] bytes, in a place of the file.
        pub(in crate::swap) fn seal(&self, start: u64, record: &mut [u8]) {
            let nonce = self.sealed.fetch_add(1, Ordering::Relaxed).to_le_bytes();
            let (head, bytes) = record.split_at_mut(HEAD);
            let tag = self
                .engine()
                .encrypt_in_place_detached(&nonce_of(nonce), &start.to_le_bytes(), bytes)
                .expect("a record is shorter than 256 GiB");
            head[..WORD].copy_from_slice(&nonce);
            head[WORD..].copy_from_slice(&tag);
        }

        /// Opens what was sealed, in that place of the file; nothing if it is anything else.
        pub(in crate::swap) fn open<'a>(
            &self,
            start: u64,
            record: &'a mut [u8],
        ) -> Option<&'a [u8]> {
            let (head, bytes) = record.split_at_mut_checked(HEAD)?;
            let (nonce, tag) = head.split_first_chunk::<WORD>()?;
            let (nonce, tag) = (nonce_of(*nonce), Tag::from_slice(tag));
            let opened =
                self.engine().decrypt_in_place_detached(&nonce, &start.to_le_bytes(), bytes, tag);
            opened.ok().map(|()| &*bytes)
        }
    }

    fn nonce_of(count: [u8; WORD]) -> Nonce {
        let mut nonce = Nonce::default();
        nonce[..WORD].copy_from_slice(&count);
        nonce
    }

    /// Overwrites a key, which the compiler must take to be read later.
    fn wipe(mut key: Key) {
        key.fill(0);
        black_box(&key);
    }
}

/// Bytes of a sealed record before its own.
pub(super) const HEAD: usize = 24;

/// There is none without the feature `encrypt`.
#[cfg(not(feature = "encrypt"))]
#[derive(Debug)]
pub(super) enum Cipher {}

#[cfg(not(feature = "encrypt"))]
impl Cipher {
    pub(super) fn seal(&self, _: u64, _: &mut [u8]) {
        match *self {}
    }

    pub(super) fn open<'a>(&self, _: u64, _: &'a mut [u8]) -> Option<&'a [u8]> {
        match *self {}
    }
}
