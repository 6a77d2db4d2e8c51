//! Tests the volatile file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use glebe_cache::units::Bytes;
use glebe_cache::{CacheError, SharedCache, SharedCacheOptions};
use glebe_testing::process::{child_of, is_child};
use glebe_testing::stressed::{in_child, ChildEnd};
use glebe_testing::Scratch;
use glebe_volatile::{page_size, Priority, Shared};

const FOLDER: &str = "GLEBE_TEST_FOLDER";

fn options(folder: &Path) -> SharedCacheOptions {
    let options = SharedCache::options().size(Bytes::mib(8)).folder(folder);
    options.socket(folder.join("no daemon"))
}

fn values(cache: &SharedCache, keys: std::ops::Range<u32>) -> usize {
    let mut value = Vec::new();
    let is_right = |key: &u32| {
        let is_hit = cache.get(&key.to_le_bytes(), &mut value);
        assert!(!is_hit || value == key.to_le_bytes().repeat(1000), "key {key}");
        is_hit
    };
    keys.filter(is_right).count()
}

fn fill(cache: &SharedCache, keys: std::ops::Range<u32>) {
    for key in keys {
        assert!(cache.put(&key.to_le_bytes(), &key.to_le_bytes().repeat(1000)).unwrap());
    }
}

#[test]
fn a_socket_without_a_daemon_is_an_error_unless_a_folder_is_named() {
    let scratch = Scratch::in_memory("glebe-cache");
    let socket = || SharedCache::options().size(Bytes::mib(8)).socket(scratch.path().join("none"));
    let refused = socket().open("one").unwrap_err().to_string();
    assert!(refused.contains("none: No such file") && refused.contains("glebe serve"), "{refused}");
    assert!(!socket().folder(scratch.path()).open("one").unwrap().is_of_daemon());
}

#[test]
fn processes_share_a_file_and_a_purge_leaves_misses() {
    if is_child() {
        let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
        let cache = options(&folder).open("shared").unwrap();
        assert_eq!(values(&cache, 0..100), 100);
        fill(&cache, 100..200);
        return;
    }
    let scratch = Scratch::in_memory("glebe-cache");
    let cache = options(scratch.path()).open("shared").unwrap();
    assert!(!cache.is_of_daemon());
    assert_eq!((cache.size(), values(&cache, 0..100)), (Bytes::mib(8), 0));
    fill(&cache, 0..100);
    let mut child = child_of("files::processes_share_a_file_and_a_purge_leaves_misses");
    assert!(child.env(FOLDER, scratch.path()).status().unwrap().success());
    assert_eq!(values(&cache, 0..200), 200);
    // Any program of the user may purge: all is marked between two calls.
    let file = Shared::options().open(&scratch.path().join("shared")).unwrap();
    assert_eq!(file.purge(Bytes::mib(2), Priority::HIGHEST).unwrap(), Bytes::mib(2));
    let left = values(&cache, 0..200);
    assert!(0 < left && left < 200, "{left} of 200");
    assert_eq!(file.purge(Bytes::mib(8), Priority::HIGHEST).unwrap(), Bytes::mib(6));
    assert_eq!(values(&cache, 0..200), 0);
    fill(&cache, 0..200);
    assert_eq!(values(&cache, 0..200), 200);
    assert!(cache.remove(&7_u32.to_le_bytes()) && !cache.remove(&7_u32.to_le_bytes()));
    assert_eq!(values(&cache, 0..200), 199);
    cache.end().unwrap();
    assert!(!scratch.path().join("shared").exists());
}

#[test]
fn the_end_takes_values_of_earlier_processes() {
    let scratch = Scratch::in_memory("glebe-cache");
    fill(&options(scratch.path()).open("left").unwrap(), 0..200);
    let cache = options(scratch.path()).open("left").unwrap();
    cache.end().unwrap();
    assert_eq!(values(&cache, 0..200), 0);
}

#[test]
fn values_of_earlier_processes_are_volatile() {
    let scratch = Scratch::in_memory("glebe-cache");
    fill(&options(scratch.path()).open("left").unwrap(), 0..200);
    let cache = options(scratch.path()).open("left").unwrap();
    let file = Shared::options().open(&scratch.path().join("left")).unwrap();
    assert_eq!(file.purge(Bytes::mib(8), Priority::HIGHEST).unwrap(), Bytes::mib(8));
    assert_eq!(values(&cache, 0..200), 0);
}

#[test]
fn odd_names_are_files_of_their_own_and_bad_folders_are_refused() {
    let scratch = Scratch::in_memory("glebe-cache");
    for name in ["..", "a/b", "a%2fb", "\u{e4}"] {
        let cache = options(scratch.path()).open(name).unwrap();
        assert!(cache.put(b"name", name.as_bytes()).unwrap());
    }
    for name in ["..", "a/b", "a%2fb", "\u{e4}"] {
        let cache = options(scratch.path()).open(name).unwrap();
        let mut value = Vec::new();
        assert!(cache.get(b"name", &mut value) && value == name.as_bytes());
    }
    let missing = options(&scratch.path().join("no/such")).open("name").unwrap_err();
    assert!(matches!(missing, CacheError::Directory { .. }), "{missing}");
    let path = scratch.path().join("other");
    std::fs::write(&path, b"another program's file").unwrap();
    let other = options(scratch.path()).open("other").unwrap_err();
    assert!(matches!(other, CacheError::File { .. }), "{other}");
    assert!(path.exists());
}

#[test]
fn a_forked_child_uses_the_same_cache() {
    let scratch = Scratch::in_memory("glebe-cache");
    let cache = options(scratch.path()).open("forked").unwrap();
    fill(&cache, 0..10);
    let ended = in_child(|| {
        let seen = values(&cache, 0..10);
        fill(&cache, 10..20);
        seen as u8
    });
    assert_eq!(ended, ChildEnd::Exit(10));
    assert_eq!(values(&cache, 0..20), 20);
}

/// Forked workers must not take the same numbers for different values of one length.
#[test]
fn long_values_of_forked_children_do_not_mix() {
    let scratch = Scratch::in_memory("glebe-cache");
    let cache = options(scratch.path()).size(Bytes::mib(32)).open("forks").unwrap();
    let value_of = |key: u8| vec![key; 300_000];
    assert!(cache.put(b"before", &value_of(9)).unwrap());
    for key in 0..3 {
        let ended = in_child(|| u8::from(cache.put(&[key], &value_of(key)).unwrap()));
        assert_eq!(ended, ChildEnd::Exit(1));
    }
    assert!(cache.put(&[3], &value_of(3)).unwrap());
    let mut value = Vec::new();
    for key in 0..4 {
        assert!(cache.get(&[key], &mut value) && value == value_of(key), "key {key}");
    }
}

#[test]
fn a_file_of_small_places_stores_what_fits() {
    let scratch = Scratch::in_memory("glebe-cache");
    let made = Shared::options().granule(page_size().bytes());
    made.create_at(&scratch.path().join("small"), Bytes::mib(8)).unwrap();
    let cache = options(scratch.path()).open("small").unwrap();
    assert!(cache.put(b"key", b"value").unwrap());
    assert!(!cache.put(b"key", &[7; 100_000]).unwrap());
    assert!(!cache.get(b"key", &mut Vec::new()), "the older value must not stay");
}

#[test]
fn long_values_are_whole_or_missing() {
    let scratch = Scratch::in_memory("glebe-cache");
    let cache = options(scratch.path()).size(Bytes::mib(32)).open("long").unwrap();
    let value_of = |nth: u8| -> Vec<u8> {
        (0..2_500_000_u32).map(|at| (at >> 8) as u8 ^ at as u8 ^ nth).collect()
    };
    for nth in 0..4 {
        assert!(cache.put(&[nth], &value_of(nth)).unwrap());
    }
    let mut value = Vec::new();
    for nth in 0..4 {
        assert!(cache.get(&[nth], &mut value) && value == value_of(nth), "{nth}");
    }
    assert!(cache.put(&[0], &value_of(9)).unwrap() && cache.put(&[1], b"short").unwrap());
    assert!(cache.get(&[0], &mut value) && value == value_of(9));
    assert!(cache.get(&[1], &mut value) && value == b"short");
    let file = Shared::options().open(&scratch.path().join("long")).unwrap();
    file.purge(Bytes::mib(8), Priority::HIGHEST).unwrap();
    for nth in [0, 2, 3] {
        let is_hit = cache.get(&[nth], &mut value);
        assert!(!is_hit || value == value_of(if nth == 0 { 9 } else { nth }), "{nth}");
    }
}

/// Writes noise to a file from an offset on.
fn spoil(file: &File, from: u64) {
    let mut noise = 1_u64;
    let mut block = || -> Vec<u8> {
        let mut next = || {
            noise = noise.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            noise.rotate_left(29).to_le_bytes()
        };
        (0..8192).flat_map(|_| next()).collect()
    };
    for at in (from..file.metadata().unwrap().len()).step_by(64 << 10) {
        file.write_all_at(&block(), at).unwrap();
    }
}

/// Another process of the user may write anything to the file, or cut it.
#[test]
fn a_spoilt_or_cut_file_harms_nobody() {
    let scratch = Scratch::in_memory("glebe-cache");
    for name in ["all", "values", "cut"] {
        let cache = options(scratch.path()).open(name).unwrap();
        fill(&cache, 0..50);
        let file = File::options().write(true).open(scratch.path().join(name)).unwrap();
        let ended = in_child(|| {
            match name {
                "all" => spoil(&file, 0),
                "values" => spoil(&file, file.metadata().unwrap().len() - Bytes::mib(8).get()),
                _ => file.set_len(0).unwrap(),
            }
            for key in 0..200_u32 {
                let _ = cache.get(&key.to_le_bytes(), &mut Vec::new());
                let _ = cache.put(&key.to_le_bytes(), &[7; 1000]);
                let _ = cache.put(&key.to_le_bytes(), &[7; 300_000]);
                cache.remove(&key.to_le_bytes());
            }
            u8::from(name == "values" && values(&cache, 0..50) > 0)
        });
        assert_eq!(ended, ChildEnd::Exit(0), "{name}");
    }
}
