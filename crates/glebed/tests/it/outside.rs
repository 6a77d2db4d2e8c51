//! Tests a daemon in a process of its own: in a PID namespace, and with few descriptors.

use std::path::PathBuf;

use glebe::units::Bytes;
use glebe_lease::Client;
use glebe_testing::process::is_child;
use glebe_testing::time::wait_until;
use rustix::process::{getrlimit, setrlimit, Resource};

use super::running::{brick, PATIENCE};
use super::served::{serve, Served};

#[test]
fn a_client_of_another_namespace_is_listed_as_process_0() {
    if is_child() {
        return serve(2, || {});
    }
    let test = "outside::a_client_of_another_namespace_is_listed_as_process_0";
    let words = ["unshare", "--pid", "--fork", "--kill-child", "--"];
    let Some(served) = Served::start(test, &words) else { return };
    let client = served.client();
    let lease = client.lease(Bytes::new(brick())).unwrap();
    let rows = client.list().unwrap();
    drop((lease, client));
    served.ends_well();
    assert_eq!(rows.iter().map(|row| row.pid).collect::<Vec<u32>>(), [0]);
}

/// Leaves `more` numbers for descriptors.
fn limit(more: usize) {
    let names = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    // The listing's own number is gone by now.
    let used: Vec<PathBuf> =
        names.collect::<Vec<_>>().into_iter().filter(|at| at.exists()).collect();
    let is_free = |nth: &u64| !used.contains(&PathBuf::from(format!("/proc/self/fd/{nth}")));
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = (0..).filter(is_free).nth(more);
    setrlimit(Resource::Nofile, limit).unwrap();
}

#[test]
fn a_client_waits_until_the_daemon_has_a_descriptor() {
    if is_child() {
        return serve(2, || limit(2));
    }
    let test = "outside::a_client_waits_until_the_daemon_has_a_descriptor";
    let Some(served) = Served::start(test, &[]) else { return };
    let (first, second) = (served.client(), served.client());
    let path = served.path().to_owned();
    let third = std::thread::spawn(move || Client::connect_to(&path, "third").map(drop));
    let is_counted = || !first.stats().unwrap().contains("glebe_lease_not_accepted_total 0\n");
    wait_until("the lack is counted", PATIENCE, is_counted);
    assert!(!third.is_finished());
    drop(second);
    third.join().unwrap().unwrap();
    drop(first);
    served.ends_well();
}
