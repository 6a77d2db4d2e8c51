//! Tests codecs.

use super::super::tests::samples::{noise, text};
use super::*;
use crate::entry::word::Place;

const PAGE: usize = 4096;

fn codecs() -> Vec<Codec> {
    vec![Codec::None, Codec::Lz4, Codec::Zstd(Zstd::default()), Codec::Zstd(Zstd::new(-5))]
}

fn encoded(coder: &Coder, object: &[u8], limit: usize) -> (Kind, Vec<u8>) {
    coder.encode(object, limit, |kind, bytes| (kind, bytes.to_vec()))
}

fn live(kind: Kind, stored: &[u8]) -> Entry {
    Entry::live(kind, Place { zspage: 0, slot: 0 }, stored.len(), 0)
}

#[test]
fn what_goes_in_comes_out_of_every_codec_at_every_length() {
    for codec in codecs() {
        let coder = Coder::new(&codec, PAGE).unwrap();
        let mut shorter = 0;
        for len in (1..80).chain([100, 255, 256, 1000, PAGE - 1, PAGE]) {
            for object in [text(len as u64, len), noise(1, len), vec![7; len]] {
                let (form, stored) = encoded(&coder, &object, PAGE);
                assert!(stored.len() <= object.len() && (form == Kind::Raw) == (stored == object));
                shorter += usize::from(stored.len() < object.len());
                let mut out = vec![0xee; PAGE];
                let entry = live(form, &stored);
                assert_eq!(coder.len(entry, &stored).unwrap(), len);
                let made = coder.decode(entry, &stored, &mut out);
                assert_eq!(made.unwrap(), len, "{codec:?} {form:?}");
                assert!(out[..len] == object && out[len..].iter().all(|&byte| byte == 0xee));
                let short = coder.decode(entry, &stored, &mut out[..len - 1]);
                let said = matches!(short, Err(Error::BufferTooSmall { given, len: needed })
                    if given == len - 1 && needed == len);
                assert!(said, "{short:?}");
            }
        }
        assert_eq!(shorter > 50, codec != Codec::None, "{codec:?}: {shorter} became shorter");
    }
}

#[test]
fn what_does_not_pay_is_stored_as_it_is() {
    for codec in codecs() {
        let coder = Coder::new(&codec, PAGE).unwrap();
        let object = text(1, PAGE);
        let (form, stored) = encoded(&coder, &object, PAGE);
        if form == Kind::Raw {
            continue;
        }
        assert_eq!(encoded(&coder, &object, stored.len()), (form, stored.clone()));
        assert_eq!(encoded(&coder, &object, stored.len() - 1), (Kind::Raw, object));
        assert_eq!(encoded(&coder, &noise(1, PAGE), PAGE), (Kind::Raw, noise(1, PAGE)));
    }
}

#[test]
fn damage_is_an_error_or_another_object_of_the_same_length() {
    for codec in codecs().into_iter().skip(1) {
        let coder = Coder::new(&codec, PAGE).unwrap();
        for len in [300, PAGE] {
            let (form, stored) = encoded(&coder, &text(3, len), PAGE);
            let mut refused = 0;
            let mut out = [0; PAGE];
            for at in 0..stored.len() {
                let mut damaged = stored.clone();
                damaged[at] = !damaged[at];
                refused += u32::from(coder.decode_coded(form, &damaged, &mut out).is_err());
                refused += u32::from(coder.decode_coded(form, &stored[..at], &mut out).is_err());
            }
            assert!(refused > stored.len() as u32 / 2, "{form:?} {refused}");
        }
    }
}

#[test]
fn a_bad_level_is_named() {
    let bad = Coder::new(&Codec::Zstd(Zstd::new(1000)), PAGE).unwrap_err().to_string();
    assert!(bad.contains("1000") && bad.contains("22"), "{bad}");
}

#[test]
fn one_word_over_and_over_and_nothing_else() {
    for (word, words) in [(0_u64, 512), (u64::MAX, 1), (0x0102_0304_0506_0708, 512)] {
        let mut object = word.to_le_bytes().repeat(words);
        assert_eq!(same_filled(&object), Some(word));
        object.push(0);
        assert_eq!(same_filled(&object), None);
        object.pop();
        if words > 1 {
            for at in [0, 7, 8, 2000, object.len() - 1] {
                object[at] ^= 1;
                assert_eq!(same_filled(&object), None, "{at}");
                object[at] ^= 1;
            }
        }
    }
    assert_eq!((same_filled(&[]), same_filled(&[0; 7])), (None, None));
}
