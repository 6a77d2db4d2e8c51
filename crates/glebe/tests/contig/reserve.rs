//! Tests a reserve in an unprivileged process, which may neither grow a pool nor see frame numbers.

use std::os::unix::process::CommandExt;

use glebe::internal::sys::processes::process::effective_user;
use glebe::reserve::{Contiguity, Request, Reserve};
use glebe::units::{Bytes, Pages};
use glebe_testing::process::{child_of, is_child};

use super::use_all::use_all;
use super::NOBODY;

const LEN: Bytes = Bytes::mib(16);

#[test]
fn nobody_has_a_reserve_that_proves_no_more_than_can_be_seen() {
    if is_child() {
        assert_eq!(effective_user(), NOBODY);
        let reserve = Reserve::new(LEN).unwrap();
        println!("{:?}", reserve.contig().why_not_better());
        use_all(&reserve);
        let longest = reserve.largest_run().unwrap();
        let block = reserve.alloc(longest).unwrap();
        let proved = block.contiguity();
        assert!(matches!(proved, Contiguity::WithinGrain(grain) if grain == longest), "{proved:?}");
        let more = reserve.alloc(longest + Pages::new(1));
        assert!(more.is_err(), "frames are hidden from nobody");
        drop(block);
        let any = reserve.alloc(Request::new(longest + Pages::new(1)).any()).unwrap();
        assert_eq!(any.contiguity(), Contiguity::VirtualOnly);
        return;
    }
    if effective_user() != 0 {
        println!("skipped: only root can become nobody");
        return;
    }
    let mut child =
        child_of("contig::reserve::nobody_has_a_reserve_that_proves_no_more_than_can_be_seen");
    match child.uid(NOBODY).gid(NOBODY).status() {
        Ok(status) => assert!(status.success()),
        Err(error) => println!("skipped: nobody cannot run this program: {error}"),
    }
}
