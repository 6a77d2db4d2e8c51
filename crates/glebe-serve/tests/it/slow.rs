//! Tests clients that do not read answers or do not finish values: their cost, and the effect on
//! others.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use glebe_testing::time::wait_until;
use glebe_testing::Scratch;

use crate::running::{dialogue, in_memory, resident, stat, Feeding, Running};

/// Sends `asks` over `clients` connections that do not read. The kernel buffers little for a Unix
/// socket.
fn ask(path: &Path, clients: usize, asks: &str) -> Vec<UnixStream> {
    let asking = |_| {
        let mut stream = UnixStream::connect(path).expect("connect");
        stream.write_all(asks.as_bytes()).expect("taken");
        stream
    };
    (0..clients).map(asking).collect()
}

#[test]
fn answers_that_nobody_takes_have_a_limit_in_sum() {
    glebe_testing::alone!();
    const LEN: usize = 1_000_000;
    let scratch = Scratch::new("slow");
    let path = scratch.path().join("socket");
    let server = Running::start(|settings| {
        settings.memory = 64 << 20;
        settings.unix = Some((path.clone(), 0o700));
    });
    let mut honest = server.connect();
    dialogue(&mut honest, &format!("set k 0 0 {LEN}\n{}\n", "x".repeat(LEN)), "STORED\n");
    let before = resident();
    let mut slow = ask(&path, 100, "get k\r\nget k\r\n");
    // Each of two threads may keep an answer of maximum length.
    wait_until("clients are too slow", Duration::from_secs(20), || {
        stat(&mut honest, "response_obj_oom") > 40
    });
    assert!(stat(&mut honest, "response_obj_bytes") <= 4 << 20);
    let grown = resident().saturating_sub(before);
    assert!(grown < 24 << 20, "{grown} bytes");
    let mut reader = server.connect();
    reader.write_all(b"get k\r\nget k\r\nget k\r\nmn\r\n").expect("taken");
    let mut heard = 0;
    while heard < 3 * (LEN + 26) + 4 {
        let got = reader.read(&mut [0; 50_000]).expect("an answer");
        assert!(got > 0, "ended after {heard} bytes");
        heard += got;
    }
    // A closed connection yields what the kernel has, then the end.
    let ended = slow.iter_mut().filter_map(|stream| {
        // The end may be an error, because the server left requests unread.
        let mut all = Vec::new();
        stream.set_read_timeout(Some(Duration::from_millis(1))).ok()?;
        match stream.read_to_end(&mut all) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => None,
            _ => (all.len() < LEN).then_some(()),
        }
    });
    assert!(ended.count() > 40);
    drop(slow);
    wait_until("nothing is kept", Duration::from_secs(20), || {
        stat(&mut honest, "response_obj_bytes") == 0
    });
}

#[test]
fn a_connection_that_ends_behind_its_last_command_is_forgotten() {
    let server = Running::start(|_| {});
    let mut honest = server.connect();
    for _ in 0..100 {
        let mut stream = server.connect();
        // The end usually arrives before the server has read the command.
        stream.write_all(b"set k 0 0 1 noreply\r\nx\r\n").expect("taken");
    }
    wait_until("they are forgotten", Duration::from_secs(20), || {
        // The listening socket counts too.
        stat(&mut honest, "curr_connections") == 2
    });
}

#[test]
fn values_that_do_not_come_to_their_end_have_a_limit_in_sum() {
    glebe_testing::alone!();
    const LEN: usize = 60_000;
    let server = Running::start(|settings| {
        settings.conns = 4000;
        settings.memory = 512 << 20;
    });
    let mut honest = server.connect();
    let value = "x".repeat(LEN);
    let part = format!("set k 0 0 {LEN}\r\n{}", &value[1..]);
    // An eighth of the memory is 64 MiB. Answers get 16 MiB of that, and the index about 1 MiB.
    let most = 47 << 20;
    let sending: Vec<TcpStream> = (0..1300)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(part.as_bytes()).expect("taken");
            stream
        })
        .collect();
    wait_until("as much as may be is under way", Duration::from_secs(20), || {
        let under_way = stat(&mut honest, "read_buf_bytes");
        assert!(under_way <= most);
        under_way > most - 2 * LEN as u64
    });
    dialogue(&mut honest, "set small 0 0 1\nx\n", "STORED\n");
    drop(sending);
    wait_until("nothing is under way", Duration::from_secs(20), || {
        stat(&mut honest, "read_buf_bytes") == 0
    });
    dialogue(&mut honest, &format!("set k 0 0 {LEN}\n{value}\n"), "STORED\n");
}

/// Begins 41 values, which take all of the 4 MiB for incomplete values.
fn begun(server: &Running, honest: &mut TcpStream) -> Vec<TcpStream> {
    let begin = |_| {
        let mut stream = server.connect();
        stream.write_all(b"set a 0 0 100000\r\nx").expect("taken");
        stream
    };
    let begun = (0..41).map(begin).collect();
    wait_until("no room is left", Duration::from_secs(20), || {
        stat(honest, "read_buf_bytes") > 4_000_000
    });
    begun
}

/// Stores a value that needs the room of ten of them. Returns how many connections the server ended
/// for that.
fn store_large(honest: &mut TcpStream) -> u64 {
    let set = format!("set k 0 0 1000000\r\n{}\r\n", "x".repeat(1_000_000));
    wait_until("a value is stored", Duration::from_secs(20), || {
        honest.write_all(set.as_bytes()).expect("taken");
        let mut answer = String::new();
        BufReader::new(&*honest).read_line(&mut answer).expect("an answer");
        answer == "STORED\r\n"
    });
    stat(honest, "read_buf_oom")
}

#[test]
fn values_that_stall_make_room_for_others() {
    let server = Running::start(|settings| settings.memory = 64 << 20);
    let mut honest = server.connect();
    let stalled = begun(&server, &mut honest);
    let ended = store_large(&mut honest);
    // Two workers may end some at the same time.
    assert!((10..13).contains(&ended), "{ended}");
    let is_open = |mut stream: &TcpStream| {
        stream.set_nonblocking(true).expect("a socket");
        stream.read(&mut [0]).is_err_and(|e| e.kind() == ErrorKind::WouldBlock)
    };
    assert!(!stalled[..2].iter().all(is_open), "the most silent go first");
    assert!(stalled[36..].iter().all(is_open));
}

#[test]
fn values_that_trickle_make_room_for_others() {
    let server = Running::start(|settings| settings.memory = 64 << 20);
    let mut honest = server.connect();
    let _feeding = Feeding::start(begun(&server, &mut honest), 1);
    assert!(store_large(&mut honest) >= 10);
}

/// Bytes beside a server's memory: the reserve's tables and the threads' buffers.
const ON_TOP: u64 = 20 << 20;

fn store(honest: &mut TcpStream, count: usize, len: usize) {
    for key in 0..count {
        let says = format!("set k{key} 0 0 {len}\n{}\n", "x".repeat(len));
        dialogue(honest, &says, "STORED\n");
    }
}

#[test]
fn the_whole_server_is_within_its_memory() {
    glebe_testing::alone!();
    const LEN: usize = 1_000_000;
    const MEMORY: u64 = 64 << 20;
    let scratch = Scratch::new("whole");
    let path = scratch.path().join("socket");
    let before = in_memory();
    let server = Running::start(|settings| {
        settings.memory = MEMORY;
        settings.threads = 4;
        settings.unix = Some((path.clone(), 0o700));
    });
    let mut honest = server.connect();
    store(&mut honest, 100, LEN);
    let slow = ask(&path, 150, "get k99\r\nget k99\r\n");
    let value = "x".repeat(LEN - 1);
    let sending: Vec<UnixStream> = ask(&path, 150, &format!("set s 0 0 {LEN}\r\n"))
        .into_iter()
        .map(|mut stream| {
            // A write could block, because the server reads only as many values as it has room for.
            stream.set_nonblocking(true).expect("a socket");
            let mut rest = value.as_bytes();
            for _ in 0..20 {
                match stream.write(rest) {
                    Ok(taken) => rest = &rest[taken..],
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            }
            stream
        })
        .collect();
    let mut most = 0;
    wait_until("clients are too slow", Duration::from_secs(20), || {
        most = in_memory().max(most);
        stat(&mut honest, "response_obj_oom") > 100
    });
    let grown = in_memory().max(most) - before;
    assert!(grown < MEMORY + ON_TOP, "{} KiB", grown >> 10);
    drop((slow, sending));
}

#[test]
fn a_small_server_takes_no_more_than_its_memory() {
    glebe_testing::alone!();
    const LEN: usize = 1_000_000;
    const MEMORY: u64 = 32 << 20;
    let before = in_memory();
    let server = Running::start(|settings| settings.memory = MEMORY);
    let mut honest = server.connect();
    store(&mut honest, 60, LEN);
    assert_eq!(stat(&mut honest, "limit_maxbytes"), MEMORY);
    let grown = in_memory() - before;
    println!("{} KiB", grown >> 10);
    assert!(grown < MEMORY + ON_TOP / 2, "{} KiB", grown >> 10);
}

/// Sends twelve values to a server that can receive four at once. Returns how many it stored.
fn stored_of_twelve() -> u32 {
    const LEN: usize = 1_000_000;
    let server = Running::start(|settings| {
        settings.memory = 64 << 20;
        settings.debug_time = true;
    });
    // The clock stops, so that no value stalls on a busy machine.
    dialogue(&mut server.connect(), "debugtime p\n", "OK\n");
    let value = "x".repeat(LEN);
    let mut clients: Vec<TcpStream> = (0..12).map(|_| server.connect()).collect();
    for (key, stream) in clients.iter_mut().enumerate() {
        stream.write_all(format!("set {key} 0 0 {LEN}\r\nx").as_bytes()).expect("taken");
    }
    dialogue(&mut server.connect(), "mn\n", "MN\n");
    let stored = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for stream in &mut clients {
            scope.spawn(|| {
                stream.write_all(&value.as_bytes()[1..]).expect("taken");
                stream.write_all(b"\r\n").expect("taken");
                let mut answer = String::new();
                BufReader::new(stream).read_line(&mut answer).expect("an answer");
                stored.fetch_add(u32::from(answer == "STORED\r\n"), Ordering::Relaxed);
            });
        }
    });
    stored.into_inner()
}

#[test]
fn values_wait_for_others_that_are_under_way() {
    // A connection waits for three seconds at most. A busy machine may not send all values by then.
    let all_stored = (0..3).any(|_| {
        let stored = stored_of_twelve();
        println!("{stored} of 12 values were stored");
        assert!(stored >= 4);
        stored == 12
    });
    assert!(all_stored);
}

#[test]
fn a_list_of_keys_is_not_made_before_it_is_read() {
    glebe_testing::alone!();
    let scratch = Scratch::new("list");
    let path = scratch.path().join("socket");
    let server = Running::start(|settings| {
        settings.memory = 32 << 20;
        settings.unix = Some((path.clone(), 0o700));
    });
    let mut honest = server.connect();
    for key in 0..20_000 {
        dialogue(&mut honest, &format!("set {key:0200} 0 0 1 noreply\nx\n"), "");
    }
    dialogue(&mut honest, "mn\n", "MN\n");
    let before = resident();
    // Each list has over five megabytes.
    let slow = ask(&path, 20, "lru_crawler metadump all\r\n");
    wait_until("lists wait", Duration::from_secs(20), || {
        stat(&mut honest, "response_obj_bytes") > 0
    });
    dialogue(&mut honest, "mn\n", "MN\n");
    let grown = resident().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes");
    drop(slow);
}

/// Reads a list of all keys. Returns how long that took, and the longest time that another client
/// waited for an answer meanwhile, or `None` if that client got fewer than five answers.
fn list_and_longest_wait(server: &Running, honest: &mut TcpStream) -> Option<(Duration, Duration)> {
    const ANSWERS_MIN: u32 = 5;
    std::thread::scope(|scope| {
        let list = scope.spawn(|| {
            let mut stream = server.connect();
            let begin = Instant::now();
            stream.write_all(b"lru_crawler metadump all\r\n").expect("taken");
            let (mut part, mut end) = (vec![0; 1 << 16], Vec::new());
            while !end.ends_with(b"\nEND\r\n") {
                let got = stream.read(&mut part).expect("a list");
                assert!(got > 0, "no end");
                end.extend_from_slice(&part[..got]);
                end.drain(..end.len().saturating_sub(16));
            }
            begin.elapsed()
        });
        let (mut longest, mut answers) = (Duration::ZERO, 0);
        while !list.is_finished() {
            let begin = Instant::now();
            dialogue(honest, "mn\n", "MN\n");
            longest = longest.max(begin.elapsed());
            answers += 1;
        }
        let list = list.join().expect("a list");
        (answers >= ANSWERS_MIN).then_some((list, longest))
    })
}

#[test]
fn others_are_served_while_a_list_is_made() {
    let server = Running::start(|settings| {
        settings.threads = 1;
        settings.memory = 64 << 20;
    });
    let mut honest = server.connect();
    for key in 0..100_000 {
        dialogue(&mut honest, &format!("set {key:0200} 0 0 1 noreply\nx\n"), "");
    }
    dialogue(&mut honest, "mn\n", "MN\n");
    // Other programs may take the processor during many lists, but not for a minute.
    wait_until("others are served during a list", Duration::from_secs(60), || {
        list_and_longest_wait(&server, &mut honest).is_some_and(|(list, longest)| {
            println!("a list in {list:?}, an answer in {longest:?} at most");
            longest * 5 < list
        })
    });
}
