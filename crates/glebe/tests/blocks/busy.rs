//! [`Busy`] is a child that fills memory with words, then checks and rewrites words until it is
//! stopped.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use glebe_testing::cgroup::enter;
use glebe_testing::process::child_of;

const MIB: &str = "GLEBE_TEST_BUSY_MIB";
const GROUP: &str = "GLEBE_TEST_BUSY_GROUP";

#[derive(Debug)]
pub struct Report {
    pub checked: u64,
    pub wrong: u64,
    pub worst_stall: Duration,
}

pub struct Busy {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: std::io::Lines<BufReader<ChildStdout>>,
    pub addr: usize,
}

impl Busy {
    /// Starts `test` as a child, in which it must call [`be_busy`]. Waits until the child has
    /// filled `mib` MiB.
    pub fn start(test: &str, mib: u64) -> Self {
        Self::run(child_of(test), mib)
    }

    pub fn start_in(group: &Path, test: &str, mib: u64) -> Self {
        let mut command = child_of(test);
        command.env(GROUP, group);
        Self::run(command, mib)
    }

    fn run(mut command: Command, mib: u64) -> Self {
        command.env(MIB, mib.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.by_ref().map_while(Result::ok).find_map(|line| {
            line.split("busy at ").nth(1).map(|addr| addr.trim().parse().unwrap())
        });
        Self { child, stdin, lines, addr: ready.expect("a child that is busy") }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn stop(mut self) -> Report {
        drop(self.stdin.take());
        let told = self.lines.by_ref().map_while(Result::ok).find_map(|line| {
            let words: Vec<u64> =
                line.split("saw ").nth(1)?.split(' ').map(|word| word.parse().unwrap()).collect();
            let worst_stall = Duration::from_micros(words[2]);
            Some(Report { checked: words[0], wrong: words[1], worst_stall })
        });
        told.expect("a child that tells what it saw")
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn be_busy() {
    if let Some(group) = std::env::var_os(GROUP) {
        enter(group.as_ref());
    }
    let words = std::env::var(MIB).unwrap().parse::<usize>().unwrap() << 17;
    let value = |index: usize, round: u64| (index as u64).wrapping_mul(0x9e37_79b9) ^ round;
    let mut memory: Vec<u64> = (0..words).map(|index| value(index, 0)).collect();
    let mut rounds = vec![0_u8; words];
    println!("busy at {}", memory.as_ptr() as usize);
    let (ended, seen) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_line(&mut String::new());
        let _ = ended.send(());
    });
    let (mut checked, mut wrong, mut worst) = (0, 0, Duration::ZERO);
    let mut random = 0x1234_5678_9abc_def1_u64;
    while seen.try_recv().is_err() {
        let begin = Instant::now();
        for _ in 0..64 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let index = random as usize % words;
            wrong += u64::from(memory[index] != value(index, rounds[index].into()));
            rounds[index] = rounds[index].wrapping_add(1);
            memory[index] = value(index, rounds[index].into());
            checked += 1;
        }
        worst = worst.max(begin.elapsed());
    }
    for (index, word) in memory.iter().enumerate() {
        wrong += u64::from(*word != value(index, rounds[index].into()));
    }
    println!("saw {checked} {wrong} {}", worst.as_micros());
    let _ = std::io::stdout().flush();
}
