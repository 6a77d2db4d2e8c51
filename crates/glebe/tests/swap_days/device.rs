//! Tests devices that are full, or refuse to read or write, and files changed by other programs.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use glebe::swap::SwapError;
use glebe_testing::Scratch;

use super::descriptor::{descriptors_in, is_refusal, Descriptor, Device};
use super::process::with_own_disk;
use super::{Kind, Paged, KINDS, PAGES};

fn each(name: &str, test: impl Fn(Kind, &Paged, &Descriptor)) {
    for (kind, is_sealed) in KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let scratch = Scratch::new(&format!("{name}-{kind:?}-{is_sealed}"));
        let Some(paged) = Paged::new(kind, scratch.path(), PAGES, is_sealed) else { continue };
        let files = descriptors_in(scratch.path());
        let [file] = &files[..] else { panic!("{} files", files.len()) };
        paged.write_all(1);
        paged.check_all(&[1; PAGES as usize]);
        test(kind, &paged, file);
        file.set(Device::Works);
    }
}

fn write_all(paged: &Paged, was: &[u64], version: u64) -> (Vec<u64>, Vec<SwapError>) {
    let mut errors = Vec::new();
    let mut write = |(n, was): (u64, &u64)| {
        let (now, error) = paged.after(paged.write(n, version), *was, version);
        errors.extend(error);
        now
    };
    let now = (0..).zip(was).map(&mut write).collect();
    (now, errors)
}

#[test]
fn a_device_that_refuses_to_write_loses_nothing() {
    each("writes", |kind, paged, file| {
        let mut known = vec![1; PAGES as usize];
        for (device, version) in [(Device::RefusesWrites, 2), (Device::RefusesAll, 3)] {
            file.set(device);
            let (now, errors) = write_all(paged, &known, version);
            assert!(errors.len() > 30, "{kind:?}: {} refused", errors.len());
            errors.iter().for_each(|error| assert!(is_refusal(error), "{kind:?}: {error}"));
            known = now;
            // A readable page has the right contents. All pages do once the device works again.
            for (n, version) in (0..).zip(&known) {
                match paged.read(n) {
                    Ok(found) => assert_eq!(found, *version, "{kind:?}, page {n}"),
                    Err(error) => assert!(is_refusal(&error), "{kind:?}: {error}"),
                }
            }
            file.set(Device::Works);
            paged.check_all(&known);
        }
        paged.write_all(4);
        paged.check_all(&[4; PAGES as usize]);
    });
}

#[test]
fn a_device_that_refuses_once_has_one_call_refused() {
    for device in [Device::RefusesWrites, Device::RefusesReads] {
        each("once", |kind, paged, file| {
            let mut known = vec![1; PAGES as usize];
            let mut refused = 0;
            for n in 0..PAGES {
                if n % 8 == 0 {
                    file.set(device);
                }
                let at = n as usize;
                let (now, error) = paged.after(paged.write(n, 2), known[at], 2);
                known[at] = now;
                if let Some(error) = error {
                    assert!(is_refusal(&error), "{kind:?}: {error}");
                    refused += 1;
                }
                file.set(Device::Works);
                assert_eq!(paged.read(n).unwrap(), now, "{kind:?}, page {n}");
            }
            // An area's write reads nothing from the device, so refused reads make no write fail.
            let expects = kind != Kind::Area || device == Device::RefusesWrites;
            assert!((refused > 0) == expects && refused <= PAGES / 8, "{kind:?}: {refused}");
            paged.check_all(&known);
        });
    }
}

#[test]
fn a_device_that_refuses_to_read_is_an_error_that_passes() {
    each("reads", |kind, paged, file| {
        file.set(Device::RefusesReads);
        for _ in 0..2 {
            let read = |n| paged.read(n).inspect_err(|error| assert!(is_refusal(error), "{error}"));
            let found: Vec<_> = (0..PAGES).map(read).collect();
            assert!(found.iter().flatten().all(|version| *version == 1));
            let refused = found.iter().filter(|found| found.is_err()).count();
            assert!(refused > 40, "{kind:?}: {refused}");
        }
        file.set(Device::Works);
        paged.check_all(&[1; PAGES as usize]);
    });
}

#[test]
fn what_somebody_else_did_to_the_file_is_an_error_and_never_data() {
    for is_cut in [true, false] {
        each("changed", |kind, paged, file| {
            let file = file.open(OpenOptions::new().write(true));
            let len = file.metadata().unwrap().len();
            if is_cut {
                file.set_len(0).unwrap();
            } else {
                file.write_all_at(&vec![0xa5; len as usize], 0).unwrap();
            }
            let mut damaged = Vec::new();
            for n in 0..PAGES {
                match paged.read(n) {
                    Ok(version) => assert_eq!(version, 1, "{kind:?}, page {n}"),
                    Err(
                        SwapError::Damaged { .. }
                        | SwapError::LostPage { .. }
                        | SwapError::DamagedPage { .. },
                    ) => damaged.push(n),
                    Err(error) => panic!("{kind:?}, page {n}: {error}"),
                }
            }
            assert!(damaged.len() > 40, "{kind:?}: {} damaged", damaged.len());
            paged.check();
            let rest: Vec<_> = (0..PAGES).filter(|n| !damaged.contains(n)).collect();
            for version in 2..6 {
                rest.iter().for_each(|n| paged.write(*n, version).unwrap());
                rest.iter().for_each(|n| assert_eq!(paged.read(*n).unwrap(), version));
            }
            for n in damaged {
                if let Paged::Store(store, keys) = paged {
                    store.free(keys[n as usize]).unwrap();
                } else if kind == Kind::Area {
                    paged.write(n, 2).unwrap();
                    assert_eq!(paged.read(n).unwrap(), 2);
                }
            }
            paged.check();
        });
    }
}

#[test]
fn a_full_disk_refuses_and_loses_nothing() {
    glebe_testing::alone!();
    with_own_disk(c"tmpfs", 40, |dir| {
        for kind in KINDS {
            let Some(paged) = Paged::new(kind, dir, PAGES, false) else { continue };
            let (known, errors) = write_all(&paged, &[0; PAGES as usize], 1);
            assert!(errors.len() > 10, "{kind:?}: {} refused", errors.len());
            for error in &errors {
                assert!(error.to_string().contains("No space left"), "{kind:?}: {error}");
            }
            // A read may fail too, because it may have to evict another page to the disk.
            for (n, version) in (0..).zip(&known) {
                match paged.read(n) {
                    Ok(found) => assert_eq!(found, *version, "{kind:?}, page {n}"),
                    Err(error) => assert!(error.to_string().contains("No space left"), "{error}"),
                }
            }
            paged.check();
        }
    });
}

/// On ramfs, open(2) with O_DIRECT fails, but leaves a new name.
#[test]
fn where_no_file_is_written_past_the_page_cache_no_name_is_left() {
    glebe_testing::alone!();
    with_own_disk(c"ramfs", 0, |dir| {
        for kind in KINDS {
            let Some(paged) = Paged::new(kind, dir, PAGES, false) else { continue };
            if let Paged::Store(store, _) = &paged {
                assert_eq!(store.is_file_direct(), Some(false));
            }
            assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0, "{kind:?}: a name is left");
            paged.write_all(1);
            paged.check_all(&[1; PAGES as usize]);
        }
    });
}
