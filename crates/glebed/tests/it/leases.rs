//! Tests leases, promises, lists and recalls.

use std::time::{Duration, Instant};

use glebe::contig::PoolLock;
use glebe::internal::sys::processes::process::effective_user;
use glebe::units::Bytes;
use glebe_lease::wire::Flags;
use glebe_lease::{Lease, LeaseError, Wish};
use glebe_testing::time::wait_until;
use glebed::{Quota, Settings};

use super::running::{brick, settings, wish, Running, CONTIGUOUS, ONE_FILE, PATIENCE, REVOCABLE};

pub fn errno_of(error: &LeaseError) -> i32 {
    match error {
        LeaseError::Refused { errno, .. } => *errno,
        other => panic!("{other}"),
    }
}

pub const ENOMEM: i32 = 12;
pub const EAGAIN: i32 = 11;
const EINVAL: i32 = 22;
const EDQUOT: i32 = 122;

#[test]
fn memory_is_zeroed_and_of_one_client_alone() {
    let Some(running) = Running::new(8, settings(4)) else { return };
    let client = running.client();
    assert_eq!(client.brick(), Bytes::new(brick()));
    for round in 1..=5_u8 {
        let lease = client.lease(Bytes::new(3 * brick() - 1)).unwrap();
        assert_eq!((lease.len(), lease.files().len()), (Bytes::new(3 * brick()), 3));
        let mut all = vec![1; lease.len().as_usize()];
        lease.read(Bytes::ZERO, &mut all).unwrap();
        assert!(all.iter().all(|byte| *byte == 0), "round {round}");
        lease.write(Bytes::ZERO, &vec![round; all.len()]).unwrap();
        let at = Bytes::new(3 * brick() - 4);
        let beyond = lease.read(at, &mut [0; 5]).unwrap_err();
        assert!(matches!(beyond, LeaseError::Beyond { len: 5, .. }), "{beyond}");
        let runs = lease.runs();
        assert_eq!(runs.iter().map(|run| run.len.get()).sum::<u64>(), 3 * brick());
        let rows = client.list().unwrap();
        assert_eq!((rows.len(), rows[0].bytes, rows[0].name.as_str()), (1, 3 * brick(), "test"));
        assert_eq!((rows[0].lease, rows[0].pid), (lease.number(), std::process::id()));
        drop(lease);
        running.wait_until_all_is_back();
        assert_eq!(client.list().unwrap(), []);
    }
}

#[test]
fn more_files_than_a_message_has_arrive_in_order() {
    let Some(running) = Running::new(300, settings(0)) else { return };
    let client = running.client();
    let lease = client.lease(wish(280, Flags::default())).unwrap();
    assert_eq!((lease.files().len(), lease.len()), (280, Bytes::new(280 * brick())));
    for nth in 0..280 {
        lease.write(Bytes::new(nth * brick()), &nth.to_le_bytes()).unwrap();
    }
    for (nth, file) in lease.files().enumerate() {
        let mut bytes = [0; 8];
        let file = std::fs::File::from(file.try_clone_to_owned().unwrap());
        let page = glebe::units::PageSize::new(brick()).unwrap();
        let seen =
            glebe::internal::mapping::Mapping::part_of(&file, Bytes::ZERO, page.bytes(), page);
        seen.unwrap().read(Bytes::ZERO, &mut bytes);
        assert_eq!(u64::from_le_bytes(bytes), nth as u64, "the file at its place");
        lease.read(Bytes::new(nth as u64 * brick()), &mut bytes).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), nth as u64);
    }
    drop(lease);
    running.wait_until_all_is_back();
}

#[test]
fn what_cannot_be_had_is_refused_with_the_longest_run() {
    let Some(running) = Running::new(8, settings(2)) else { return };
    let client = running.client();
    for (bytes, errno) in
        [(0, EINVAL), (9 * brick(), ENOMEM), (1 << 63, ENOMEM), (u64::MAX, ENOMEM)]
    {
        let refused = client.lease(Bytes::new(bytes)).unwrap_err();
        assert_eq!(errno_of(&refused), errno, "{bytes}: {refused}");
    }
    let odd = Wish { align: 3, ..wish(1, CONTIGUOUS) };
    assert_eq!(errno_of(&client.lease(odd).unwrap_err()), EINVAL);
    let node = Wish { node: Some(77), ..wish(1, CONTIGUOUS) };
    let refused = client.lease(node).unwrap_err();
    assert!(refused.to_string().contains("NUMA node 77"), "{refused}");
    let most = client.lease(wish(8, Flags::default())).unwrap();
    let refused = client.lease(wish(1, Flags::default())).unwrap_err();
    assert_eq!(errno_of(&refused), ENOMEM, "{refused}");
    drop(most);
    running.wait_until_all_is_back();
    client.lease(wish(8, Flags::default())).unwrap();
}

#[test]
fn a_run_is_one_run_at_its_alignment() {
    let Some(running) = Running::new(16, settings(3)) else { return };
    let client = running.client();
    let wanted = Wish { align: 4 * brick(), ..wish(4, CONTIGUOUS) };
    match client.lease(wanted) {
        Ok(lease) => match lease.runs()[..] {
            [run] => {
                let physical = run.physical.expect("frames prove a run");
                assert_eq!((run.len.get(), physical % (4 * brick())), (4 * brick(), 0));
            }
            ref runs => panic!("{runs:?}"),
        },
        Err(refused) => assert_eq!(errno_of(&refused), ENOMEM, "{refused}"),
    }
}

#[test]
fn a_file_has_the_whole_lease() {
    let Some(running) = Running::new(8, settings(2)) else { return };
    let client = running.client();
    for _ in 0..3 {
        let lease = client.lease(wish(5, ONE_FILE)).unwrap();
        assert_eq!((lease.files().len(), lease.len()), (1, Bytes::new(5 * brick())));
        let mut last = [1];
        lease.read(Bytes::new(5 * brick() - 1), &mut last).unwrap();
        assert_eq!(last, [0]);
        lease.write(Bytes::new(5 * brick() - 1), &[9]).unwrap();
        drop(lease);
        running.wait_until_all_is_back();
    }
    let (file, bytes) = client.file(Bytes::new(1)).unwrap();
    assert_eq!((file.metadata().unwrap().len(), bytes.get()), (brick(), brick()));
}

#[test]
fn a_promise_is_kept_whatever_others_take() {
    let Some(running) = Running::new(8, settings(4)) else { return };
    let (client, other) = (running.client(), running.client());
    let promise = client.promise(wish(3, Flags::default())).unwrap();
    assert_eq!(promise.len(), Bytes::new(3 * brick()));
    let mut taken = Vec::new();
    while let Ok(lease) = other.lease(wish(1, Flags::default())) {
        taken.push(lease);
    }
    assert_eq!(taken.len(), 5);
    let lease = promise.take().unwrap();
    lease.write(Bytes::ZERO, &[1]).unwrap();
    drop((lease, taken));
    running.wait_until_all_is_back();
    drop(client.promise(wish(8, Flags::default())).unwrap());
    running.wait_until_all_is_back();
}

/// Takes a revocable lease back after `notice`. Returns false if the deadline passed before this
/// test could use the lease.
fn is_taken_after(notice: Duration) -> bool {
    let Some(running) = Running::new(8, Settings { notice, ..settings(0) }) else { return true };
    let (holder, other) = (running.client(), running.client());
    let lease = holder.lease(wish(6, REVOCABLE)).unwrap();
    let kept = holder.lease(wish(1, Flags::default())).unwrap();
    lease.write(Bytes::ZERO, &[7; 100]).unwrap();
    assert_eq!(lease.recalled(Duration::ZERO).unwrap(), None);
    let refused = other.lease(wish(8, Flags::default())).unwrap_err();
    assert_eq!(errno_of(&refused), ENOMEM, "all revocable memory is less: {refused}");
    let asked = Instant::now();
    let refused = other.lease(wish(4, Flags::default())).unwrap_err();
    assert_eq!(errno_of(&refused), EAGAIN, "{refused}");
    let mut byte = [0];
    let told = lease.recalled(Duration::from_secs(5));
    let used = lease.read(Bytes::ZERO, &mut byte);
    if asked.elapsed() >= notice {
        return false;
    }
    assert_eq!(told.unwrap(), Some(notice));
    used.expect("the lease lives until the deadline");
    assert_eq!(byte, [7]);
    let is_gone = || matches!(lease.read(Bytes::ZERO, &mut [0]), Err(LeaseError::Revoked));
    wait_until("the memory is taken", Duration::from_secs(10), is_gone);
    assert!(matches!(lease.write(Bytes::ZERO, &[1]), Err(LeaseError::Revoked)));
    assert!(matches!(lease.recalled(Duration::from_secs(5)), Err(LeaseError::Revoked)));
    kept.read(Bytes::ZERO, &mut byte).unwrap();
    let had = || other.lease(wish(4, Flags::default())).is_ok();
    wait_until("it comes back", Duration::from_secs(10), had);
    true
}

#[test]
fn a_revocable_lease_is_asked_for_and_then_taken() {
    let mut notices = [200, 1000, 5000].map(Duration::from_millis).into_iter();
    assert!(notices.any(is_taken_after), "a busy machine passes each deadline");
}

#[test]
fn a_revocable_request_takes_idle_memory_alone() {
    let grow = Bytes::new(8 * brick());
    let Some(running) = Running::with_room(8, 16, Settings { grow, ..settings(0) }) else { return };
    let (holder, other) = (running.client(), running.client());
    let kept = holder.lease(wish(5, REVOCABLE)).unwrap();
    let refused = other.lease(wish(4, REVOCABLE)).unwrap_err();
    assert_eq!(errno_of(&refused), ENOMEM, "{refused}");
    assert_eq!(kept.recalled(Duration::ZERO).unwrap(), None);
    assert!(running.client().stats().unwrap().contains("glebe_lease_added_bytes_total 0\n"));
    drop(other.lease(wish(3, REVOCABLE)).unwrap());
    if effective_user() != 0 {
        return println!("skipped: only root can add pages to the pool");
    }
    // Growth comes before a recall.
    let patient = running.client().patience(PATIENCE);
    drop(patient.lease(wish(8, Flags::default())).unwrap());
    assert_eq!(kept.recalled(Duration::ZERO).unwrap(), None);
}

#[test]
fn a_user_has_limits() {
    if effective_user() == 0 {
        return println!("skipped: root has no limits");
    }
    let quota =
        Quota { user: Bytes::new(2 * brick()), connections: 2, leases: 1, ..Quota::default() };
    let Some(running) = Running::new(4, Settings { quota, ..settings(0) }) else { return };
    let client = running.client();
    let refused = client.lease(wish(3, Flags::default())).unwrap_err();
    assert_eq!(errno_of(&refused), EDQUOT, "{refused}");
    let in_bricks = format!("in bricks of {}", Bytes::new(brick()));
    assert!(refused.to_string().contains(&in_bricks), "{refused}");
    let lease = client.lease(wish(1, Flags::default())).unwrap();
    assert_eq!(errno_of(&client.lease(wish(1, Flags::default())).unwrap_err()), EDQUOT);
    let _second = running.client();
    let third = glebe_lease::Client::connect_to(&running.path, "third").unwrap_err();
    assert_eq!(errno_of(&third), EDQUOT);
    drop(lease);
}

#[test]
fn a_patient_client_waits_for_memory_on_its_way() {
    let Some(running) = Running::new(32, settings(0)) else { return };
    let client = running.client().patience(Duration::from_secs(10));
    for _ in 0..20 {
        let lease = client.lease(wish(30, Flags::default())).unwrap();
        assert_eq!(lease.len(), Bytes::new(30 * brick()));
    }
    running.wait_until_all_is_back();
    let revocable = client.lease(wish(30, REVOCABLE)).unwrap();
    let refused = running.client().lease(wish(8, Flags::default())).unwrap_err();
    assert_eq!(errno_of(&refused), EAGAIN, "{refused}");
    let (file, _) = client.file(wish(8, Flags::default())).unwrap();
    drop((revocable, file));
    let promise = client.promise(wish(12, Flags::default())).unwrap();
    assert_eq!(promise.len(), Bytes::new(12 * brick()));
}

#[test]
fn a_request_waits_for_a_revocable_lease_that_is_being_made_if_that_suffices() {
    if effective_user() != 0 {
        return println!("skipped: this user cannot change the pool, so it needs no lock");
    }
    let Some(running) = Running::new(12, settings(0)) else { return };
    let (holder, other) = (running.client(), running.client());
    let kept = other.lease(wish(2, Flags::default())).unwrap();
    let file = Wish { flags: Flags { one_file: true, ..REVOCABLE }, ..wish(8, REVOCABLE) };
    // The file is made when the lock is free.
    let lock = PoolLock::acquire().unwrap();
    std::thread::scope(|scope| {
        let made = scope.spawn(|| holder.lease(file));
        let making = format!("glebe_lease_returning_bytes {}\n", 8 * brick());
        let is_being_made = || other.stats().unwrap().contains(&making);
        wait_until("the file is being made", PATIENCE, is_being_made);
        let [less, more] = [8, 11].map(|bricks| other.lease(wish(bricks, Flags::default())));
        drop(lock);
        let (less, more) = (less.unwrap_err(), more.unwrap_err());
        assert_eq!([&less, &more].map(errno_of), [EAGAIN, ENOMEM], "{less}; {more}");
        assert!(less.to_string().contains("a revocable lease is being made"), "{less}");
        let made = made.join().unwrap().unwrap();
        let patient = running.client().patience(PATIENCE);
        assert_eq!(patient.lease(wish(8, Flags::default())).unwrap().files().len(), 8);
        assert!(matches!(made.read(Bytes::ZERO, &mut [0]), Err(LeaseError::Revoked)));
    });
    drop(kept);
}

#[test]
fn a_run_takes_revocable_leases_that_are_in_its_way() {
    let Some(running) = Running::new(8, settings(0)) else { return };
    let runs = running.reserve.contig().runs().iter().map(|run| run.pages.len());
    if runs.max() < Some(Bytes::new(8 * brick()).pages_up(glebe::page_size()).get()) {
        return println!("skipped: the machine has no run of 8 bricks");
    }
    let client = running.client();
    let one = || client.lease(wish(1, REVOCABLE)).unwrap();
    let mut all: Vec<_> = (0..8).map(|_| one()).collect();
    all.sort_by_key(|lease| lease.runs()[0].physical);
    let (mut leases, mut nth) = (all, 0..);
    leases.retain(|_| nth.next().is_some_and(|nth: u64| nth % 2 == 0));
    let half = format!("glebe_lease_held_bytes {}\n", 4 * brick());
    let is_half = || {
        let stats = client.stats().unwrap();
        stats.contains(&half) && stats.contains("glebe_lease_returning_bytes 0\n")
    };
    wait_until("every other brick is back", PATIENCE, is_half);
    let scattered = client.lease(wish(4, Flags::default())).unwrap();
    drop(scattered);
    wait_until("they are back", PATIENCE, is_half);
    let refused = client.lease(wish(2, CONTIGUOUS)).unwrap_err();
    assert_eq!(errno_of(&refused), EAGAIN, "{refused}");
    let patient = running.client().patience(PATIENCE);
    assert_eq!(patient.lease(wish(2, CONTIGUOUS)).unwrap().runs().len(), 1);
    let is_kept = |lease: &Lease| matches!(lease.recalled(Duration::ZERO), Ok(None));
    assert_eq!(leases.iter().filter(|lease| is_kept(lease)).count(), 2, "no more than the run has");
}

#[test]
fn a_daemon_that_is_silent_is_named() {
    let scratch = glebe_testing::Scratch::new("silent");
    let path = scratch.path().join("leases");
    let socket = glebe_lease::socket::bound(&path).unwrap();
    rustix::net::listen(&socket, 1).unwrap();
    let limit = Duration::from_millis(20);
    // The last connections find the queue full.
    for _ in 0..4 {
        match glebe_lease::Client::connect_within(&path, "test", limit) {
            Err(error @ LeaseError::Silent { .. }) => {
                let wanted = format!("the daemon at {} does not answer", path.display());
                assert_eq!(error.to_string(), wanted);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_stranger_speaks_the_protocol_from_its_description() {
    let Some(running) = Running::new(8, settings(4)) else { return };
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/conformance.py");
    let mut python = std::process::Command::new("python3");
    let output = python.arg(program).arg(&running.path).output().expect("python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    running.wait_until_all_is_back();
}
