//! Tests the growth of the reserve for leases, and its end.

use std::time::Duration;

use glebe::internal::sys::processes::process::effective_user;
use glebe::reclaim::{Part, Policy, ReclaimError, Reclaimer};
use glebe::units::Bytes;
use glebe_lease::wire::Flags;
use glebe_lease::{Client, Lease};
use glebe_testing::time::wait_until;
use glebed::{Daemon, Settings};

use super::leases::{errno_of, EAGAIN, ENOMEM};
use super::running::{brick, settings, wish, Running};

const PATIENCE: Duration = Duration::from_secs(20);

/// Returns a daemon with 4 bricks that may have 6 more, for a time.
fn growing(idle: Duration) -> Option<Running> {
    if effective_user() != 0 {
        println!("skipped: only root can add pages to the pool");
        return None;
    }
    Running::with_room(4, 12, Settings { grow: Bytes::new(6 * brick()), idle, ..settings(1) })
}

/// Takes a lease of memory that is added first.
fn lease_of_more(client: &Client, bricks: u64) -> Lease {
    let refused = client.lease(wish(bricks, Flags::default())).unwrap_err();
    assert_eq!(errno_of(&refused), EAGAIN, "{refused}");
    assert!(refused.to_string().contains("memory is being added"), "{refused}");
    let mut had = None;
    let is_had = || {
        had = client.lease(wish(bricks, Flags::default())).ok();
        had.is_some()
    };
    wait_until("memory is added", PATIENCE, is_had);
    had.unwrap()
}

fn len(running: &Running) -> u64 {
    running.reserve.len().bytes(glebe::page_size()).get() / brick()
}

#[test]
fn memory_is_added_up_to_the_limit_and_given_back() {
    let Some(running) = growing(Duration::from_millis(1500)) else { return };
    let client = running.client();
    let refused = client.lease(wish(11, Flags::default())).unwrap_err();
    assert_eq!(errno_of(&refused), ENOMEM, "more than there may ever be: {refused}");
    let first = lease_of_more(&client, 7);
    assert_eq!(len(&running), 7);
    let refused = client.lease(wish(4, Flags::default())).unwrap_err();
    assert_eq!(errno_of(&refused), ENOMEM, "3 may be added: {refused}");
    let second = lease_of_more(&client, 2);
    let grown = format!("glebe_lease_grown_bytes {}\n", 5 * brick());
    assert!(client.stats().unwrap().contains(&grown));
    let mut byte = [1];
    second.read(Bytes::new(2 * brick() - 1), &mut byte).unwrap();
    assert_eq!(byte, [0]);
    first.write(Bytes::new(7 * brick() - 1), &[1]).unwrap();
    drop(first);
    wait_until("5 bricks are given back", PATIENCE, || len(&running) == 4);
    second.write(Bytes::ZERO, &[1]).unwrap();
    drop(second);
    running.wait_until_all_is_back();
    assert!(client.stats().unwrap().contains("glebe_lease_grown_bytes 0\n"));
    client.lease(wish(4, Flags::default())).unwrap();
}

#[test]
fn a_reclaimer_has_what_was_added_until_the_daemon_ends() {
    let Some(mut running) = growing(Duration::from_secs(3600)) else { return };
    drop(lease_of_more(&running.client(), 5));
    let reclaimer = Reclaimer::new(Policy::default()).unwrap();
    let part = || Part::reserve(&running.reserve, Bytes::ZERO);
    assert!(matches!(reclaimer.add(part()), Err(ReclaimError::Taken { .. })));
    running.daemon = None;
    reclaimer.add(part()).unwrap();
}

#[test]
fn a_reserve_without_room_does_not_grow() {
    let Some(running) = Running::new(2, settings(0)) else { return };
    let path = running.path.with_extension("other");
    let settings = Settings { path, grow: Bytes::new(brick()), ..settings(0) };
    let refused = Daemon::start(&running.reserve, settings).unwrap_err();
    let more = format!("may not grow by {}", Bytes::new(brick()));
    assert!(refused.to_string().contains(&more), "{refused}");
}
