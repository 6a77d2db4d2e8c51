//! [`Cipher`]: what makes records of a [file](super::file) unreadable but for this process.
//!
//! ```text
//! sealed record   0 nonce | 8 tag | 24 the bytes, encrypted
//! ```
//!
//! ChaCha20-Poly1305 (RFC 8439), by a key for each file that is drawn from the kernel's generator.
//! The nonce is a count of what was sealed, so none comes twice. The tag is also of the place in
//! the file: what was changed or moved does not open. An older record that is put back in its own
//! place does, and fails by the checksum of its block. The key is in a page of its own, which no
//! core dump and no forked child has, and which is locked where the limit on locked memory allows.
//! What the cipher leaves on the stack is overwritten before a call returns. Cost: 2 ns a byte, and
//! 0.3 µs. No lock.

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
    /// Bytes of stack that the cipher uses at most, without optimizations too.
    const STACK: usize = 16 << 10;
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
            key.hide()?;
            key.populate(0, page_size().bytes())?;
            key.lock_in_memory();
            let mut bytes = [0; WORD];
            for word in key.iter() {
                random::fill(&mut bytes)?;
                word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
            }
            bytes.fill(0);
            black_box(&bytes);
            Ok(Self { key, sealed: MappedWord::new(0) })
        }

        /// Has a cipher with the key do `work`, and overwrites what that left on the stack.
        fn with_engine<R>(&self, work: impl FnOnce(&ChaCha20Poly1305) -> R) -> R {
            let done = self.work_with_engine(work);
            overwrite_stack();
            done
        }

        #[inline(never)]
        fn work_with_engine<R>(&self, work: impl FnOnce(&ChaCha20Poly1305) -> R) -> R {
            let mut bytes = Key::default();
            for (word, bytes) in self.key.iter().zip(bytes.chunks_exact_mut(WORD)) {
                bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
            }
            work(&ChaCha20Poly1305::new(&bytes))
        }

        /// Seals what stands behind the first [`HEAD`] bytes, in a place of the file.
        pub(in crate::swap) fn seal(&self, start: u64, record: &mut [u8]) {
            let nonce = self.sealed.fetch_add(1, Ordering::Relaxed).to_le_bytes();
            let (head, bytes) = record.split_at_mut(HEAD);
            let tag = self.with_engine(|engine| {
                engine.encrypt_in_place_detached(&nonce_of(nonce), &start.to_le_bytes(), bytes)
            });
            let tag = tag.expect("a record is shorter than 256 GiB");
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
            let opened = self.with_engine(|engine| {
                engine.decrypt_in_place_detached(&nonce, &start.to_le_bytes(), bytes, tag)
            });
            opened.ok().map(|()| &*bytes)
        }
    }

    fn nonce_of(count: [u8; WORD]) -> Nonce {
        let mut nonce = Nonce::default();
        nonce[..WORD].copy_from_slice(&count);
        nonce
    }

    /// Overwrites the stack below the caller's frame.
    #[inline(never)]
    fn overwrite_stack() {
        black_box(&mut [0_u8; STACK]);
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
