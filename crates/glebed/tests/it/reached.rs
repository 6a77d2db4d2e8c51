//! Tests that a process reaches a key's older value, whatever happened to the cache meanwhile.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use glebe::internal::sys::memory::memory_file::MemoryFile;
use glebe::units::Bytes;
use glebe_cache::{CacheError, SharedCache};
use glebe_lease::socket::{bound, Packets};
use glebe_lease::wire::{Answer, Flags, Message, Name, Request};
use glebe_lease::LeaseError;
use glebe_testing::stressed::{in_child, ChildEnd};
use glebe_testing::time::wait_until;
use glebe_testing::Scratch;
use rustix::io::Errno;

use super::running::{answered, brick, put, settings, wish, Running, PATIENCE};

fn open(path: &Path, bricks: u64) -> SharedCache {
    let options = SharedCache::options().size(Bytes::new(bricks * brick())).socket(path);
    answered(|| options.clone().open("reached")).unwrap()
}

fn value(cache: &SharedCache, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    cache.get(key, &mut value).then_some(value)
}

#[test]
fn those_that_have_an_ended_cache_use_the_next_one() {
    let Some(running) = Running::new(4, settings(0)) else { return };
    let [one, reader, remover, writer] = [(); 4].map(|()| open(&running.path, 2));
    for cache in [&one, &reader, &remover, &writer] {
        put(cache, b"key", b"old");
    }
    answered(|| one.end()).unwrap();
    let next = open(&running.path, 2);
    put(&next, b"key", b"new");
    wait_until("the next cache's value is removed", PATIENCE, || remover.remove(b"key"));
    assert_eq!(value(&next, b"key"), None);
    put(&writer, b"key", b"newer");
    assert_eq!(value(&next, b"key").as_deref(), Some(&b"newer"[..]));
    wait_until("a process that only reads finds it", PATIENCE, || {
        let seen = value(&reader, b"key");
        assert!(seen.is_none() || seen.as_deref() == Some(b"newer"), "{seen:?}");
        seen.is_some()
    });
    // One that has the ended cache ends the next one.
    answered(|| one.end()).unwrap();
    for cache in [&one, &reader, &remover, &writer, &next] {
        assert_eq!(value(cache, b"key"), None);
    }
}

#[test]
fn a_lack_of_memory_elsewhere_hides_no_value() {
    let Some(running) = Running::new(3, settings(0)) else { return };
    let one = open(&running.path, 3);
    put(&one, b"key", b"old");
    let rest = running.client().lease(wish(2, Flags::default())).unwrap();
    let mut refused = [0; 4];
    // A cache whose daemon does not answer refuses every key, and finds none.
    wait_until("a place has no memory", PATIENCE, || {
        let mut all = (0..1000_u32).map(|nth| nth.to_le_bytes());
        refused = all.find(|key| !one.put(key, b"no memory").unwrap()).unwrap();
        value(&one, b"key").is_some()
    });
    for change in [true, false] {
        let other = open(&running.path, 3);
        assert!(!other.put(&refused, b"no memory").unwrap());
        match change {
            true => put(&other, b"key", b"new"),
            false => wait_until("it is removed", PATIENCE, || other.remove(b"key")),
        }
        let left = if change { Some(b"new".to_vec()) } else { None };
        assert_eq!(value(&one, b"key"), left);
    }
    drop(rest);
}

/// Returns the file of a place, as any process of the user gets it.
fn file_of(packets: &Packets, cache: u64, index: u64) -> File {
    let (_, mut files) = asked(packets, cache, Request::Place { index });
    files.remove(0).into()
}

fn asked(packets: &Packets, lease: u64, body: Request) -> (Message<Answer>, Vec<OwnedFd>) {
    let (mut bytes, mut files) = (vec![0; 1 << 12], Vec::new());
    Message { call: 1, lease, body }.encode(&mut bytes);
    packets.send(&bytes, &[]).unwrap();
    bytes.resize(1 << 12, 0);
    let len = packets.receive(&mut bytes, &mut files).unwrap();
    (Message::<Answer>::decode(&bytes[..len]).unwrap(), files)
}

/// A process whose mapping of a place was replaced by zeros of its own must not use them.
#[test]
fn a_place_that_another_process_cuts_hides_no_value() {
    let Some(running) = Running::new(4, settings(0)) else { return };
    let [one, other] = [(); 2].map(|()| open(&running.path, 1));
    put(&one, b"key", b"old");
    wait_until("both have the place", PATIENCE, || value(&other, b"key").is_some());
    let raw = Packets::connect(&running.path, None).unwrap();
    asked(&raw, 0, Request::Hello { name: Name::new("raw") });
    let cache = Request::Cache { bytes: brick(), name: Name::new("reached") };
    let (cache, _) = asked(&raw, 0, cache);
    let file = file_of(&raw, cache.lease, 0);
    file.set_len(0).unwrap();
    assert_eq!([&one, &other].map(|cache| value(cache, b"key")), [None, None]);
    for nth in 0..20_u8 {
        let [kept, newer] = [(&one, [nth]), (&other, [nth + 1])]
            .map(|(cache, value)| cache.put(b"key", &value).unwrap());
        let seen = value(&one, b"key");
        let is_right = seen.is_none() || seen == Some(vec![nth + 1]);
        assert!(is_right, "{nth}: {seen:?} after {kept} and {newer}");
        other.remove(b"key");
        assert_eq!(value(&one, b"key"), None);
    }
    // The server gives the place anew.
    let patient = running.client().patience(PATIENCE);
    drop(patient.lease(wish(4, Flags::default())).unwrap());
    put(&one, b"key", b"newest");
    wait_until("the other finds it", PATIENCE, || value(&other, b"key").is_some());
}

/// The number of a fake's cache that answers no request for memory of the second place.
const SILENT: u64 = 90;

/// Speaks the protocol. Of two places, the first has memory.
struct Fake {
    is_ending: Arc<AtomicBool>,
    /// Somebody asked for memory that there is not.
    is_asked: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    path: PathBuf,
}

impl Fake {
    fn start(path: &Path, number: u64) -> Self {
        let listener = bound(path).unwrap();
        rustix::net::listen(&listener, 8).unwrap();
        let [is_ending, is_asked] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let (ending, asked) = (Arc::clone(&is_ending), Arc::clone(&is_asked));
        let thread = std::thread::spawn(move || {
            let control = MemoryFile::new(glebe::page_size().bytes()).unwrap();
            let memory = MemoryFile::new(Bytes::new(brick())).unwrap();
            control.as_file().write_all_at(&number.to_le_bytes(), 8).unwrap();
            let mut conns = Vec::new();
            while !ending.load(Ordering::Acquire) {
                conns.extend(Packets::accept(&listener));
                conns.iter().for_each(|conn| answer(conn, number, [&control, &memory], &asked));
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Self { is_ending, is_asked, thread, path: path.to_owned() }
    }

    /// Ends as a killed daemon does: it changes no generation, and leaves its files to clients.
    fn kill(self) {
        self.is_ending.store(true, Ordering::Release);
        self.thread.join().unwrap();
        std::fs::remove_file(self.path).unwrap();
    }
}

/// Answers a request. Sets `asked` if it is for memory that there is not.
fn answer(conn: &Packets, number: u64, [control, memory]: [&MemoryFile; 2], asked: &AtomicBool) {
    let mut bytes = [0; 512];
    let Ok(len @ 1..) = conn.receive_alone(&mut bytes) else { return };
    let request = Message::<Request>::decode(&bytes[..len]).unwrap();
    if matches!(request.body, Request::Place { index: 1 }) {
        asked.store(true, Ordering::Release);
    }
    let (body, file) = match request.body {
        Request::Hello { .. } => {
            (Answer::Welcome { brick: brick(), total: 0, free: 0, longest: 0 }, None)
        }
        Request::Cache { .. } => (Answer::Cache { places: 2, place: brick() }, Some(control)),
        Request::Place { index: 0 } if request.lease == number => {
            control.as_file().write_all_at(&number.to_le_bytes(), 16).unwrap();
            (Answer::Place { generation: number }, Some(memory))
        }
        _ if number == SILENT => return,
        _ => {
            let is_known = request.lease == number;
            let errno = if is_known { Errno::NOMEM } else { Errno::INVAL }.raw_os_error();
            (Answer::Refused { errno, limit: 0, text: String::new() }, None)
        }
    };
    let mut out = Vec::new();
    Message { call: request.call, lease: number, body }.encode(&mut out);
    let files: Vec<_> = file.iter().map(|file| file.as_file().as_fd()).collect();
    // A client that did not wait has left.
    let _ = conn.send(&out, &files);
}

/// Returns a key whose place has memory, and one whose place has none.
fn keys(cache: &SharedCache, fake: &Fake) -> [Vec<u8>; 2] {
    let of = |is_kept: bool| {
        let mut all = (0..1000_u32).map(|nth| nth.to_le_bytes().to_vec());
        all.find(|key| cache.put(key, b"old").unwrap() == is_kept)
    };
    let mut keys = [None, None];
    // A cache whose daemon does not answer refuses every key for a while.
    wait_until("a key of each place", PATIENCE, || {
        fake.is_asked.store(false, Ordering::Release);
        keys = [of(true), of(false)];
        keys.iter().all(Option::is_some) && fake.is_asked.load(Ordering::Acquire)
    });
    keys.map(Option::unwrap)
}

#[test]
fn a_killed_daemons_values_do_not_outlive_what_sees_its_end() {
    let scratch = Scratch::new("glebed-fake");
    let path = scratch.path().join("leases");
    let killed = Fake::start(&path, 70);
    let cache = open(&path, 2);
    let [stored, refused] = keys(&cache, &killed);
    // The cache does not ask for memory again at once.
    std::thread::sleep(Duration::from_millis(60));
    assert!(value(&cache, &stored).is_some());
    killed.kill();
    // Another test's child may have the daemon's end of the connection for a moment.
    wait_until("a put sees that the daemon was killed", PATIENCE, || {
        assert!(!cache.put(&refused, b"new").unwrap());
        value(&cache, &stored).is_none()
    });
    let next = Fake::start(&path, 80);
    let other = open(&path, 2);
    let [stored, _] = keys(&other, &next);
    wait_until("a process that only reads finds the next daemon", PATIENCE, || {
        value(&cache, &stored).is_some()
    });
    next.kill();
}

/// Forks while a thread waits for the daemon. The child's status is 1 if it did without the place.
fn fork_during_a_request() -> ChildEnd {
    let scratch = Scratch::new("glebed-fake");
    let path = scratch.path().join("leases");
    let silent = Fake::start(&path, SILENT);
    let cache = open(&path, 2);
    let other = open(&path, 2);
    let [stored, refused] = keys(&other, &silent);
    put(&cache, &stored, b"old");
    silent.is_asked.store(false, Ordering::Release);
    let ended = std::thread::scope(|scope| {
        let put = scope.spawn(|| cache.put(&refused, b"new").unwrap());
        wait_until("the thread waits for an answer", PATIENCE, || {
            silent.is_asked.load(Ordering::Acquire)
        });
        let ended = in_child(|| {
            let seen = value(&cache, &stored);
            let puts = [(); 3].map(|()| cache.put(&refused, b"new").unwrap());
            u8::from(seen.is_some() && puts == [false; 3] && cache.end().is_err())
        });
        assert!(!put.join().unwrap());
        ended
    });
    silent.kill();
    ended
}

#[test]
fn a_cache_whose_daemon_does_not_answer_is_not_said_to_be_ended() {
    let scratch = Scratch::new("glebed-fake");
    let path = scratch.path().join("leases");
    let killed = Fake::start(&path, 70);
    let cache = open(&path, 2);
    killed.kill();
    cache.end().unwrap();
    let silent = bound(&path).unwrap();
    rustix::net::listen(&silent, 8).unwrap();
    let refused = cache.end().unwrap_err();
    assert!(matches!(refused, CacheError::Lease(LeaseError::Silent { .. })), "{refused}");
}

#[test]
fn a_child_forked_during_a_request_does_without_the_place() {
    // The thread waits for 200 ms. A busy machine may fork after that, but not five times.
    let is_so = (0..5).any(|_| {
        let ended = fork_during_a_request();
        assert!(matches!(ended, ChildEnd::Exit(0 | 1)), "{ended:?}");
        ended == ChildEnd::Exit(1)
    });
    assert!(is_so);
}
