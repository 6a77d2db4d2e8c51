//! Tests `glebe serve --leases`, `glebe lease` and `glebe leases`.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use glebe::internal::sys::processes::process::effective_user;
use glebe_testing::time::{is_long, wait_until};
use glebe_testing::turn::{Turn, POOL};
use glebe_testing::{tools, Scratch};
use rustix::process::Signal;

use super::{dialogue, glebe, list, output, patience, Serving};

fn text(command: &mut Command) -> (bool, String, String) {
    let output = command.output().expect("the program starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

/// Starts a server, or prints that this user has no huge pages. Returns it with its socket.
pub fn lending(scratch: &Scratch, mib: &str) -> Option<(Serving, String)> {
    let at = |name: &str| scratch.path().join(name).to_string_lossy().into_owned();
    let (socket, cache) = (at("leases"), at("cache"));
    let args = ["serve", "--no-stats", "--leases", "-m", mib, "-s", &cache];
    let mut command = glebe();
    command.args(args).args(["--lease-socket", &socket, "--lease-zeroed", "4M"]);
    command.args(["--lease-grow", "17M"]);
    let wrong = scratch.path().join("wrong");
    command.stderr(std::fs::File::create(&wrong).expect("a file"));
    let server = Serving::start(&mut command, 3);
    if server.said[0].is_empty() {
        lacks_memory(&std::fs::read_to_string(&wrong).expect("text"));
        return None;
    }
    Some((server, socket))
}

/// Prints why there is no server.
///
/// # Panics
/// If it is not for lack of huge pages.
pub fn lacks_memory(said: &str) {
    let lacks = ["to be had in", " available", "more asked for", "no hugetlb pages"];
    assert!(lacks.iter().any(|lack| said.contains(lack)), "{said:?}");
    println!("skipped: {said}");
}

#[test]
fn a_program_has_leased_memory_until_it_ends() {
    let (_turn, scratch) = (Turn::alone(POOL), Scratch::new("leases"));
    let Some((mut server, socket)) = lending(&scratch, "64") else { return };
    assert_eq!(server.said[2], format!("leases at {socket}"));
    let list = format!("{} leases --socket {socket}", env!("CARGO_BIN_EXE_glebe"));
    let sizes = "echo $GLEBE_LEASE_BYTES; stat -Lc %s /proc/self/fd/$GLEBE_LEASE_FD";
    let script = format!("{sizes}; {list}");
    let lease = ["lease", "--socket", &socket, "--name", "a name", "3M", "--", "sh", "-c", &script];
    let (success, said, wrong) = text(glebe().args(lease));
    assert!(success, "{said}{wrong}");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..2], ["4194304", "4194304"]);
    assert!(lines[3].contains("4 MiB") && lines[3].ends_with("a name"), "{said}");
    assert_eq!(lines[4], "1 lease, 4 MiB");
    let (_, said, _) = text(glebe().args(["leases", "--socket", &socket, "--json"]));
    assert_eq!(said, "[]\n");
    let (_, said, _) = text(glebe().args(["leases", "--socket", &socket, "--openmetrics"]));
    assert!(said.contains("glebe_lease_leased_total 1\n"), "{said}");
    let stats = |form: &str| {
        let args = ["stats", form].into_iter().filter(|word| !word.is_empty());
        let (success, said, wrong) = text(glebe().args(args).env("GLEBE_LEASES", &socket));
        assert!(success, "{said}{wrong}");
        said
    };
    let said = stats("");
    let leased = said.lines().find(|line| line.starts_with("leased_total "));
    assert!(said.contains(&format!("leases at {socket}\n")), "{said}");
    assert_eq!(leased.and_then(|line| line.split_whitespace().nth(1)), Some("1"), "{said}");
    let said = stats("--openmetrics");
    assert!(said.contains("glebe_lease_leased_total 1\n") && said.ends_with("# EOF\n"), "{said}");
    let said: serde_json::Value = serde_json::from_str(&stats("--json")).unwrap();
    let last = said.as_array().unwrap().last().unwrap();
    assert_eq!(last["statistics"]["leased_total"], 1, "{said}");
    let much = ["lease", "--socket", &socket, "1T", "--", "true"];
    let (success, _, wrong) = text(glebe().args(much));
    assert!(!success && wrong.contains("1 TiB asked for"), "{wrong}");
    if effective_user() == 0 {
        // The reserve has 54 MiB, and may have 16 more.
        let more = ["lease", "--socket", &socket, "--wait"];
        let rest = ["64M", "--", "true"];
        let (success, _, wrong) = text(glebe().args(more).arg("0").args(rest));
        assert!(!success && wrong.contains("memory is being added"), "{wrong}");
        let (success, _, wrong) = text(glebe().args(more).arg("60").args(rest));
        assert!(success, "{wrong}");
    }
    let status = |program| {
        let args = ["lease", "--socket", &socket, "2M", "--", program];
        glebe().args(args).status().expect("glebe starts").code()
    };
    assert_eq!([status("/no/such"), status("/"), status("false")], [Some(127), Some(126), Some(1)]);
    server.signal("TERM");
    server.ends_well();
    let (success, _, wrong) = text(glebe().args(["leases", "--socket", &socket]));
    assert!(!success && wrong.contains("glebe serve --leases"), "{wrong}");
}

#[test]
fn a_program_ignores_closed_pipes_if_its_caller_does() {
    let (_turn, scratch) = (Turn::alone(POOL), Scratch::new("lease-pipe"));
    let Some((_server, socket)) = lending(&scratch, "64") else { return };
    let pipe = 1_u64 << (Signal::PIPE.as_raw() - 1);
    for (caller, ignored) in [("", 0), ("trap '' PIPE; ", pipe)] {
        let lease = format!("exec \"$0\" lease --socket {socket} 2M -- grep SigIgn");
        let script = format!("{caller}{lease} /proc/self/status");
        let mut shell = Command::new("sh");
        let (_, said, wrong) = text(shell.args(["-c", &script]).arg(glebe().get_program()));
        let bits = said.trim().strip_prefix("SigIgn:").expect(&wrong).trim();
        assert_eq!(u64::from_str_radix(bits, 16).unwrap() & pipe, ignored, "{script}");
    }
}

/// Returns a number of the cache's `stats`.
fn stat(cache: &Path, name: &str) -> u64 {
    let mut stream = UnixStream::connect(cache).expect("connect");
    stream.set_read_timeout(Some(patience())).expect("a timeout");
    let rows = list(&mut stream, "stats");
    let value = rows.iter().find_map(|row| row.strip_prefix(&format!("STAT {name} ")));
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name} in {rows:?}"))
}

#[test]
fn the_cache_says_how_much_of_its_memory_leases_have() {
    let (_turn, scratch) = (Turn::alone(POOL), Scratch::new("taken"));
    let Some((_server, socket)) = lending(&scratch, "64") else { return };
    let cache = scratch.path().join("cache");
    let (lent, kept) = (32 << 20, 4 << 20);
    // The server zeroes its stock in the background.
    wait_until("the stock", patience(), || stat(&cache, "bytes_taken") == kept);
    // The limit follows at a tick, so this one may still have the stock.
    let limit = stat(&cache, "limit_now") - kept;
    let mut lease = glebe();
    lease.args(["lease", "--socket", &socket, "--wait", "60", "32M", "--"]);
    let holding = Serving::start(lease.args(["sh", "-c", "echo held; exec sleep 600"]), 1);
    assert_eq!(holding.said, ["held"]);
    wait_until("lease and stock", patience(), || stat(&cache, "bytes_taken") == lent + kept);
    let is_lower = || stat(&cache, "limit_now") <= limit - lent / 2;
    wait_until("a lower limit", patience(), is_lower);
    drop(holding);
    wait_until("the memory is back", patience(), || stat(&cache, "bytes_taken") == kept);
    wait_until("the old limit", patience(), || stat(&cache, "limit_now") >= limit);
}

fn kernel() -> Option<PathBuf> {
    let named = std::env::var_os("GLEBE_TEST_KERNEL").map(PathBuf::from);
    let all = std::fs::read_dir("/boot").into_iter().flatten().flatten();
    let is_kernel = |path: &PathBuf| path.to_string_lossy().contains("/vmlinuz");
    named.or_else(|| all.map(|entry| entry.path()).find(is_kernel))
}

/// A machine boots until its kernel finds no file system.
#[test]
fn qemu_boots_a_kernel_on_a_lease() {
    let has_qemu = cfg!(target_arch = "x86_64") && tools::has("qemu-system-x86_64");
    let Some(kernel) = kernel().filter(|_| has_qemu) else {
        return println!("skipped: no x86-64, no qemu-system-x86_64, or no kernel in /boot");
    };
    let (_turn, scratch) = (Turn::alone(POOL), Scratch::new("leases"));
    let Some((server, socket)) = lending(&scratch, "256") else { return };
    let memory = "memory-backend-file,share=on,id=m,size=192M,mem-path=/proc/self/fd/";
    let script = format!(
        "exec timeout 120 qemu-system-x86_64 -machine memory-backend=m -m 192M \
         -object {memory}$GLEBE_LEASE_FD -kernel \"$0\" -append 'console=ttyS0 panic=-1' \
         -accel tcg -nographic -no-reboot -nic none </dev/null"
    );
    let mut command = glebe();
    command.args(["lease", "--socket", &socket, "192M", "--", "sh", "-c", &script]).arg(kernel);
    let (_, said, wrong) = text(&mut command);
    for line in ["Linux version", "Unable to mount root fs"] {
        assert!(said.contains(line), "no {line:?} in {said}{wrong}");
    }
    let (_, said, _) = text(glebe().args(["leases", "--socket", &socket]));
    assert_eq!(said, "no leases\n");
    drop(server);
}

#[test]
fn a_silent_daemon_is_named() {
    let scratch = Scratch::new("silent");
    let (_socket, path) = listening(&scratch);
    let (success, _, wrong) = text(glebe().arg("stats").env("GLEBE_LEASES", &path));
    let wanted = format!("the daemon at {path} does not answer");
    assert!(!success && wrong.contains(&wanted), "{wrong}");
}

#[test]
fn options_are_checked_without_a_server() {
    let right = output(&["serve", "--check", "--leases", "--lease-limit", "1G"]);
    assert!(right.status.success(), "{right:?}");
    let wrong = output(&["serve", "--check", "--leases", "--lease-zeroed", "much"]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    for (words, why) in [
        (["--check", "--lease-count", "9"], "--lease-count has an effect only with --leases"),
        (["--lease-idle", "9", "--no-stats"], "--lease-idle has an effect only with --leases"),
        (["--check", "-m", "128M"], "a number of MiB"),
    ] {
        let wrong = output(&[&["serve"], &words[..]].concat());
        let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
        assert!(wrong.status.code() == Some(2) && said.contains(why), "{words:?}: {said}");
    }
}

#[test]
fn a_lack_of_descriptors_is_said_before_the_start() {
    let program = env!("CARGO_BIN_EXE_glebe");
    let script = format!("ulimit -n 900; exec {program} serve --leases -m 1024 -c 64 -t 1");
    let said = |more: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{script} {more}")]);
        command.env("NOTIFY_SOCKET", "/nonexistent/notify").env("FDSTORE", "100");
        let (success, _, wrong) = text(&mut command);
        assert!(!success, "{wrong}");
        wrong
    };
    // Stored descriptors, one user's connections and caches, a margin, and the cache's.
    let others = 100 + 256 + 64 + 256 + 64 + 4;
    // 512 pages are more than half of the limit.
    let wrong = said("");
    let needed = format!("need {} descriptors; the limit is 900", others + 256);
    assert!(wrong.contains(&needed) && wrong.contains("for each 4 MiB"), "{wrong}");
    let wrong = said("--lease-grow 512M");
    assert!(wrong.contains(&format!("need {} descriptors", others + 384)), "{wrong}");
    let wrong = said("--lease-grow 1G");
    let needed = format!("need {} descriptors", others + 256);
    assert!(wrong.contains(&needed) && wrong.contains("for each 8 MiB"), "{wrong}");
}

/// Starts a server of `mib` MiB with a limit of descriptors, or prints that there is no memory.
fn limited(scratch: &Scratch, limit: u64, mib: u64) -> Option<(Serving, String)> {
    let at = |name: &str| scratch.path().join(name).to_string_lossy().into_owned();
    let (socket, cache, wrong) = (at("leases"), at("cache"), at("wrong"));
    let program = env!("CARGO_BIN_EXE_glebe");
    let options = "--no-stats -c 16 -t 1 --lease-connections 8 --lease-zeroed 16M";
    let of_leases = format!("--leases --lease-grow 65M --lease-socket {socket}");
    let script = format!(
        "ulimit -n {limit}; exec {program} serve -m {mib} -s {cache} {options} {of_leases}"
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]).stderr(std::fs::File::create(&wrong).expect("a file"));
    let server = Serving::start(&mut command, 3);
    if server.said[0].is_empty() {
        lacks_memory(&std::fs::read_to_string(&wrong).expect("text"));
        return None;
    }
    Some((server, socket))
}

#[test]
fn few_descriptors_make_bricks_of_several_pages() {
    let _turn = Turn::alone(POOL);
    // Each limit is exactly the number that is needed. The reserve, 7/8 of the server's memory, may
    // grow by 65 MiB, in whole bricks.
    let few = [(413, 64, 2), (493, 512, 4)];
    let large = is_long().then_some((500, 1024, 8));
    for (limit, memory, brick_mib) in few.into_iter().chain(large) {
        let (scratch, reserve) = (Scratch::new("few"), memory * 7 / 8);
        let Some((mut server, socket)) = limited(&scratch, limit, memory) else { return };
        let [killed, again, grown_to] =
            [reserve - 16, reserve - 6, reserve + 65].map(|mib| format!("{mib}M"));
        let whole = |mib: u64| format!("{}\n", mib.next_multiple_of(brick_mib) << 20);
        let lease = |words: &[&str], then: &str| {
            let mut command = glebe();
            command.args(["lease", "--socket", &socket]).args(words);
            text(command.args(["--", "sh", "-c", then]))
        };
        let (success, said, wrong) = lease(&["1"], "echo $GLEBE_LEASE_BYTES");
        assert!(success, "{said}{wrong}");
        assert_eq!(said, format!("{}\n", brick_mib << 20), "a brick with {limit} descriptors");
        let (success, _, wrong) = lease(&["2G"], "true");
        assert!(!success && wrong.contains(&format!("in bricks of {brick_mib} MiB")), "{wrong}");
        let (success, _, _) = lease(&["--wait", "60", &killed], "kill -9 $$");
        assert!(!success);
        let (success, said, wrong) = lease(&["--wait", "60", &again], "echo $GLEBE_LEASE_BYTES");
        assert!(success, "all is back from a killed program: {wrong}");
        assert_eq!(said, whole(reserve - 6));
        if effective_user() == 0 {
            let grown = || lease(&["--wait", "60", &grown_to], "echo $GLEBE_LEASE_BYTES");
            let (mut success, mut said, mut wrong) = grown();
            let begin = std::time::Instant::now();
            // Other memory may be in the way for a moment. The server says so, and tries again.
            while wrong.contains("no memory could be added") && begin.elapsed() < patience() {
                std::thread::sleep(std::time::Duration::from_secs(1));
                (success, said, wrong) = grown();
            }
            match wrong.contains("no memory could be added") && wrong.contains("to be had in") {
                true => println!("skipped: {wrong}"),
                false => assert!(success && said == whole(reserve + 65), "growth: {said}{wrong}"),
            }
        }
        server.signal("TERM");
        server.ends_well();
    }
}

/// Passes both sockets to `glebe serve`, as a service manager does.
fn handing_over(stream: OwnedFd, packets: OwnedFd, options: &str) -> Command {
    let mut command = Command::new("sh");
    let program = env!("CARGO_BIN_EXE_glebe");
    let exec = format!("exec {program} serve --no-stats {options} 3<&0 4<&2 </dev/null 2>&1");
    let vars = "LISTEN_FDS=2 LISTEN_PID=$$ WATCHDOG_USEC=100000 WATCHDOG_PID=$$";
    command.args(["-c", &format!("export {vars}; {exec}")]);
    command.stdin(Stdio::from(stream)).stderr(Stdio::from(packets));
    command
}

/// Returns a socket for leases and its path.
fn listening(scratch: &Scratch) -> (OwnedFd, String) {
    let path = scratch.path().join("leases");
    let socket = glebe_lease::socket::bound(&path).expect("a socket");
    rustix::net::listen(&socket, 8).expect("it listens");
    (socket, path.to_string_lossy().into_owned())
}

#[test]
fn sockets_of_a_service_manager_are_served_and_left_and_it_is_told() {
    let _turn = Turn::alone(POOL);
    let scratch = Scratch::new("manager");
    let (packets, path) = listening(&scratch);
    let notify = scratch.path().join("notify");
    let told = UnixDatagram::bind(&notify).expect("a socket");
    let tcp = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let options = "-p 1 --leases -m 64 --lease-zeroed 4M";
    let mut command = handing_over(tcp.into(), packets, options);
    let mut server = Serving::start(command.env("NOTIFY_SOCKET", &notify), 3);
    if !server.said[2].contains("leases at") {
        return lacks_memory(&server.said[0]);
    }
    assert_eq!(server.said[2], format!("leases at {path}"));
    // A queue that is full would lose what comes last.
    let (heard, texts) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut text = [0; 64];
        while let Ok(len) = told.recv(&mut text) {
            let _ = heard.send(String::from_utf8_lossy(&text[..len]).into_owned());
        }
    });
    let hears = |wanted: &str| {
        let mut said = String::new();
        while !said.contains(wanted) {
            said.push_str(&texts.recv_timeout(patience()).expect("it is told"));
        }
        said
    };
    let before = hears("READY=1\n");
    assert!(!before.contains("STOPPING"), "{before}");
    hears("WATCHDOG=1\nWATCHDOG=1\n");
    dialogue(&mut server.connect(), "mn\n", "MN\n");
    let (success, said, wrong) =
        text(glebe().args(["lease", "--socket", &path, "2M", "--", "pwd"]));
    assert!(success, "{said}{wrong}");
    server.signal("TERM");
    hears("STOPPING=1\n");
    server.ends_well();
    assert!(std::path::Path::new(&path).exists(), "it is the service manager's");
}

#[test]
fn a_socket_for_leases_needs_the_option() {
    let scratch = Scratch::new("no-leases");
    let (packets, _) = listening(&scratch);
    let tcp = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let (success, said, _) = text(handing_over(tcp.into(), packets, "").stdout(Stdio::piped()));
    assert!(!success && said.contains("--leases is missing"), "{said}");
}

#[test]
fn leases_outlive_a_server_by_the_store_of_the_service_manager() {
    let _turn = Turn::alone(POOL);
    let scratch = Scratch::new("store");
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/store.py");
    let few = "-m 640 -c 16 -t 1 --lease-connections 8";
    for (limit, mib, options) in [("$(ulimit -Hn)", "2", "-m 64"), ("600", "4", few)] {
        let mut command = Command::new("sh");
        let script = format!("ulimit -n {limit}; exec python3 \"$0\" \"$@\" {options}");
        command.args(["-c", &script, program, env!("CARGO_BIN_EXE_glebe")]);
        let output = command.arg(scratch.path()).arg(mib).output().expect("python3");
        let said = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(77) => lacks_memory(&said),
            code => assert_eq!(code, Some(0), "{said}"),
        }
        std::fs::remove_file(scratch.path().join("notify")).expect("the manager's socket");
    }
}
