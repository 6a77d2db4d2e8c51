//! Compares certificates and queries with frames from the page map.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

use glebe::contig::{Contig, HeldBy, Proof, Source};
use glebe::internal::sys::processes::process::effective_user;
use glebe::page_size;
use glebe::units::Bytes;
use glebe_testing::process::{child_of, is_child};
use glebe_testing::Scratch;

use super::{frames, machine, NOBODY};

#[test]
fn a_query_agrees_with_frames_read_by_other_means() {
    let Some(_machine) = machine() else { return };
    let page = page_size().bytes().get();
    for source in [Source::HUGETLB_2M, Source::Thp, Source::Plain] {
        let memory = match Contig::options().source(source).build(Bytes::mib(6)) {
            Ok(memory) if memory.held_by() != HeldBy::Nothing => memory,
            Ok(_) => {
                println!("skipped: {source} cannot be pinned");
                continue;
            }
            Err(error) => {
                println!("skipped: {error}");
                continue;
            }
        };
        let (start, len) = (memory.mapping().addr(), memory.len().get());
        let frames = frames(start, len);
        for (position, frame) in frames.iter().enumerate() {
            let place = memory.query(start + position * page as usize + 5).unwrap();
            assert_eq!(place.pfn.unwrap().get(), *frame, "{source} {position}");
            let after = frames[position..].windows(2).take_while(|two| two[0] + 1 == two[1]);
            let follow = (after.count() as u64 + 1) * page - 5;
            assert_eq!(place.contiguous.get(), follow, "{source} {position}");
            assert!(place.offset_in_run.get() % page == 5);
            assert_eq!(place.run_len, place.offset_in_run + place.contiguous);
        }
        assert_eq!(memory.query(start + len as usize), None);
        assert_eq!(memory.query(start - 1), None);
        assert_eq!(memory.verify().unwrap(), []);
    }
}

#[test]
fn a_certificate_with_frames_is_its_owners_alone() {
    let Some(_machine) = machine() else { return };
    let memory = Contig::options().source(Source::HUGETLB_2M).build(Bytes::mib(4)).unwrap();
    let certificate = memory.certificate();
    assert_eq!((certificate.held_by, certificate.proof), (HeldBy::HugetlbPool, Proof::Frames));
    let scratch = Scratch::new("certificate");
    let path = scratch.path().join("certificate");
    certificate.write(&path).unwrap();
    let mode = fs::metadata(&path).unwrap().permissions();
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(mode.mode() & 0o777, 0o600);
    for run in memory.runs() {
        assert!(text.contains(&format!("\"pfn\":{}", run.pfn.unwrap().get())), "{text}");
    }
}

fn pinned() -> Bytes {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).unwrap();
    let kib: u64 = line.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    Bytes::new(kib << 10)
}

#[test]
fn what_is_pinned_stays_when_memory_is_compacted() {
    let Some(_machine) = machine() else { return };
    for source in [Source::Plain, Source::Thp] {
        match Contig::options().source(source).pin(true).build(Bytes::mib(16)) {
            Ok(memory) => {
                assert_eq!(memory.held_by(), HeldBy::LongTermPin);
                match pinned() {
                    Bytes::ZERO => println!("skipped: VmPin counts no registered buffer"),
                    len => assert!(len >= memory.len(), "{source}: VmPin of {len}"),
                }
                let _ = fs::write("/proc/sys/vm/compact_memory", "1");
                assert_eq!(memory.verify().unwrap(), [], "{source}");
            }
            Err(error) => println!("skipped: {error}"),
        }
    }
    let free = Contig::options().source(Source::Plain).pin(false).build(Bytes::mib(1)).unwrap();
    assert_eq!((free.held_by(), free.why_not_pinned()), (HeldBy::Nothing, None));
    let both = Contig::options().source(Source::HUGETLB_2M).pin(true).build(Bytes::mib(2)).unwrap();
    assert_eq!(both.held_by(), HeldBy::LongTermPin);
}

#[test]
fn nobody_is_told_lengths_and_no_frame() {
    if is_child() {
        for source in [Source::Plain, Source::Thp] {
            let memory = match Contig::options().source(source).build(Bytes::mib(4)) {
                Ok(memory) => memory,
                Err(error) => {
                    println!("skipped: {error}");
                    continue;
                }
            };
            let Proof::Within(grain) = memory.proof() else { panic!("frames are hidden") };
            let within = grain.bytes(page_size());
            assert_eq!(
                memory.proof().to_string(),
                format!("contiguity proved only within {within}")
            );
            let place = memory.query(memory.mapping().addr()).unwrap();
            assert_eq!((place.pfn, place.contiguous), (None, within));
            let json = memory.certificate().to_json();
            assert!(!json.contains("pfn") && json.contains("\"proved\":\"within\""), "{json}");
            assert!(memory.held_by() != HeldBy::Nothing || memory.why_not_pinned().is_some());
        }
        return;
    }
    if effective_user() != 0 {
        println!("skipped: only root can become nobody");
        return;
    }
    let mut child = child_of("contig::certificate::nobody_is_told_lengths_and_no_frame");
    match child.uid(NOBODY).gid(NOBODY).status() {
        Ok(status) => assert!(status.success()),
        Err(error) => println!("skipped: nobody cannot run this program: {error}"),
    }
}
