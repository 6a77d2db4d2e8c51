//! A reserve of whoever may neither grow a pool nor see frames.

use std::os::unix::process::CommandExt;

use glebe::reserve::{Contiguity, Put, Request, Reserve};
use glebe::sys::page_size;
use glebe::sys::process::effective_user;
use glebe::units::{Bytes, Pages};

use super::child::{child_of, is_child};
use super::NOBODY;

const LEN: Bytes = Bytes::mib(16);

/// Uses every byte for first class and then every page for tenants.
fn use_all(reserve: &Reserve) {
    let all = Request::new(reserve.len()).any();
    let mut block = reserve.alloc_with(all).unwrap();
    block.bytes_mut().unwrap().fill(0xa5);
    assert!(block.bytes().unwrap().iter().all(|byte| *byte == 0xa5));
    drop(block);
    let pool = reserve.page_cache().pool("all").unwrap();
    let page = vec![0x5a; page_size().bytes().as_usize()];
    for index in 0..reserve.len().get() {
        assert_eq!(pool.put(1, index, &page).unwrap(), Put::Stored);
    }
    reserve.stats().check().unwrap();
}

#[test]
fn nobody_has_a_reserve_that_proves_no_more_than_can_be_seen() {
    if is_child() {
        assert_eq!(effective_user(), NOBODY);
        let reserve = Reserve::builder().map(LEN).unwrap();
        println!("{:?}", reserve.contig().why_not_better());
        use_all(&reserve);
        let longest = reserve.largest_run().unwrap();
        let block = reserve.alloc(longest, Pages::new(1)).unwrap();
        let proved = block.contiguity();
        assert!(matches!(proved, Contiguity::WithinGrain(grain) if grain == longest), "{proved:?}");
        let more = reserve.alloc(longest + Pages::new(1), Pages::new(1));
        assert!(more.is_err(), "frames are hidden from nobody");
        drop(block);
        let any = reserve.alloc_with(Request::new(longest + Pages::new(1)).any()).unwrap();
        assert_eq!(any.contiguity(), Contiguity::VirtualOnly);
        return;
    }
    if effective_user() != 0 {
        println!("skipped: only root can become nobody");
        return;
    }
    let mut child = child_of("reserve::nobody_has_a_reserve_that_proves_no_more_than_can_be_seen");
    match child.uid(NOBODY).gid(NOBODY).status() {
        Ok(status) => assert!(status.success()),
        Err(error) => println!("skipped: nobody cannot run this program: {error}"),
    }
}
