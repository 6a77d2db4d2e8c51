//! Tests the options about who may use the server.

use std::fs;
use std::io::BufReader;

use glebe_testing::time::wait_until;
use glebe_testing::Scratch;

use super::{dialogue, line, output, patience, Serving};

const STORED: &str = "STORED";
const FAILED: &str = "CLIENT_ERROR authentication failure";

/// Returns the answer to a login.
fn answer(serving: &Serving, user: &str) -> String {
    let mut stream = serving.connect();
    dialogue(&mut stream, &format!("set x 0 0 {}\n{user}\n", user.len()), "");
    line(&mut BufReader::new(stream))
}

#[test]
fn a_hang_up_reads_the_users_again_and_a_bad_file_changes_nothing() {
    let scratch = Scratch::new("users");
    let users = scratch.path().join("users");
    let path = users.to_str().expect("text");
    fs::write(&users, "joe:old\n").expect("written");
    let serving = Serving::at_a_port(&["-Y", path]);
    let mut stays = serving.connect();
    dialogue(&mut stays, "set x 0 0 7\njoe old\n", "STORED\n");
    assert_eq!(answer(&serving, "joe new"), FAILED);
    fs::write(&users, "joe:new\n").expect("written");
    serving.signal("HUP");
    wait_until("the new users", patience(), || answer(&serving, "joe new") == STORED);
    assert_eq!(answer(&serving, "joe old"), FAILED);
    fs::write(&users, "joe\n").expect("written");
    serving.signal("HUP");
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(answer(&serving, "joe new"), STORED);
    fs::write(&users, "ann:new\n").expect("written");
    serving.signal("HUP");
    wait_until("the newer users", patience(), || answer(&serving, "ann new") == STORED);
    dialogue(&mut stays, "mn\n", "MN\n");
}

#[test]
fn a_file_without_users_is_refused() {
    let scratch = Scratch::new("no-users");
    let users = scratch.path().join("users");
    let path = users.to_str().expect("text");
    let started = || output(&["serve", "--no-stats", "-l", "127.0.0.1:0", "-Y", path]);
    let said = String::from_utf8_lossy(&started().stderr).into_owned();
    assert!(said.contains("users: No such file"), "{said}");
    fs::write(&users, "joe:secret\nann\n").expect("written");
    let refused = started();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("line 2 is not user:password"), "{said}");
}
