//! Tests that a file for `--config` may have all other options by their long names, and no unknown
//! ones.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use glebe::contig::{Contig, Node, Source};
use glebe::units::Bytes;
use glebe_testing::Scratch;

use super::{dialogue, glebe, list, output, Serving};

fn options() -> Vec<String> {
    let help = output(&["serve", "--help"]);
    let text = String::from_utf8(help.stdout).expect("text");
    let names = text.lines().filter_map(|line| {
        let line = line.trim_start();
        let is_option = line.starts_with('-');
        let (_, name) = line.split_once("--").filter(|_| is_option)?;
        Some(name.split([' ', '=', '.']).next()?.to_owned())
    });
    names.collect()
}

#[test]
fn a_node_that_is_not_there_is_refused_and_node_0_serves() {
    let scratch = Scratch::new("node");
    let socket = scratch.path().join("socket");
    let words =
        |node| ["serve", "--no-stats", "-s", socket.to_str().expect("text"), "--node", node];
    let refused = output(&words("1048576"));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("node 1048576 is not online"), "{said}");
    let refused = output(&words("0,1048577"));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("node 1048577 is not online"), "{said}");
    let refused = output(&words("0,x"));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && said.contains("for example 0,1"), "{said}");
    let nodes = fs::read_to_string("/sys/devices/system/node/has_memory").unwrap_or_default();
    let node = Contig::options().source(Source::Plain).node(Node(0)).build(Bytes::new(1));
    if nodes.starts_with('0') && node.is_ok() {
        let serving = Serving::start(glebe().args(words("0")), 2);
        assert_eq!(serving.said[1], format!("listening at unix:{}", socket.display()));
        drop(serving);
        let serving = Serving::start(glebe().args(words("0, 0")), 2);
        assert_eq!(serving.said[1], format!("listening at unix:{}", socket.display()));
    }
}

#[test]
fn a_file_has_every_option() {
    let scratch = Scratch::new("config");
    let (socket, pid) = (scratch.path().join("socket"), scratch.path().join("pid"));
    let users = scratch.path().join("users");
    fs::write(&users, "joe:secret\n").expect("written");
    let given = format!(
        "memcached = true\nport = 0\nlisten = '127.0.0.1'\nunix-socket = {socket:?}\n\
         unix-mask = '750'\nudp-port = 0\nmemory-limit = 17\nthreads = 3\nconn-limit = 77\n\
         max-reqs-per-event = 9\nmax-item-size = '2m'\ndisable-evictions = true\n\
         disable-cas = true\nlisten-backlog = 55\nprotocol = 'ascii'\nverbose = 1\n\
         enable-shutdown = true\ndisable-flush-all = true\ndisable-dumping = true\n\
         disable-watch = true\nuser = '{}'\npidfile = {pid:?}\nslab-growth-factor = 1.5\n\
         slab-min-size = 64\nenable-largepages = true\nlock-memory = true\ndelimiter = '/'\n\
         auth-file = {users:?}\n\
         extended = ['idle_timeout=33', 'no_maxconns_fast']\nno-stats = true\n\
         leases = false\ncheck = false\nmetrics = '127.0.0.1:0'\ncontrol = {:?}\n",
        uid(),
        scratch.path().join("control"),
    );
    // A server with leases needs huge pages, so these options are only checked.
    let of_leases = "leases = true\nlease-socket = 'leases'\nlease-zeroed = '4M'\n\
         lease-limit = '1G'\nlease-limit-promised = '1G'\nlease-limit-revocable = '1G'\n\
         lease-limit-zeroing = '1G'\nlease-connections = 9\nlease-count = 9\n\
         enable-ssl = false\nlease-notice = 50\nlease-grow = '64M'\nlease-idle = 30\nnode = 0\n\
         check = true\n";
    let file = scratch.path().join("serve.toml");
    fs::write(&file, of_leases).expect("written");
    let checked = output(&["serve", "--config", file.to_str().expect("text")]);
    assert!(checked.status.success(), "{checked:?}");
    let lines = given.lines().chain(of_leases.lines());
    let named: Vec<&str> = lines.filter_map(|line| line.split(' ').next()).collect();
    for option in options() {
        let is_other = ["config", "help"].contains(&&*option);
        assert!(is_other || named.contains(&&*option), "{option} is not in the file");
    }
    fs::write(&file, &given).expect("written");
    let mut command = glebe();
    command.arg("serve").arg("--config").arg(&file);
    let mut serving = Serving::start(&mut command, 3);
    assert_eq!(serving.said[1], format!("listening at unix:{}", socket.display()));
    assert!(serving.said[2].starts_with("metrics at http://127.0.0.1:"), "{:?}", serving.said);
    let mode = fs::metadata(&socket).expect("a socket").permissions().mode() & 0o777;
    assert_eq!(mode, 0o750);
    let written = fs::read_to_string(&pid).expect("the number of the process");
    assert_eq!(written.trim_end(), serving.child.id().to_string());
    let mut stream = UnixStream::connect(&socket).expect("connect");
    dialogue(&mut stream, "set any 0 0 10\njoe secret\n", "STORED\n");
    let settings = list(&mut stream, "stats settings");
    for (name, value) in [
        ("maxbytes", "17825792"),
        ("maxconns", "77"),
        ("verbosity", "1"),
        ("evictions", "off"),
        ("umask", "750"),
        ("num_threads", "3"),
        ("stat_key_prefix", "/"),
        ("detail_enabled", "yes"),
        ("reqs_per_event", "9"),
        ("tcp_backlog", "55"),
        ("item_size_max", "2097152"),
        ("maxconns_fast", "no"),
        ("flush_enabled", "no"),
        ("dump_enabled", "no"),
        ("shutdown_command", "yes"),
        ("idle_timeout", "33"),
    ] {
        let row = format!("STAT {name} {value}");
        assert!(settings.contains(&row), "no {row} in {settings:?}");
    }
    dialogue(&mut stream, "flush_all\n", "CLIENT_ERROR flush_all not allowed\n");
    dialogue(&mut stream, "shutdown\n", "");
    serving.ends_well();
    assert!(!pid.exists() && !socket.exists());
}

fn uid() -> String {
    let status = fs::read_to_string("/proc/self/status").expect("proc");
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:")).expect("ids");
    uids.split_ascii_whitespace().next().expect("an id").to_owned()
}

#[test]
fn the_command_line_goes_before_the_file() {
    let scratch = Scratch::new("before");
    let file = scratch.path().join("serve.toml");
    fs::write(&file, "memory-limit = 20\nconn-limit = 5\n").expect("written");
    let file = file.to_str().expect("text");
    let serving = Serving::at_a_port(&["-c", "6", "--config", file]);
    let settings = list(&mut serving.connect(), "stats settings");
    let has = |row: &str| settings.iter().any(|other| other == row);
    assert!(has("STAT maxconns 6") && has("STAT maxbytes 20971520"), "{settings:?}");
    fs::write(file, "verbose = 2\n").expect("written");
    for (words, verbosity) in [(&["--config", file][..], 2), (&["-v", "--config", file], 1)] {
        let serving = Serving::at_a_port(words);
        let settings = list(&mut serving.connect(), "stats settings");
        assert!(settings.contains(&format!("STAT verbosity {verbosity}")), "{settings:?}");
    }
}

#[test]
fn a_wrong_value_has_the_status_of_a_wrong_command_line() {
    let scratch = Scratch::new("values");
    let file = scratch.path().join("serve.toml");
    let path = file.to_str().expect("text");
    for text in [
        "port = false",
        "port = true",
        "memory-limit = false",
        "listen = false",
        "user = false",
        "extended = false",
        "listen = [1]",
        "unix-mask = '9'",
        "unix-mask = '7777'",
        "max-item-size = 'xx'",
        "extended = ['idle_timeout=x']",
    ] {
        fs::write(&file, text).expect("written");
        let refused = output(&["serve", "--check", "--config", path]);
        assert_eq!(refused.status.code(), Some(2), "{text}: {refused:?}");
        let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
        let is_boolean = text.ends_with("false") || text.ends_with("true");
        assert!(!is_boolean || stderr.contains("is a number or a string"), "{text}: {stderr}");
    }
    for words in [["-a", "9"], ["-a", "7777"], ["-I", "xx"], ["-o", "idle_timeout=x"]] {
        let refused = output(&["serve", "--check", words[0], words[1]]);
        assert_eq!(refused.status.code(), Some(2), "{words:?}: {refused:?}");
    }
    for text in ["leases = false", "verbose = false", "verbose = true"] {
        fs::write(&file, text).expect("written");
        let checked = output(&["serve", "--check", "--config", path]);
        assert!(checked.status.success(), "{text}: {checked:?}");
    }
}

#[test]
fn what_a_file_may_not_say_is_refused() {
    let scratch = Scratch::new("refused");
    let file = scratch.path().join("serve.toml");
    let path = file.to_str().expect("text");
    for (text, why) in [
        ("memory = 20", "no option is called \"memory\""),
        ("memory_limit = 20", "no option is called \"memory_limit\""),
        ("m = 20", "no option is called \"m\""),
        ("config = 'other'", "no option is called \"config\""),
        ("help = true", "no option is called \"help\""),
        ("[server]\nport = 1", "no option is called \"server\""),
        ("port = {number = 1}", "is a number or a string"),
        ("listen = [1]", "is a list of strings"),
        ("port = 70000", "70000"),
        ("port = 1\nport = 2", "duplicate"),
        ("port", "expected"),
        ("protocol = 'binary'", "binary protocol is not spoken"),
        ("extended = ['slab_chunk_minimum=1']", "there is no such thing"),
        ("memory-limit = 0", "-m 0: at least 1 and at most 67108864"),
        ("memory-limit = 67108865", "-m 67108865: at least 1"),
        ("threads = 0", "-t 0: at least 1"),
        ("conn-limit = 0", "-c 0: at least 1"),
        ("conn-limit = 1073741824", "raise `ulimit -n`"),
        ("max-item-size = '1023'", "-I 1023: at least 1024 bytes"),
        ("max-item-size = '33m'", "at most 32 MiB (half of -m, and 1 GiB)"),
        ("max-item-size = 'x'", "-I x: "),
        ("unix-mask = '8'", "-a 8: "),
        ("extended = ['ssl_key=x']", "-o ssl_key=x has an effect only with -Z"),
        ("enable-ssl = true", "-Z: name a certificate by -o ssl_chain_cert=FILE"),
        ("enable-ssl = true\nextended = ['ssl_chain_cert=/no/file']", "/no/file: No such file"),
        (
            "enable-ssl = true\nextended = ['ssl_chain_cert=x', 'ssl_min_version=1']",
            "or 3 (tlsv1.3)",
        ),
        ("enable-ssl = true\nextended = ['ssl_chain_cert=x', 'ssl_verify_mode=2']", "ssl_ca_cert="),
        ("enable-ssl = true\nextended = ['ssl_ciphers=x']", "-o ssl_ciphers=x: there is no such"),
        ("lease-grow = '1G'", "--lease-grow has an effect only with --leases"),
        ("delimiter = 'é'", "-D é: a character of ASCII"),
        ("metrics = 9464", "--metrics 9464: "),
    ] {
        fs::write(&file, text).expect("written");
        let refused = output(&["serve", "--config", path, "-l", "127.0.0.1:0"]);
        let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(matches!(refused.status.code(), Some(1 | 2)), "{text}: {refused:?}");
        assert!(stderr.contains(why), "{text}: {stderr}");
    }
    let missing = scratch.path().join("missing");
    let refused = output(&["serve", "--config", missing.to_str().expect("text")]);
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("missing"), "{refused:?}");
}
