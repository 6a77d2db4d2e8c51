//! Dictionaries of zstd: made from samples, and given to a pool as bytes.
//!
//! # Safety
//! As [`super`]: lengths stand beside pointers, samples lie one after the other.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use glebe::zpool::{Codec, Dictionary, Error};

use super::{create, Failure};
use crate::abi::*;
use crate::boundary::{bytes_from, call, Out};

/// The bytes of a dictionary of the caller's.
///
/// # Safety
/// As [`bytes_from`].
unsafe fn dictionary(at: *const c_void, len_bytes: usize) -> Result<Dictionary, Failure> {
    // SAFETY: the caller's duty.
    let bytes = unsafe { bytes_from(at, len_bytes, "dictionary")? };
    Ok(Dictionary::from_bytes(Arc::<[u8]>::from(bytes)).map_err(Error::from)?)
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_dictionary_train(
    samples: *const c_void,
    lens_bytes: *const usize,
    samples_count: usize,
    dictionary: *mut c_void,
    len_bytes: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Out::new(len_bytes, "len_bytes")? };
        // SAFETY: the caller's duty, after the check that it is not null.
        let room = unsafe { len_bytes.read_unaligned() };
        if lens_bytes.is_null() && samples_count > 0 {
            return Err(Failure::Null("lens_bytes"));
        }
        // SAFETY: the caller vouches for as many lengths. No alignment is asked of C.
        let len = |nth: usize| unsafe { lens_bytes.add(nth).read_unaligned() };
        let lens: Vec<usize> = (0..samples_count).map(len).collect();
        let all = lens.iter().try_fold(0_usize, |sum, len| sum.checked_add(*len));
        let Some(all) = all.filter(|all| isize::try_from(*all).is_ok()) else {
            return super::bad("the sum of lens_bytes", u64::MAX);
        };
        if dictionary.is_null() && room > 0 {
            return Err(Failure::Null("dictionary"));
        }
        // SAFETY: the caller's duty: the sum of the lengths is there.
        let mut rest = unsafe { bytes_from(samples, all, "samples")? };
        let mut parts = Vec::with_capacity(lens.len());
        for len in lens {
            let (sample, after) = rest.split_at(len);
            parts.push(sample);
            rest = after;
        }
        let made = Dictionary::train(&parts, room).map_err(Error::from)?;
        let made = made.as_bytes();
        // SAFETY: the caller vouches for `room`, and no more was made. It may be where the samples
        // are, of which nothing is read any more.
        unsafe { dictionary.cast::<u8>().copy_from_nonoverlapping(made.as_ptr(), made.len()) };
        Ok(out.set(made.len()))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_zpool_create_with_dictionary(
    options: *const glebe_zpool_options,
    dictionary: *const c_void,
    len_bytes: usize,
    pool: *mut glebe_zpool,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let (out, (options, codec), dictionary) = unsafe {
            let dictionary = self::dictionary(dictionary, len_bytes)?;
            (Out::new(pool, "pool")?, super::options(options)?, dictionary)
        };
        let Codec::Zstd(zstd) = codec else {
            return super::bad("codec beside a dictionary", codec_number(&codec));
        };
        create(options.codec(Codec::Zstd(zstd.dictionary(dictionary))), out)
    })
}

fn codec_number(codec: &Codec) -> u64 {
    match codec {
        Codec::None => GLEBE_CODEC_NONE,
        Codec::Zstd(_) => GLEBE_CODEC_ZSTD,
        _ => GLEBE_CODEC_LZ4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_codec_is_named_as_the_header_has_it() {
        assert_eq!(codec_number(&Codec::default()), GLEBE_CODEC_LZ4);
        assert_eq!(codec_number(&Codec::None), GLEBE_CODEC_NONE);
    }
}
