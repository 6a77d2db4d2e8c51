//! Tests the server as clients see it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use glebe_serve::server::{Server, Settings};
use glebe_testing::time::{is_long, slowed, storm, Storm};
use glebe_testing::Scratch;

use crate::running::{dialogue, exactly, short, value, Running};

#[test]
fn classic_commands_in_one_write_and_byte_by_byte() {
    let server = Running::start(|_| {});
    let says = "set a 5 0 3\nabc\nget a\nadd a 0 0 1\nx\nreplace b 0 0 1\nx\nappend a 0 0 2\nde\n\
        prepend a 0 0 1\n_\nget a b a\nset n 0 0 2 noreply\n10\nincr n 5\ndecr n 20\nincr a 1\n\
        touch a 100\ntouch zz 1\ndelete a\ndelete a\ngat 0 n\nverbosity 1\nflush_all\nget n\n\
        bogus\nset toolong 0 0 3\nabcd\nmn\n";
    let hears = "STORED\nVALUE a 5 3\nabc\nEND\nNOT_STORED\nNOT_STORED\nSTORED\nSTORED\n\
        VALUE a 5 6\n_abcde\nVALUE a 5 6\n_abcde\nEND\n15\n0\n\
        CLIENT_ERROR cannot increment or decrement non-numeric value\nTOUCHED\nNOT_FOUND\nDELETED\n\
        NOT_FOUND\nVALUE n 0 2\n0 \nEND\nOK\nOK\nEND\nERROR\nCLIENT_ERROR bad data chunk\n\
        CLIENT_ERROR bad command line format\nMN\n";
    let mut stream = server.connect();
    dialogue(&mut stream, says, hears);
    for byte in says.replace('\n', "\r\n").as_bytes() {
        stream.write_all(&[*byte]).expect("taken");
    }
    exactly(&mut stream, hears.replace('\n', "\r\n").as_bytes());
}

#[test]
fn times_as_libmemcached_sends_them_and_the_version() {
    let server = Running::start(|_| {});
    let mut stream = server.connect();
    dialogue(
        &mut stream,
        "set k 0 4294967295 1\nx\nget k\nset k 0 9 1\nx\ntouch k 4294967293\nget k\n\
         set k 0 9223372036854775808 1\nx\nmn\n",
        "STORED\nEND\nSTORED\nTOUCHED\nEND\nCLIENT_ERROR bad command line format\nMN\n",
    );
    let version = env!("CARGO_PKG_VERSION");
    dialogue(&mut stream, "version\n", &format!("VERSION 1.6.45-glebe-{version}\n"));
}

#[test]
fn items_end_in_the_next_century() {
    let server = Running::start(|_| {});
    let mut stream = server.connect();
    // These dates are in 2100, 2106, 2128, and at the maximum of 64 bits with a sign.
    for date in ["4102444800", "4294967296", "5000000000", "9223372036854775807"] {
        dialogue(
            &mut stream,
            &format!(
                "set a 0 {date} 1\nx\nget a\nset b 4294967295 0 1\nx\ntouch b {date}\nget b\n\
                 gat {date} a\nms m 1 T{date}\nx\nmg m v\nmg m T{date}\nmg new N{date}\n\
                 ma m{date} N{date} J1 v\nget m{date}\nmd m\nmd new\nmd m{date}\n"
            ),
            &format!(
                "STORED\nVALUE a 0 1\nx\nEND\nSTORED\nTOUCHED\nVALUE b 4294967295 1\nx\nEND\n\
                 VALUE a 0 1\nx\nEND\nHD\nVA 1\nx\nHD\nHD W\nVA 1\n1\nVALUE m{date} 0 1\n1\n\
                 END\nHD\nHD\nHD\n"
            ),
        );
    }
}

#[test]
fn a_client_may_send_a_whole_line_of_keys_before_it_reads() {
    let scratch = glebe_testing::Scratch::new("keys");
    let path = scratch.path().join("socket");
    let server = Running::start(|settings| {
        settings.memory = 32 << 20;
        settings.unix = Some((path.clone(), 0o700));
    });
    dialogue(&mut server.connect(), &format!("set k 0 0 99\n{}\n", "v".repeat(99)), "STORED\n");
    // The kernel's buffer of a Unix socket is shorter than the line and the answers.
    let mut stream = std::os::unix::net::UnixStream::connect(path).expect("connect");
    let patience = Some(slowed(Duration::from_secs(20)));
    stream.set_write_timeout(patience).expect("a timeout");
    stream.set_read_timeout(patience).expect("a timeout");
    let keys = 500_000;
    let line = format!("get{}\r\nmn\r\n", " k".repeat(keys));
    stream.write_all(line.as_bytes()).expect("the server reads on");
    let one = format!("VALUE k 0 99\r\n{}\r\n", "v".repeat(99));
    let mut heard = vec![0; one.len() * keys + 9];
    stream.read_exact(&mut heard).expect("all answers");
    assert!(heard.ends_with(b"END\r\nMN\r\n"));
    assert!(heard.chunks_exact(one.len()).take(keys).all(|value| value == one.as_bytes()));
}

#[test]
fn a_line_of_keys_may_be_of_any_length() {
    let server = Running::start(|_| {});
    let mut stream = server.connect();
    let key = |n: usize| format!("{n:0200}");
    for n in [0, 1, 3000, 9998, 9999] {
        dialogue(&mut stream, &format!("set {} 0 0 1\nv\n", key(n)), "STORED\n");
    }
    let keys = (0..10_000).map(key).collect::<Vec<_>>().join(" ");
    let found = [0, 1, 3000, 9998, 9999].map(|n| format!("VALUE {} 0 1\nv\n", key(n))).concat();
    for end in ["\n", " \n"] {
        for verb in ["get", "gat 0"] {
            let line = format!("{verb} {keys}{end}mn\n");
            dialogue(&mut stream, &line, &format!("{found}END\nMN\n"));
        }
    }
    dialogue(&mut stream, &format!("get {}k\n", " ".repeat(9000)), "END\n");
    // The error for an overlong key follows the values. An endless space or key ends the
    // connection.
    let some = (0..9000).map(key).collect::<Vec<_>>().join(" ");
    let found = [0, 1, 3000].map(|n| format!("VALUE {} 0 1\nv\n", key(n))).concat();
    let long = format!("get {some} {}\n", "k".repeat(300));
    dialogue(&mut stream, &long, &format!("{found}CLIENT_ERROR bad command line format\n"));
    for endless in [" ".repeat(200_000), "k".repeat(200_000)] {
        let mut wild = server.connect();
        // The server may close before it has read everything.
        let _ = wild.write_all(format!("get {endless}").as_bytes());
        let _ = wild.shutdown(std::net::Shutdown::Write);
        let _ = wild.read_to_end(&mut Vec::new());
    }
}

#[test]
fn commands_of_administration() {
    let server = Running::start(|_| {});
    let mut stream = server.connect();
    dialogue(
        &mut stream,
        "set a% 0 0 2\nhi\nstats cachedump 1 0\nstats cachedump 2 9\nstats cachedump 64 9\n\
         stats cachedump\n",
        "STORED\nITEM a% [2 b; 0 s]\nEND\nEND\n\
         CLIENT_ERROR Illegal slab id\nCLIENT_ERROR bad command line\n",
    );
    dialogue(
        &mut stream,
        "cache_memlimit x\ncache_memlimit 7\ncache_memlimit 17\ncache_memlimit 16\n\
         slabs automove 1\nslabs automove x\nslabs automove\nlru_crawler sleep -1\nlru tune 1\n\
         slabs\ndebugtime 5\nmisbehave\n",
        "ERROR\nMEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\n\
         MEMLIMIT_ADJUST_FAILED the reserve is not longer\nOK\nOK\n\
         CLIENT_ERROR bad command line format\nCLIENT_ERROR bad command line format\n\
         CLIENT_ERROR bad command line format\nOK\nERROR\n\
         ERROR\nERROR\n",
    );
}

#[test]
fn commands_are_counted_by_the_beginning_of_keys() {
    let server = Running::start(|_| {});
    let mut stream = server.connect();
    dialogue(
        &mut stream,
        "set t:0 0 0 1\nx\nstats detail\nstats detail x\nstats detail on\nstats detail dump\n",
        "STORED\nCLIENT_ERROR usage: stats detail on|off|dump\n\
         CLIENT_ERROR usage: stats detail on|off|dump\nOK\nEND\n",
    );
    dialogue(
        &mut stream,
        "set t:1 0 0 1 noreply\n5\nadd t:1 0 0 1\n5\nappend t:1 0 0 1\n5\nget t:1 t:2 t\n\
         gat 0 t:1\ndelete t:2\nincr t:1 1\ntouch t:1 0\nstats detail dump\n",
        "NOT_STORED\nSTORED\nVALUE t:1 0 2\n55\nEND\nVALUE t:1 0 2\n55\nEND\nNOT_FOUND\n56\n\
         TOUCHED\nPREFIX t get 3 hit 2 set 3 del 1\nEND\n",
    );
    // `bTo0` is `m:4` in base64.
    dialogue(
        &mut stream,
        "ms m:1 1\n5\nms m:1 1 ME\n5\nmg m:1\nmg m:1 T9\nmg m:2\nmg m:3 N9\nmd m:1\nmd m:1\n\
         ma m:3\nmd bTo0 b\nstats detail dump\n",
        "HD\nNS\nHD\nHD\nEN\nHD W\nHD\nNF\nCLIENT_ERROR cannot increment or decrement \
         non-numeric value\nNF\nPREFIX m get 4 hit 2 set 2 del 3\n\
         PREFIX t get 3 hit 2 set 3 del 1\nEND\n",
    );
    dialogue(
        &mut stream,
        "stats reset\nget m:1\nstats detail off\nget m:1\nstats detail dump\n",
        "RESET\nEND\nOK\nEND\nPREFIX m get 1 hit 0 set 0 del 0\nEND\n",
    );
    let server = Running::start(|settings| settings.dump = false);
    let refused = "CLIENT_ERROR stats detail not allowed\n";
    dialogue(&mut server.connect(), "stats detail on\n", refused);
}

#[test]
fn meta_commands() {
    let server = Running::start(|settings| settings.debug_time = true);
    let mut stream = server.connect();
    // Stops the clock, because answers tell the time that is left.
    dialogue(&mut stream, "debugtime p\n", "OK\n");
    dialogue(
        &mut stream,
        "ms k 2 F7 T100 c Oq1\nhi\nmg k f s v c t k Oz\nmg k h\nmg none v\nmg none v q\nmn\n",
        "HD c1 Oq1\nVA 2 f7 s2 c1 t100 kk Oz\nhi\nHD h1\nEN\nMN\n",
    );
    dialogue(
        &mut stream,
        "ms k 1 C9\nx\nms k 1 C1 q\nx\nmd k C1\nmd k I\nmg k v\nmg k v\nmd k q\nmn\n",
        "EX\nEX\nHD\nVA 1 X W\nx\nVA 1 Z X\nx\nMN\n",
    );
    dialogue(
        &mut stream,
        "ma n N0 J13 v\nma n D3 v c\nma n MD D100 v\nmg new N30 v t\nmg new N30 v\n\
         ms aGk= 1 b k\n!\n         mg hi v\nma none\nmg k k v v\n",
        "VA 2\n13\nVA 2 c6\n16\nVA 1\n0\nVA 0 t30 W\n\nVA 0 Z\n\nHD kaGk= b\nVA 1\n!\nNF\n\
         CLIENT_ERROR duplicate flag\n",
    );
}

#[test]
fn an_item_whose_time_is_over_can_be_made_by_a_read() {
    let server = Running::start(|settings| settings.debug_time = true);
    let mut stream = server.connect();
    // Stops the clock, because answers tell the time that is left.
    dialogue(&mut stream, "debugtime p\n", "OK\n");
    dialogue(
        &mut stream,
        "mg k N-1 v\nmn\nmg k N2592001 s t f h l k Oz v\nmg k N-1\nmg k v\n\
         mg k N-1 T30 v t\nmg k t\n",
        "VA 0 W\n\nMN\nVA 0 s0 t0 f0 h0 l0 kk Oz W\n\nHD W\nEN\nVA 0 t30 W\n\nHD t30 Z\n",
    );
}

#[test]
fn values_of_all_lengths_up_to_the_limit_and_not_beyond() {
    let server = Running::start(|settings| {
        settings.memory = 64 << 20;
        settings.item_max = 8 << 20;
    });
    let mut stream = server.connect();
    for (seed, len) in [0, 1, 4095, 4096, 4097, 70_000, 1 << 20, 7 << 20].into_iter().enumerate() {
        let bytes = value(len, seed);
        write!(stream, "set k{seed} 0 0 {len}\r\n").expect("taken");
        stream.write_all(&bytes).expect("taken");
        dialogue(&mut stream, "\n", "STORED\n");
        write!(stream, "get k{seed}\r\n").expect("taken");
        exactly(&mut stream, format!("VALUE k{seed} 0 {len}\r\n").as_bytes());
        exactly(&mut stream, &[&bytes[..], b"\r\nEND\r\n"].concat());
    }
    let len = 9 << 20;
    write!(stream, "set k0 0 0 {len}\r\n").expect("taken");
    stream.write_all(&value(len, 1)).expect("taken");
    dialogue(&mut stream, "\nget k0\n", "SERVER_ERROR object too large for cache\nEND\n");
}

#[test]
fn a_thousand_keys_of_large_values_in_one_line() {
    let server = Running::start(|settings| settings.memory = 32 << 20);
    let mut stream = server.connect();
    let bytes = value(100_000, 3);
    stream.write_all(b"set k 9 0 100000\r\n").expect("taken");
    stream.write_all(&bytes).expect("taken");
    dialogue(&mut stream, "\n", "STORED\n");
    let line = format!("gets{}\r\nmn\r\n", " k".repeat(1000));
    stream.write_all(line.as_bytes()).expect("taken");
    let one = [b"VALUE k 9 100000 1\r\n", &bytes[..], b"\r\n"].concat();
    for _ in 0..1000 {
        exactly(&mut stream, &one);
    }
    exactly(&mut stream, b"END\r\nMN\r\n");
}

#[test]
fn who_sends_garbage_or_does_not_read_harms_nobody() {
    let server = Running::start(|_| {});
    let mut honest = server.connect();
    dialogue(&mut honest, "set k 0 0 4\nbody\n", "STORED\n");
    let mut silent = server.connect();
    silent.set_write_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    let ask = "get k k k k k k k k\r\n".repeat(1000);
    let begin = Instant::now();
    // The write times out when the server reads no more.
    while silent.write_all(ask.as_bytes()).is_ok() {
        assert!(begin.elapsed() < slowed(Duration::from_secs(20)), "it buffers without bound");
    }
    for seed in 0..20 {
        let mut wild = server.connect();
        // The server may close early.
        let _ = wild.write_all(&value(50_000, seed));
        dialogue(&mut honest, "get k\n", "VALUE k 0 4\nbody\nEND\n");
    }
    send_garbage(&server, storm(Duration::from_millis(half(3000))), &mut honest);
    let mut long = server.connect();
    let _ = long.write_all(&[b'x'; 5000]);
    let mut rest = Vec::new();
    let _ = long.read_to_end(&mut rest);
    assert!(rest.is_empty(), "{}", short(&rest));
}

#[test]
fn a_dropped_server_leaves_no_socket() {
    let scratch = Scratch::new("dropped");
    let [unix, control] = ["unix", "control"].map(|name| scratch.path().join(name));
    let server = Server::start(Settings {
        unix: Some((unix.clone(), 0o700)),
        control: Some(control.clone()),
        listen: Vec::new(),
        memory: 16 << 20,
        ..Settings::default()
    });
    let server = server.expect("a server");
    assert!(unix.exists() && control.exists());
    drop(server);
    assert!(!unix.exists() && !control.exists());
}

#[test]
fn recalls_under_load_lose_items_and_never_tear_them() {
    let settings = Settings {
        listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        threads: 2,
        memory: 16 << 20,
        serve_stats: false,
        ..Settings::default()
    };
    let server = Server::start(settings).expect("a server");
    // The first-class client uses its own handle.
    let reserve = server.store().reserve().clone();
    let running = Running::of(server);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let run = reserve.largest_run().expect("a run");
                let half = glebe::units::Pages::new(run.get() / 2);
                let mut block = reserve.alloc(half).expect("first class");
                block.bytes_mut().expect("bytes").fill(0xaa);
                drop(block);
                thread::sleep(Duration::from_millis(10));
            }
        });
        let clients: Vec<_> = (0..2)
            .map(|client| {
                let running = &running;
                scope.spawn(move || check_under_recalls(&mut running.connect(), client))
            })
            .collect();
        let ended: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        done.store(true, Ordering::Relaxed);
        let sums = ended.into_iter().map(|client| client.expect("no wrong byte"));
        let (hits, misses) = sums.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        assert!(hits > 0 && misses > 0, "{hits} hits, {misses} misses");
    });
}

/// Sends random bytes and damaged commands, while one client is served.
fn send_garbage(server: &Running, time: Duration, honest: &mut TcpStream) {
    let (storm, sent) = (Storm::lasting(time), AtomicUsize::new(0));
    let goes_on = || storm.goes_on(|| sent.load(Ordering::Relaxed) > 100);
    thread::scope(|scope| {
        for thread in 0..2 {
            let (sent, goes_on) = (&sent, &goes_on);
            scope.spawn(move || {
                let commands =
                    b"set k 0 0 9\r\nabc\r\nms k 5\r\nmg k v\r\nincr k 1\r\nget k k k\r\n";
                for seed in 0.. {
                    let mut bytes = value(5000 + seed % 3000, seed * 2 + thread);
                    if seed % 2 == 0 {
                        // Random bytes seldom begin with a command.
                        let noise = bytes.clone();
                        bytes = commands.repeat(100);
                        for (at, byte) in noise.iter().enumerate().step_by(41) {
                            let len = bytes.len();
                            bytes[at * 7 % len] = *byte;
                        }
                    }
                    let mut wild = server.connect();
                    wild.set_read_timeout(Some(Duration::from_millis(1))).expect("a timeout");
                    // The server may close early.
                    let _ = wild.write_all(&bytes).and_then(|()| wild.read(&mut [0; 4096]));
                    sent.fetch_add(1, Ordering::Relaxed);
                    if !goes_on() {
                        return;
                    }
                }
            });
        }
        while goes_on() {
            dialogue(
                honest,
                "set own 0 0 4\nbody\nget own\n",
                "STORED\nVALUE own 0 4\nbody\nEND\n",
            );
        }
    });
    assert!(sent.into_inner() > 100);
}

/// Halves a search, unless `GLEBE_LONG` is set.
fn half(all: u64) -> u64 {
    if is_long() {
        all
    } else {
        all / 2
    }
}

const CHECKED: u64 = 100_000;

/// Gets items, and sets the missing ones. Returns the numbers of hits and misses.
fn check_under_recalls(stream: &mut TcpStream, client: usize) -> (u64, u64) {
    let (mut hits, mut misses) = (0, 0);
    for n in 0..half(CHECKED) as usize / 2 {
        let key = n * 7 % 400;
        let len = if key % 4 == 0 { 20_000 + key } else { 50 + key };
        let bytes = value(len, key);
        write!(stream, "mg {client}_{key} v\r\n").expect("taken");
        let mut two = [0; 2];
        stream.read_exact(&mut two).expect("an answer");
        if &two == b"VA" {
            exactly(stream, &[format!(" {len}\r\n").as_bytes(), &bytes, b"\r\n"].concat());
            hits += 1;
            continue;
        }
        exactly(stream, b"\r\n");
        misses += 1;
        write!(stream, "set {client}_{key} 0 0 {len}\r\n").expect("taken");
        stream.write_all(&bytes).expect("taken");
        dialogue(stream, "\n", "STORED\n");
    }
    (hits, misses)
}
