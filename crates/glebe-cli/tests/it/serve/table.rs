//! Tests the tables of memcached's options and commands in docs/serve.md: with `memcached -h`, with
//! `glebe serve --help`, and with the answers of both servers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use glebe_testing::time::wait_until;
use glebe_testing::Scratch;

use super::{line, output, patience, Serving};

/// The version of memcached whose options the tables have.
const VERSION: &str = "memcached 1.6.18";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Table {
    Options,
    Extended,
    Commands,
}

/// Returns the cells of the rows of a table.
fn rows(which: Table) -> Vec<Vec<String>> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/serve.md");
    let page = fs::read_to_string(page).expect("the page");
    let part = page.split("## Each option and command").nth(1).expect("the part");
    let part = part.split("\n## ").next().expect("the part");
    let (mut table, mut rows) = (None, Vec::new());
    for text in part.lines() {
        let cells = text.trim_matches('|').split('|').map(|cell| cell.trim().to_owned());
        let cells: Vec<String> = cells.collect();
        table = match &*cells[0] {
            "memcached" => Some(Table::Options),
            "memcached, after `-o`" => Some(Table::Extended),
            "command" => Some(Table::Commands),
            "" => None,
            _ if text.starts_with("| `") => {
                if table == Some(which) {
                    rows.push(cells);
                }
                table
            }
            _ => table,
        };
    }
    assert!(!rows.is_empty(), "{which:?}");
    rows
}

fn words(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Returns what a table says of each name.
fn said(which: Table) -> BTreeMap<String, String> {
    let mut said = BTreeMap::new();
    for row in rows(which) {
        for name in words(&row[0]) {
            assert!(said.insert(name.to_owned(), row[1].clone()).is_none(), "{name} twice");
        }
    }
    said
}

#[test]
fn the_tables_have_each_option_of_memcached() {
    let version = Command::new("memcached").arg("-V").output().map(|out| out.stdout);
    let version = String::from_utf8(version.unwrap_or_default()).expect("text");
    if version.trim() != VERSION {
        eprintln!("skipped: {VERSION} is not installed, but {version:?}");
        return;
    }
    let help = Command::new("memcached").arg("-h").output().expect("memcached").stdout;
    let help = String::from_utf8(help).expect("text");
    let (mut options, mut extended) = (BTreeSet::new(), BTreeSet::new());
    for line in help.lines() {
        if let Some(name) = line.strip_prefix("   - ").and_then(|rest| rest.split_once(' ')) {
            let name = name.0.trim_end_matches(':');
            // A heading, not an option.
            if name != "External" {
                extended.insert(name.to_owned());
            }
        } else if line.starts_with('-') && line.as_bytes()[1].is_ascii_alphabetic() {
            options.insert(line[..2].to_owned());
        }
    }
    assert!(options.remove("-o") && options.len() > 30 && extended.len() > 40);
    let names = |which| said(which).into_keys().collect::<BTreeSet<String>>();
    assert_eq!(names(Table::Options), options);
    assert_eq!(names(Table::Extended), extended);
}

#[test]
fn the_server_takes_the_options_that_the_tables_name_and_refuses_the_others() {
    let scratch = Scratch::new("table");
    let [users, file] = ["users", "file"].map(|name| scratch.path().join(name));
    fs::write(&users, "joe:secret\n").expect("written");
    let [users, file] = [&users, &file].map(|path| path.to_str().expect("text").to_owned());
    for (option, here) in said(Table::Options) {
        let value = match &*option {
            "-p" | "-U" | "-m" | "-c" | "-t" | "-b" | "-R" | "-n" | "-N" => Some("64"),
            "-s" | "-P" | "-e" => Some(&*file),
            "-a" => Some("700"),
            "-l" => Some("127.0.0.1"),
            "-u" => Some("root"),
            "-f" => Some("1.25"),
            "-D" => Some(":"),
            "-B" => Some("auto"),
            "-I" => Some("1m"),
            "-Y" => Some(&*users),
            "-Z" => Some("-ossl_chain_cert=none"),
            _ => None,
        };
        let words: Vec<&str> = ["serve", "--check", &option].into_iter().chain(value).collect();
        let ended = output(&words);
        assert_eq!(ended.status.success(), here != "refused", "{words:?}: {ended:?}");
    }
    for (name, here) in said(Table::Extended) {
        let value = match &*name {
            "ssl_keyformat" => "=PEM",
            "ssl_min_version" => "=2",
            "ssl_verify_mode" => "=0",
            "ssl_session_cache" => "",
            name if name.starts_with("ssl_") => "=x",
            _ => "=1",
        };
        let given = format!("{name}{value}");
        let mut words = vec!["serve", "--check", "-o", &given];
        if name.starts_with("ssl_") {
            words.extend(["-Z", "-o", "ssl_chain_cert=none"]);
        }
        let ended = output(&words);
        assert_eq!(ended.status.success(), here != "refused", "{words:?}: {ended:?}");
    }
}

#[test]
fn the_help_has_the_short_options_of_the_table() {
    let help = String::from_utf8(output(&["serve", "--help"]).stdout).expect("text");
    let own = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let own = own.filter(|line| !line.starts_with("--") && line.len() > 2);
    let mut own: BTreeSet<String> = own.map(|line| line[..2].to_owned()).collect();
    assert!(own.remove("-o") && own.len() > 25, "{own:?}");
    let table = said(Table::Options).into_iter().filter(|(_, here)| here != "refused");
    assert_eq!(own, table.map(|(option, _)| option).collect());
}

/// Sends a command over a new connection. Returns the first line of the answer.
fn answer(mut stream: TcpStream, command: &str) -> String {
    stream.set_read_timeout(Some(patience())).expect("a timeout");
    let verb = command.split(' ').next().unwrap_or_default();
    let has_value = ["set", "add", "replace", "append", "prepend", "cas", "ms"].contains(&verb);
    let value = if has_value { "x\r\n" } else { "" };
    stream.write_all(format!("{command}\r\n{value}").as_bytes()).expect("taken");
    line(&mut BufReader::new(stream))
}

struct Peer(Child, u16);

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Peer {
    fn start() -> Option<Self> {
        let free = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let mut command = Command::new("memcached");
        command.args(["-l", "127.0.0.1", "-p", &port.to_string(), "-u", "root"]);
        let Ok(child) = command.stderr(Stdio::null()).spawn() else {
            eprintln!("skipped: memcached is not installed");
            return None;
        };
        let peer = Self(child, port);
        wait_until("memcached", patience(), || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Some(peer)
    }
}

#[test]
fn both_servers_answer_as_the_table_says() {
    let (serving, peer) = (Serving::at_a_port(&[]), Peer::start());
    for row in rows(Table::Commands) {
        let command = words(&row[0]).next().expect("a command");
        let expected = words(&row[1]).next().expect("an answer");
        let own = answer(serving.connect(), command);
        // Numbers of the process and names of versions differ from run to run.
        let is_so = match expected.strip_suffix("...") {
            Some(begin) => own.starts_with(begin),
            None => own == expected,
        };
        assert!(is_so, "{command}: {own}, not {expected}");
        if let (Some(peer), "same") = (&peer, &*row[2]) {
            let stream = TcpStream::connect(("127.0.0.1", peer.1)).expect("connect");
            let theirs = answer(stream, command);
            let is_so = match expected.strip_suffix("...") {
                Some(begin) => theirs.starts_with(begin),
                None => theirs == expected,
            };
            assert!(is_so, "{command}: {theirs}, not {expected}");
        }
    }
}
