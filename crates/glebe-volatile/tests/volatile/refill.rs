//! Tests the callback [`Options::on_lost`], which refills lost pages: in forked children, and in
//! regions over the caller's memory.
//!
//! Safety: the callback's bytes outlive the regions.

use std::ptr;

use glebe_os::units::Bytes;
use glebe_volatile::{Engine, Error, Options, Priority, Region};

use super::children::{child_says, fork};
use super::memory::{page, pages, purge, whole};

unsafe extern "C" fn same(_: u64, _: usize, data: *const ()) -> *const u8 {
    data.cast()
}

pub fn refilled(sevens: &[u8]) -> Options {
    // SAFETY: the callback's bytes outlive the region.
    unsafe { Region::options().engine(Engine::Scan).on_lost(same, sevens.as_ptr().cast()) }
}

pub fn touch(region: &Region, number: usize) -> u8 {
    let at = region.as_ptr().wrapping_add(number * page() + 5);
    // SAFETY: the byte is in the region, and a loss is refilled.
    unsafe { at.read_volatile() }
}

fn goes_round(region: &Region) -> bool {
    region.mark(whole(region), Priority::NORMAL).unwrap();
    purge(region, 1..2);
    let is_told = matches!(
        region.try_read(pages(1..2).start, &mut [0; 9]),
        Err(Error::Purged { offset }) if offset == pages(1..2).start
    );
    is_told && touch(region, 1) == 7 && region.unmark(whole(region)).unwrap().is_empty()
}

#[test]
fn pages_are_refilled_in_a_child_and_in_its_child() {
    glebe_testing::alone!();
    let sevens = vec![7; page()];
    let region = match refilled(&sevens).build(Bytes::new(4 * page() as u64)) {
        Ok(region) => region,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    region.write(Bytes::ZERO, &vec![3; 4 * page()]).unwrap();
    region.mark(whole(&region), Priority::NORMAL).unwrap();
    purge(&region, 2..3);
    assert!(child_says(fork, || {
        let inherited = touch(&region, 2) == 7 && touch(&region, 3) == 3;
        inherited && child_says(fork, || goes_round(&region)) && goes_round(&region)
    }));
    assert_eq!((touch(&region, 2), touch(&region, 3)), (7, 3));
    assert!(goes_round(&region));
}

#[test]
fn pages_of_the_callers_memory_are_refilled() {
    let sevens = vec![7; page()];
    let mut own = vec![3_u8; 6 * page()];
    let len = Bytes::new(own.len() as u64);
    // SAFETY: the memory outlives the region and is only used through it.
    let region = match unsafe { refilled(&sevens).build_over(own.as_mut_ptr(), len) } {
        Ok(region) => region,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    assert!(goes_round(&region) && goes_round(&region));
    assert_eq!((touch(&region, 0), touch(&region, 1), touch(&region, 2)), (3, 7, 3));
    drop(region);
    // SAFETY: the memory is the test's own.
    assert_eq!(unsafe { ptr::from_ref(&own[0]).read_volatile() }, 3);
}

extern "C" fn of_the_programs(_: i32) {}

#[test]
fn a_handler_in_front_of_glebes_is_an_error_and_not_the_end() {
    glebe_testing::alone!();
    let sevens = vec![7; page()];
    let make = || refilled(&sevens).build(Bytes::new(4 * page() as u64));
    if let Err(why) = make() {
        println!("skipped: {why}");
        return;
    }
    // Runs in a child, whose handler affects no other test.
    assert!(child_says(fork, || {
        // SAFETY: an all-zero `sigaction` is valid.
        let (mut own, mut glebes): (libc::sigaction, libc::sigaction) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        own.sa_sigaction = of_the_programs as *const () as usize;
        // SAFETY: `own` is a valid action of this file.
        assert_eq!(unsafe { libc::sigaction(libc::SIGBUS, &own, &mut glebes) }, 0);
        let refused = matches!(make(), Err(Error::HandlerCovered));
        // Regions without a callback do not need the handler.
        let region = Region::options().engine(Engine::Scan).build(pages(0..4).end).unwrap();
        region.mark(whole(&region), Priority::NORMAL).unwrap();
        purge(&region, 1..2);
        let told = region.try_read(pages(1..2).start, &mut [0; 9]);
        // SAFETY: `glebes` is the action that the kernel returned.
        assert_eq!(unsafe { libc::sigaction(libc::SIGBUS, &glebes, ptr::null_mut()) }, 0);
        refused && matches!(told, Err(Error::Purged { .. })) && goes_round(&make().unwrap())
    }));
}
