//! Tests that the key of an encrypted file is in no core dump and in no forked child.
//!
//! The tests try each 32 bytes of writable memory, at multiples of 4, as the key of a record with
//! known contents. The cipher is ChaCha20 (RFC 8439).
#![allow(unsafe_code)] // Safety: touches of a region that lives.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;

use glebe::swap::cache::SwapCache;
use glebe::swap::{Store, SwapError};
use glebe::units::{Bytes, Pages};

use super::sealed::Dir;
use super::{bytes_of, page, Matter};

const HEAD: [u32; 4] = [0x2545_f491, 0x9fb2_1c65, 0x1ce4_e5b9, 0x1331_11eb];
const OBJECTS: u64 = 150;

fn object(n: u64) -> Vec<u8> {
    let mut bytes = bytes_of(n, page(), Matter::Noise);
    HEAD.iter().zip(bytes.chunks_exact_mut(4)).for_each(|(word, to)| {
        to.copy_from_slice(&word.to_le_bytes());
    });
    bytes
}

/// A record's nonce, and the first words of its key stream.
struct Record {
    nonce: [u32; 2],
    stream: [u32; 4],
}

impl Record {
    /// Reads 8 bytes of nonce, 16 of tag, then the start of the contents.
    fn first_of(file: &File) -> Self {
        let mut bytes = [0; 40];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let word = |nth: usize| u32::from_le_bytes(*bytes[4 * nth..].first_chunk().unwrap());
        let stream = std::array::from_fn(|nth| word(6 + nth) ^ HEAD[nth]);
        Self { nonce: [word(0), word(1)], stream }
    }

    fn is_of(&self, key: &[u32]) -> bool {
        // Refuses most candidates quickly: a random key hardly ever has a zero word or twins here.
        if key[0] == 0 || key[3] == 0 || key[7] == 0 || key[0] == key[1] {
            return false;
        }
        let mut state = [0; 16];
        state[..4].copy_from_slice(&[0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574]);
        state[4..12].copy_from_slice(key);
        state[12] = 1;
        state[13..15].copy_from_slice(&self.nonce);
        let first = state;
        for _ in 0..10 {
            for at in 0..4 {
                quarter(&mut state, [at, at + 4, at + 8, at + 12]);
            }
            for at in 0..4 {
                quarter(&mut state, [at, 4 + (at + 1) % 4, 8 + (at + 2) % 4, 12 + (at + 3) % 4]);
            }
        }
        (0..4).all(|at| state[at].wrapping_add(first[at]) == self.stream[at])
    }
}

fn quarter(x: &mut [u32; 16], [a, b, c, d]: [usize; 4]) {
    for (turn, other) in [(16, 12), (8, 7)] {
        x[a] = x[a].wrapping_add(x[b]);
        x[d] = (x[d] ^ x[a]).rotate_left(turn);
        x[c] = x[c].wrapping_add(x[d]);
        x[b] = (x[b] ^ x[c]).rotate_left(other);
    }
}

struct Mapped {
    range: std::ops::Range<u64>,
    name: String,
    flags: String,
}

impl Mapped {
    fn has(&self, flag: &str) -> bool {
        self.flags.split_whitespace().any(|one| one == flag)
    }
}

fn all_mapped() -> Vec<Mapped> {
    let mut all: Vec<Mapped> = Vec::new();
    for line in fs::read_to_string("/proc/self/smaps").unwrap().lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let bounds = words[0].split_once('-').and_then(|(start, end)| {
            let number = |text| u64::from_str_radix(text, 16).ok();
            Some(number(start)?..number(end)?)
        });
        match (bounds, all.last_mut()) {
            (Some(range), _) => {
                let name = [words[1], words.get(5).unwrap_or(&"")].join(" ");
                all.push(Mapped { range, name, flags: String::new() });
            }
            (None, Some(last)) => {
                line.strip_prefix("VmFlags:").into_iter().for_each(|of| last.flags = of.to_owned());
            }
            _ => {}
        }
    }
    all.retain(|mapped| mapped.name.starts_with("rw"));
    all
}

fn that_have_the_key_of(record: &Record) -> Vec<Mapped> {
    let memory = File::open("/proc/self/mem").unwrap();
    let mut all = all_mapped();
    // Reads mappings that core dumps skip (`dd`) last: such a read copies the key into `bytes`,
    // which the search reads too.
    all.sort_by_key(|mapped| mapped.has("dd"));
    let mut bytes = vec![0; (64 << 10) + 28];
    all.retain(|mapped| {
        mapped.range.clone().step_by(64 << 10).any(|at| {
            let len = bytes.len().min((mapped.range.end - at) as usize);
            let read = memory.read_at(&mut bytes[..len], at).unwrap_or(0);
            let words = bytes[..read].chunks_exact(4);
            let words: Vec<u32> =
                words.map(|word| u32::from_le_bytes(*word.first_chunk().unwrap())).collect();
            words.windows(8).any(|key| record.is_of(key))
        })
    });
    all
}

/// Runs `work`, which uses an encrypted file, in a thread. While that thread waits, searches all
/// writable memory for the key, and asserts that only one mapping has the key, and that core dumps
/// and children do not get this mapping.
fn is_nowhere<T>(name: &str, work: impl FnOnce(&Path) -> Option<T> + Send) {
    let dir = Dir::new(name);
    let (done, is_done) = channel();
    let (end, is_over) = channel::<()>();
    thread::scope(|scope| {
        let path = dir.path();
        scope.spawn(move || {
            let made = work(path);
            done.send(made.is_some()).unwrap();
            let _ = is_over.recv();
        });
        if is_done.recv().unwrap() {
            let found = that_have_the_key_of(&Record::first_of(&dir.file()));
            for Mapped { range, name, flags } in &found {
                println!("the key is in {range:#x?} {name}: {flags}");
            }
            assert_eq!(found.len(), 1, "the key is in one mapping");
            assert!(found[0].has("dd") && found[0].has("wf"), "{}", found[0].flags);
        }
        drop(end);
    });
}

#[test]
fn the_key_of_a_store_is_in_no_core_dump() {
    glebe_testing::alone!();
    is_nowhere("key-store", |dir| {
        let options = Store::options().pool_limit(Bytes::new(128 << 10)).encrypted();
        let store = options.file_in(dir, Bytes::mib(16)).capacity(Bytes::mib(16));
        let store = store.build(Bytes::new(128 << 10)).unwrap();
        let keys: Vec<_> = (0..OBJECTS).map(|n| store.insert(&object(n)).unwrap()).collect();
        keys.iter().take(20).for_each(|key| drop(store.pin(*key).unwrap()));
        assert!(store.stats().read_back > 0, "{}", store.stats());
        Some(store)
    });
}

#[test]
fn the_key_of_an_area_is_in_no_core_dump() {
    glebe_testing::alone!();
    is_nowhere("key-area", |dir| {
        let cache = SwapCache::with_limit(Bytes::new(128 << 10)).unwrap().encrypted();
        let area = cache.area(Pages::new(OBJECTS), dir, Bytes::mib(16)).unwrap();
        let mut out = vec![0; page()];
        (0..OBJECTS).for_each(|n| area.store(n, &object(n)).unwrap());
        (0..OBJECTS).for_each(|n| assert!(area.load(n, &mut out).unwrap()));
        Some(area)
    });
}

#[test]
fn the_key_of_a_region_is_in_no_core_dump() {
    glebe_testing::alone!();
    is_nowhere("key-region", |dir| {
        let options = Store::options().pool_limit(Bytes::new(128 << 10)).encrypted();
        let options = options.file_in(dir, Bytes::mib(16));
        let len = Pages::new(OBJECTS).bytes(glebe::page_size());
        let region = match options.build_region(len, Bytes::new(128 << 10)) {
            Err(SwapError::Os(error)) => {
                println!("skipped: {error}");
                return None;
            }
            made => made.unwrap(),
        };
        let at = |n: u64| Bytes::new(n * page() as u64);
        (0..OBJECTS).for_each(|n| region.write_at(at(n), &object(n)).unwrap());
        (0..OBJECTS).for_each(|n| {
            let word = region.as_ptr().wrapping_add(at(n).as_usize()).cast::<u32>();
            // SAFETY: the word is in a live region.
            assert_eq!(unsafe { word.read_volatile() }, HEAD[0]);
        });
        assert!(region.stats().read_back > 0, "{}", region.stats());
        Some(region)
    });
}
