//! Tests clients that break rules, and the daemon's end.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use glebe::contig::PoolLock;
use glebe::internal::mapping::{Mapping, Visibility};
use glebe::internal::sys::processes::process::effective_user;
use glebe::units::{Bytes, PageSize, Pages};
use glebe_lease::socket::Packets;
use glebe_lease::wire::{Answer, Flags, Message, Name, Request};
use glebe_lease::{Client, LeaseError};
use glebe_testing::alone;
use glebe_testing::time::wait_until;
use glebed::{Daemon, Settings};
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};

use super::running::{brick, settings, wish, Running, ONE_FILE, PATIENCE, REVOCABLE};

const PAGE: PageSize = PageSize::new(2 << 20).unwrap();

struct Raw(Packets);

impl Raw {
    fn connect(running: &Running) -> Self {
        Self(Packets::connect(&running.path, None).unwrap())
    }

    fn greeted(running: &Running) -> Self {
        let raw = Self::connect(running);
        raw.send(1, 0, Request::Hello { name: Name::new("raw") });
        assert!(matches!(raw.answer(), Some(Answer::Welcome { .. })));
        raw
    }

    fn send(&self, call: u32, lease: u64, body: Request) {
        let mut out = Vec::new();
        Message { call, lease, body }.encode(&mut out);
        self.0.send(&out, &[]).unwrap();
    }

    /// Returns `None` if the daemon ended the connection.
    fn message(&self) -> Option<Message<Answer>> {
        let (mut bytes, mut files) = (vec![0; 1 << 16], Vec::new());
        match self.0.receive(&mut bytes, &mut files) {
            Ok(0) | Err(_) => None,
            Ok(len) => Some(Message::<Answer>::decode(&bytes[..len]).unwrap()),
        }
    }

    fn answer(&self) -> Option<Answer> {
        self.message().map(|message| message.body)
    }
}

#[test]
fn who_breaks_the_protocol_is_told_and_left() {
    let Some(running) = Running::new(4, settings(1)) else { return };
    let mut hello = Vec::new();
    Message { call: 1, lease: 0, body: Request::Hello { name: Name::new("x") } }.encode(&mut hello);
    let mut newer = hello.clone();
    newer[0] = 2;
    let mut kind = hello.clone();
    kind[2] = 99;
    let half = hello[..20].to_vec();
    let long = [&hello[..], &[0]].concat();
    let early = {
        let mut out = Vec::new();
        Message { call: 1, lease: 0, body: Request::List }.encode(&mut out);
        out
    };
    let endless = vec![0; 4096];
    for (bytes, said) in [
        (newer, "version 2"),
        (kind, "unknown kind 0x63"),
        (half, "too short"),
        (long, "after the end"),
        (early, "no hello"),
    ] {
        let raw = Raw::connect(&running);
        raw.0.send(&bytes, &[]).unwrap();
        match raw.answer() {
            Some(Answer::Refused { text, .. }) => assert!(text.contains(said), "{text}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(raw.answer(), None, "{said}");
    }
    let raw = Raw::connect(&running);
    raw.0.send(&endless, &[]).unwrap();
    assert_eq!(raw.answer(), None, "longer than any request");
    let raw = Raw::connect(&running);
    raw.0.send(&hello, &[std::io::stdin().as_fd()]).unwrap();
    assert_eq!(raw.answer(), None, "no request has descriptors");
    let client = running.client();
    assert!(client.stats().unwrap().contains("glebe_lease_malformed_total 7\n"));
    client.lease(wish(4, Flags::default())).unwrap();
}

#[test]
fn leases_of_others_and_ended_ones_are_nobodys() {
    let Some(running) = Running::new(4, settings(1)) else { return };
    let client = running.client();
    let lease = client.lease(wish(2, Flags::default())).unwrap();
    let raw = Raw::greeted(&running);
    for body in [Request::Release, Request::Mapped] {
        raw.send(7, lease.number(), body);
        assert_eq!(raw.answer(), Some(Answer::Done), "and nothing happened");
    }
    raw.send(8, lease.number(), Request::Take);
    assert!(matches!(raw.answer(), Some(Answer::Refused { .. })));
    lease.write(Bytes::ZERO, &[1]).unwrap();
    let number = lease.number();
    drop(lease);
    running.wait_until_all_is_back();
    raw.send(9, number, Request::Release);
    assert_eq!(raw.answer(), Some(Answer::Done));
}

#[test]
fn who_reads_nothing_holds_up_nobody() {
    let notice = Duration::from_millis(10);
    let Some(running) = Running::new(4, Settings { notice, ..settings(0) }) else { return };
    let deaf = Raw::greeted(&running);
    rustix::io::ioctl_fionbio(&deaf.0, true).unwrap();
    let mut out = Vec::new();
    Message { call: 1, lease: 0, body: Request::Stats }.encode(&mut out);
    // The daemon stops reading once its answers find no room, so the kernel's queue fills.
    let begin = Instant::now();
    let mut last = Instant::now();
    while last.elapsed() < Duration::from_millis(200) && begin.elapsed() < Duration::from_secs(20) {
        match deaf.0.send(&out, &[]) {
            Ok(()) => last = Instant::now(),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    assert!(last.elapsed() >= Duration::from_millis(200), "it reads for ever");
    drop(running.client().lease(wish(1, Flags::default())).unwrap());
    drop(deaf);
    running.wait_until_all_is_back();
}

#[test]
fn memory_is_taken_from_who_reads_no_events() {
    let notice = Duration::from_millis(10);
    let Some(running) = Running::new(4, Settings { notice, ..settings(0) }) else { return };
    let raw = Raw::greeted(&running);
    raw.send(2, 0, Request::Lease(wish(4, REVOCABLE)));
    let client = running.client();
    let begin = Instant::now();
    loop {
        match client.lease(wish(4, Flags::default())) {
            Ok(lease) => break drop(lease),
            Err(LeaseError::Refused { .. }) if begin.elapsed() < Duration::from_secs(10) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
    }
    drop(raw);
    running.wait_until_all_is_back();
}

#[test]
fn a_lease_outlives_the_daemon_and_a_second_daemon_is_refused() {
    let Some(mut running) = Running::new(4, settings(1)) else { return };
    let settings = Settings { path: running.path.clone(), ..settings(0) };
    let second = Daemon::start(&running.reserve, settings.clone()).unwrap_err();
    assert!(second.to_string().contains("another daemon"), "{second}");
    let client = running.client();
    let lease = client.lease(wish(2, Flags::default())).unwrap();
    lease.write(Bytes::ZERO, &[5]).unwrap();
    running.daemon = None;
    assert!(!running.path.exists());
    let mut byte = [0];
    lease.read(Bytes::ZERO, &mut byte).unwrap();
    assert_eq!(byte, [5]);
    assert!(matches!(client.lease(wish(1, Flags::default())), Err(LeaseError::Connection(_))));
    let gone = Client::connect_to(&running.path, "late").unwrap_err();
    assert!(matches!(gone, LeaseError::NoDaemon { .. }), "{gone}");
    assert_eq!(running.reserve.len().bytes(glebe::page_size()), Bytes::new(2 * brick()));
    running.daemon = Some(Daemon::start(&running.reserve, settings).unwrap());
    drop(running.client().lease(wish(2, Flags::default())).unwrap());
    lease.read(Bytes::ZERO, &mut byte).unwrap();
    assert_eq!(byte, [5]);
}

#[test]
fn a_long_lease_holds_up_nobody() {
    let Some(running) = Running::new(16, settings(2)) else { return };
    let client = running.client();
    let is_overtaken = || {
        let has_stock = || {
            let stock = format!("glebe_lease_stock_bytes {}\n", 2 * brick());
            client.stats().unwrap().contains(&stock)
        };
        wait_until("two bricks are zeroed", Duration::from_secs(10), has_stock);
        let raw = Raw::greeted(&running);
        raw.send(2, 0, Request::Lease(wish(12, Flags::default())));
        raw.send(3, 0, Request::Lease(wish(1, Flags::default())));
        let calls = [raw.message(), raw.message()].map(|message| {
            let message = message.unwrap();
            assert!(matches!(message.body, Answer::Leased { .. }), "{message:?}");
            message.call
        });
        drop(raw);
        running.wait_until_all_is_back();
        calls == [3, 2]
    };
    // The daemon may end with the first request before it sees the second.
    assert!((0..20).any(|_| is_overtaken()));
}

#[test]
fn a_long_lease_that_is_being_made_is_no_lack_of_memory() {
    let Some(running) = Running::new(24, settings(0)) else { return };
    let tenant = running.reserve.page_cache().namespace("tenant").unwrap();
    let page = vec![7; glebe::page_size().bytes().as_usize()];
    for round in 0..5 {
        // A tenant's bytes must be zeroed first, which takes milliseconds.
        (0..running.reserve.len().get()).for_each(|key| drop(tenant.put(round, key, &page)));
        let clients = [Raw::greeted(&running), Raw::greeted(&running)];
        clients[0].send(2, 0, Request::Lease(wish(12, Flags::default())));
        let begin = Instant::now();
        while running.reserve.stats().held == Pages::ZERO {
            assert!(begin.elapsed() < PATIENCE, "round {round}: nothing is taken");
        }
        clients[1].send(2, 0, Request::Lease(wish(12, Flags::default())));
        for answer in [1, 0].map(|client: usize| clients[client].answer()) {
            assert!(matches!(answer, Some(Answer::Leased { .. })), "round {round}: {answer:?}");
        }
        drop(clients);
        running.wait_until_all_is_back();
    }
}

#[test]
fn a_page_that_is_stolen_while_a_file_is_made_is_counted_and_replaced() {
    let Some(running) = Running::new(8, settings(0)) else { return };
    let (client, len) = (running.client(), running.reserve.len());
    let begin = Instant::now();
    let stolen = loop {
        let is_made = AtomicBool::new(false);
        let stolen = std::thread::scope(|scope| {
            let thief = scope.spawn(|| {
                while !is_made.load(Ordering::Acquire) {
                    if let Ok(page) = Mapping::hugetlb(PAGE.bytes(), PAGE, Visibility::PRIVATE) {
                        return Some(page);
                    }
                }
                None
            });
            let lease = client.lease(wish(8, ONE_FILE));
            is_made.store(true, Ordering::Release);
            let stolen = thief.join().unwrap();
            assert!(lease.is_ok() || stolen.is_some(), "{lease:?}");
            stolen
        });
        running.wait_until_all_is_back();
        match stolen {
            Some(page) => break page,
            None if begin.elapsed() > PATIENCE => return println!("skipped: no page was stolen"),
            None => {}
        }
    };
    let is_whole = || running.reserve.len() == len;
    wait_until("the stolen page is replaced", PATIENCE, is_whole);
    let lost = format!("glebe_lease_lost_bytes_total {}\n", brick());
    let stats = client.stats().unwrap();
    assert!(stats.contains(&lost), "only one brick is lost: {stats}");
    drop(stolen);
}

#[test]
fn the_daemons_end_does_not_wait_for_a_file_that_is_being_made() {
    if effective_user() != 0 {
        return println!("skipped: this user cannot change the pool, so it needs no lock");
    }
    let Some(mut running) = Running::new(8, settings(0)) else { return };
    let (raw, other) = (Raw::greeted(&running), running.client());
    // The file is made when the lock is free.
    let lock = PoolLock::acquire().unwrap();
    raw.send(2, 0, Request::Lease(wish(8, ONE_FILE)));
    let making = format!("glebe_lease_returning_bytes {}\n", 8 * brick());
    let is_being_made = || other.stats().unwrap().contains(&making);
    wait_until("the file is being made", PATIENCE, is_being_made);
    let begin = Instant::now();
    running.daemon = None;
    assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
    drop(lock);
    let is_back = || running.reserve.stats().held == Pages::ZERO;
    wait_until("the memory is back", PATIENCE, is_back);
}

#[test]
fn a_lack_of_descriptors_for_a_file_costs_no_memory() {
    alone!();
    let Some(running) = Running::new(8, settings(0)) else { return };
    let len = running.reserve.len();
    let (raw, other) = (Raw::greeted(&running), running.client());
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..before }).unwrap();
    let returning = || {
        let stats = other.stats().unwrap();
        let line = stats.lines().find_map(|it| it.strip_prefix("glebe_lease_returning_bytes "));
        line.unwrap().parse::<u64>().unwrap()
    };
    for round in 0..100 {
        raw.send(2, 0, Request::Lease(wish(8, ONE_FILE)));
        // Bytes that count twice are seen in some round.
        let most = std::iter::repeat_with(&returning).take_while(|bytes| *bytes > 0).max();
        assert!(most <= Some(8 * brick()), "round {round}: {most:?}");
        let answer = raw.answer();
        assert!(matches!(answer, Some(Answer::Refused { .. })), "{answer:?}");
        wait_until("the memory is back", PATIENCE, || returning() == 0);
    }
    setrlimit(Resource::Nofile, before).unwrap();
    running.wait_until_all_is_back();
    assert_eq!(running.reserve.len(), len);
    drop(running.client().lease(wish(8, ONE_FILE)).unwrap());
}

#[test]
fn who_leaves_before_a_long_lease_is_there_keeps_nothing() {
    let Some(running) = Running::new(16, settings(0)) else { return };
    for flags in [Flags::default(), ONE_FILE].repeat(5) {
        let raw = Raw::greeted(&running);
        raw.send(2, 0, Request::Lease(wish(16, flags)));
        drop(raw);
        running.wait_until_all_is_back();
    }
    let client = running.client();
    let promise = client.promise(wish(16, Flags::default())).unwrap();
    let lease = promise.take().unwrap();
    assert_eq!(lease.len(), Bytes::new(16 * brick()));
}

#[test]
fn one_of_several_daemons_that_start_at_once_serves() {
    let Some(mut running) = Running::new(4, settings(1)) else { return };
    running.daemon = None;
    let settings = Settings { path: running.path.clone(), ..settings(1) };
    for _ in 0..10 {
        let together = std::sync::Barrier::new(3);
        let start = || {
            together.wait();
            let started = Daemon::start(&running.reserve, settings.clone());
            // Nobody ends before all have tried.
            together.wait();
            started.map(drop).map_err(|error| error.to_string())
        };
        let all = std::thread::scope(|scope| {
            let all: Vec<_> = (0..3).map(|_| scope.spawn(start)).collect();
            all.into_iter().map(|it| it.join().unwrap()).collect::<Vec<_>>()
        });
        let refused: Vec<&String> = all.iter().filter_map(|it| it.as_ref().err()).collect();
        assert_eq!(refused.len(), 2, "{all:?}");
        assert!(refused.iter().all(|it| it.contains("another daemon")), "{all:?}");
        assert!(!running.path.exists());
    }
}

#[test]
fn a_socket_of_another_program_at_the_path_stays() {
    let Some(mut running) = Running::new(2, settings(0)) else { return };
    std::fs::remove_file(&running.path).unwrap();
    let other = glebe_lease::socket::bound(&running.path).unwrap();
    running.daemon = None;
    assert!(running.path.exists());
    rustix::net::listen(&other, 1).unwrap();
    let settings = Settings { path: running.path.clone(), ..settings(0) };
    let refused = Daemon::start(&running.reserve, settings.clone()).unwrap_err();
    assert!(refused.to_string().contains("another program"), "{refused}");
    drop(other);
    running.daemon = Some(Daemon::start(&running.reserve, settings).unwrap());
    running.client();
}
