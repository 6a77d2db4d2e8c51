//! Sends steps (commands) to a child process (*user*), compares the answers with the expected
//! contents, and kills the user at random moments.

use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::atomic::AtomicU64;

use super::user::{len_of, Answer, Step, What};
use super::*;

const BATCH: u64 = 64;

/// The expected contents of a user's thread, and counts.
#[derive(Default)]
pub struct Oracle {
    rng: u64,
    version: u64,
    objects: Vec<Option<u64>>,
    area: Vec<Option<u64>>,
    region: Vec<Option<u64>>,
    has_region: bool,
    pub steps: u64,
    pub read: u64,
    pub refused: u64,
    pub blocks: u64,
}

impl Oracle {
    fn new(whose: u64, round: u64, has_region: bool) -> Self {
        let none = || vec![None; PAGES as usize];
        Self {
            rng: mix(round << 8 | whose),
            version: whose,
            objects: vec![None; OBJECTS],
            area: none(),
            region: none(),
            has_region,
            ..Self::default()
        }
    }

    fn below(&mut self, end: u64) -> u64 {
        let mut rng = Rng(self.rng);
        let number = rng.below(end);
        self.rng = rng.0;
        number
    }

    fn step(&mut self) -> Step {
        self.version += THREADS;
        let count = if self.has_region { What::ALL.len() } else { What::ReadRegion as usize };
        let mut what = What::ALL[self.below(count as u64) as usize];
        // Replaces most `TakeObject` by `WriteObject`, and most `DropPage` by `TakePage`.
        if matches!(what, What::TakeObject | What::DropPage) && self.below(4) > 0 {
            what = What::ALL[what as usize - 1];
        }
        let end = if what as u8 <= What::TakeObject as u8 { OBJECTS as u64 } else { PAGES };
        Step { what, at: self.below(end) as u32, version: self.version }
    }

    fn all(&self) -> Vec<Step> {
        let of = |what, end: u64| (0..end as u32).map(move |at| Step { what, at, version: 0 });
        let regions = if self.has_region { PAGES } else { 0 };
        of(What::ReadObject, OBJECTS as u64)
            .chain(of(What::LoadPage, PAGES))
            .chain(of(What::ReadRegion, regions))
            .collect()
    }

    fn check(&mut self, step: Step, answer: &Answer) -> bool {
        let Step { what, at, version } = step;
        let (known, len, is_zeros) = match what {
            What::ReadObject | What::WriteObject | What::TakeObject => {
                (&mut self.objects, len_of(at), false)
            }
            what if what.is_of_region() => (&mut self.region, page(), true),
            _ => (&mut self.area, page(), false),
        };
        let known = &mut known[at as usize];
        self.steps += 1;
        if *answer == Answer::Refused {
            self.refused += 1;
            // A refused store leaves the place empty.
            *known = known.filter(|_| what != What::StorePage);
            return false;
        }
        let must_be = known.map(|version| bytes_of(version, len));
        let must_be = must_be.or_else(|| is_zeros.then(|| vec![0; len]));
        let is_right = match (answer, must_be) {
            (Answer::Read(bytes), Some(must_be)) => {
                self.read += len as u64;
                *bytes == must_be
            }
            (Answer::Absent, must_be) => must_be.is_none(),
            (Answer::Done, must_be) => match what {
                What::WriteObject => must_be.is_none(),
                What::DropPage => must_be.is_some(),
                what => matches!(what, What::StorePage | What::WriteRegion),
            },
            _ => false,
        };
        assert!(is_right, "{step:?}: not version {known:?}");
        *known = match what {
            What::ReadObject | What::LoadPage | What::ReadRegion => *known,
            What::TakeObject | What::TakePage | What::DropPage => None,
            _ => Some(version),
        };
        true
    }

    fn ask(&mut self, user: &mut UnixStream, steps: &[Step]) -> io::Result<Vec<Step>> {
        let mut asked = (steps.len() as u32).to_le_bytes().to_vec();
        steps.iter().for_each(|step| asked.extend(step.to_bytes()));
        user.write_all(&asked)?;
        let mut from = io::BufReader::new(&mut *user);
        let mut refused = Vec::new();
        for step in steps {
            let answer = Answer::get(&mut from)?;
            if !self.check(*step, &answer) {
                refused.push(*step);
            }
        }
        Ok(refused)
    }

    fn work(
        &mut self,
        user: &mut UnixStream,
        begun: &AtomicU64,
        is_over: &AtomicBool,
    ) -> io::Result<()> {
        while !is_over.load(Ordering::Relaxed) {
            let count = 1 + self.below(BATCH);
            let steps: Vec<_> = (0..count).map(|_| self.step()).collect();
            let is_first = self.steps == 0;
            self.ask(user, &steps)?;
            begun.fetch_add(is_first.into(), Ordering::Relaxed);
        }
        let (begun, mut left) = (Instant::now(), self.all());
        while !left.is_empty() {
            assert!(
                begun.elapsed() < slowed(PATIENCE),
                "{} reads are refused for ever",
                left.len()
            );
            let mut refused = Vec::new();
            for some in left.chunks(BATCH as usize) {
                refused.extend(self.ask(user, some)?);
            }
            left = refused;
        }
        Ok(())
    }
}

fn connection() -> (UnixStream, OwnedFd) {
    let (own, other) = UnixStream::pair().unwrap();
    own.set_read_timeout(Some(slowed(PATIENCE))).unwrap();
    // SAFETY: `dup` returns a new descriptor, which a child inherits.
    let other = unsafe { OwnedFd::from_raw_fd(libc::dup(other.as_raw_fd())) };
    (own, other)
}

pub fn round(test: &str, dir: &Path, policy: Policy, round: u64) -> Oracle {
    // Keeps these open, because the user ends if one is closed.
    let (mut own, others): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| connection()).unzip();
    let numbers: Vec<_> = others.iter().map(|fd| fd.as_raw_fd().to_string()).collect();
    let mut user = child_of(test);
    user.env(VICTIM, dir).env(TALKS, numbers.join(" ")).env(POLICY, format!("{policy:?}"));
    let mut user = user.stdout(Stdio::null()).spawn().unwrap();
    drop(others);
    let has_region = has_regions();
    let (is_over, is_killed) = (AtomicBool::new(false), AtomicBool::new(false));
    let begun = AtomicU64::new(0);
    // Every other round reads everything before the kill.
    let reads_all = round % 2 == 0;
    let work = |whose: u64, stream: &mut UnixStream| {
        let mut oracle = Oracle::new(whose, round, has_region);
        let done = oracle.work(stream, &begun, &is_over);
        let is_known = done.is_ok() || is_killed.load(Ordering::SeqCst);
        assert!(is_known, "the user ended or hangs: {done:?}, {policy:?}");
        oracle
    };
    let mut blocks = 0;
    let all = thread::scope(|scope| {
        let work = &work;
        let threads =
            own.iter_mut().zip(0..).map(|(stream, whose)| scope.spawn(move || work(whose, stream)));
        let threads: Vec<_> = threads.collect();
        let has_failed = || threads.iter().any(thread::ScopedJoinHandle::is_finished);
        while begun.load(Ordering::Relaxed) < THREADS && !has_failed() {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(50 + mix(round) % 500));
        if reads_all {
            is_over.store(true, Ordering::SeqCst);
            while !threads.iter().all(thread::ScopedJoinHandle::is_finished) {
                thread::sleep(Duration::from_millis(1));
            }
        }
        blocks = kill(&mut user, dir, &is_killed);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    all.into_iter().fold(Oracle { blocks, ..Oracle::default() }, |sum, one| Oracle {
        steps: sum.steps + one.steps,
        read: sum.read + one.read,
        refused: sum.refused + one.refused,
        ..sum
    })
}

fn kill(user: &mut Child, dir: &Path, is_killed: &AtomicBool) -> u64 {
    let (files, blocks) = files_of(user.id(), dir);
    is_killed.store(true, Ordering::SeqCst);
    user.kill().unwrap();
    let status = user.wait().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGKILL), "it ended before: {status}");
    assert!(files > 1, "{files} files");
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "a name is left");
    blocks
}
