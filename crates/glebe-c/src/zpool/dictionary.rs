//! Dictionaries of zstd, made from samples.
#![allow(unsafe_code)] // exported names

use std::ffi::{c_int, c_void};

use glebe::zpool::{Dictionary, Error};

use crate::boundary::{call, In, Out};
use crate::failure::Failure;

#[no_mangle]
pub extern "C" fn glebe_dictionary_train(
    samples: In<c_void>,
    lens_bytes: In<usize>,
    samples_count: usize,
    mut dictionary: Out<c_void>,
    len_bytes: Out<usize>,
) -> c_int {
    call(|| {
        let out = len_bytes.checked("len_bytes")?;
        let (lens, room) = (lens_bytes.all(samples_count, "lens_bytes")?, out.get());
        let all = lens.iter().try_fold(0_usize, |sum, len| sum.checked_add(*len));
        let all = all.ok_or_else(|| Failure::bad("the sum of lens_bytes", u64::MAX))?;
        let mut rest = samples.bytes(all, "samples")?;
        let mut parts = Vec::with_capacity(lens.len());
        for len in lens {
            let (sample, after) = rest.split_at(len);
            parts.push(sample);
            rest = after;
        }
        dictionary.check(room, "dictionary")?;
        let made = Dictionary::train(&parts, room).map_err(Error::from)?;
        // It may be where the samples are, of which nothing is read any more.
        drop(parts);
        dictionary.bytes(made.as_bytes().len(), "dictionary")?.copy_from_slice(made.as_bytes());
        Ok(out.set(made.as_bytes().len()))
    })
}
