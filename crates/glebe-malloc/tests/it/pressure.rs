//! Tests a memory cgroup that cannot hold everything: memory that a program freed serves its
//! neighbours and its own growth, and nobody is killed. The programs are children of this one.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use glebe::Bytes;
use glebe_malloc::heap;
use glebe_testing::cgroup::{enter, Group};
use glebe_testing::memory::rise;
use glebe_testing::process::child_of;

use crate::process::{objects, page, Object};

const ROLE: &str = "GLEBE_TEST_ROLE";
const LIMIT: Bytes = Bytes::mib(300);
const USED: usize = 200 << 20;
/// Most bytes that a neighbour takes in a second.
const A_SECOND: u64 = 500 << 20;

fn group() -> Option<Group> {
    match Group::make(LIMIT) {
        Ok(group) => Some(group),
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

/// A child process that runs one test in a role.
struct Player {
    child: Child,
    told: BufReader<ChildStdout>,
    tell: ChildStdin,
}

impl Player {
    fn start(group: &Group, test: &str, role: &str) -> Self {
        let mut child = child_of(&format!("pressure::{test}"))
            .env(ROLE, format!("{role} {}", group.dir().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (told, tell) = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
        Self { child, told: BufReader::new(told), tell }
    }

    /// Waits until the child says `word`. Returns false if the child ends first.
    fn says(&mut self, word: &str) -> bool {
        let mut line = String::new();
        while self.told.read_line(&mut line).is_ok_and(|len| len > 0) {
            if line.trim_end().ends_with(word) {
                return true;
            }
            line.clear();
        }
        false
    }

    fn ends_well(mut self) -> bool {
        let _ = self.tell.write_all(b"\n");
        let mut rest = String::new();
        let _ = self.told.read_to_string(&mut rest);
        self.child.wait().unwrap().success() && rest.contains("1 passed")
    }
}

/// Enters the group and returns the role and its number; `None` in the test itself.
fn role() -> Option<(String, usize)> {
    let told = std::env::var(ROLE).ok()?;
    let mut words = told.splitn(3, ' ');
    let (name, number) = (words.next()?.to_owned(), words.next()?.parse().unwrap());
    enter(Path::new(words.next()?));
    Some((name, number))
}

fn say(word: &str) {
    println!("{word}");
    std::io::stdout().flush().unwrap();
}

fn hear() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

fn hoard(size: usize) {
    drop(objects(USED / size, size));
    let again = objects(USED / size, size);
    drop(again);
    say("free");
    hear();
    let again = objects(USED / size, size);
    assert!(again.iter().all(Object::is_whole));
}

fn eat() {
    sees_it_all(rise(USED, A_SECOND));
}

/// Touches a fifth of [`USED`] slowly, like a working program.
fn nibble() {
    let mut memory = vec![0_u8; USED / 5];
    for part in memory.chunks_mut(1 << 20) {
        part.iter_mut().step_by(page()).for_each(|byte| *byte = 1);
        std::thread::sleep(Duration::from_millis(20));
    }
    sees_it_all(memory);
}

fn sees_it_all(memory: Vec<u8>) {
    say("full");
    assert!(std::hint::black_box(memory).iter().step_by(page()).all(|byte| *byte == 1));
}

fn play() -> bool {
    match role() {
        Some((role, size)) if role == "hoard" => hoard(size),
        Some((role, _)) if role == "eat" => eat(),
        Some((role, _)) if role == "nibble" => nibble(),
        Some((role, size)) if role == "keep" => keep(size),
        Some((role, size)) if role == "grow" => grow(size),
        _ => return false,
    }
    true
}

fn a_neighbour_gets_what_is_free(test: &str, size: usize, idle: Duration) {
    if play() {
        return;
    }
    let Some(group) = group() else { return };
    let mut hoarder = Player::start(&group, test, &format!("hoard {size}"));
    assert!(hoarder.says("free"));
    std::thread::sleep(idle);
    let mut eater = Player::start(&group, test, "eat 0");
    assert!(eater.says("full"), "the neighbour was killed");
    assert!(eater.ends_well(), "the neighbour was killed");
    assert!(hoarder.ends_well(), "the holder of free memory was killed");
    assert_eq!(group.kills(), 0);
}

#[test]
fn a_neighbour_gets_what_was_just_freed_in_large_objects() {
    let test = "a_neighbour_gets_what_was_just_freed_in_large_objects";
    a_neighbour_gets_what_is_free(test, 512 << 10, Duration::ZERO);
}

#[test]
fn a_neighbour_gets_what_was_just_freed_in_small_objects() {
    let test = "a_neighbour_gets_what_was_just_freed_in_small_objects";
    a_neighbour_gets_what_is_free(test, 4 << 10, Duration::ZERO);
}

#[test]
fn a_neighbour_gets_what_was_freed_long_ago() {
    let test = "a_neighbour_gets_what_was_freed_long_ago";
    a_neighbour_gets_what_is_free(test, 512 << 10, Duration::from_millis(400));
}

fn keep(size: usize) {
    drop(objects(USED / size, size));
    let before = heap::counts();
    say("free");
    hear();
    drop(objects(USED / size, size));
    let gone = (heap::counts().reused_cold - before.reused_cold) as usize;
    // The neighbour took only 40 MiB, so less than half of the freed 200 MiB may go.
    assert!(gone < USED / 2, "{} MiB of {} went", gone >> 20, USED >> 20);
}

#[test]
fn a_neighbour_gets_what_it_needs_and_the_rest_stays() {
    if play() {
        return;
    }
    let Some(group) = group() else { return };
    let test = "a_neighbour_gets_what_it_needs_and_the_rest_stays";
    let mut keeper = Player::start(&group, test, "keep 524288");
    assert!(keeper.says("free"));
    let mut neighbour = Player::start(&group, test, "nibble 0");
    assert!(neighbour.says("full"), "the neighbour was killed");
    assert!(neighbour.ends_well(), "the neighbour was killed");
    assert!(keeper.ends_well(), "more went than was needed, or it was killed");
    assert_eq!(group.kills(), 0);
}

/// Keeps every fourth object, so that the freed memory is in pieces. Then makes larger objects,
/// which fit below the limit only if the heap gives freed memory back.
fn grow(_: usize) {
    let mut used = objects(250, 1 << 20);
    let mut nth = 0;
    used.retain(|_| {
        nth += 1;
        nth % 4 == 0
    });
    let more = objects(18, 8 << 20);
    assert!(used.iter().chain(&more).all(Object::is_whole));
}

#[test]
fn a_program_with_holes_grows_within_its_limit() {
    if play() {
        return;
    }
    let Some(group) = group() else { return };
    let test = "a_program_with_holes_grows_within_its_limit";
    let grower = Player::start(&group, test, "grow 0");
    assert!(grower.ends_well(), "it was killed");
    assert_eq!(group.kills(), 0);
}
