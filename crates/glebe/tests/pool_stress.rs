//! Tests that the hugetlb pool has its old number of pages after processes changed it, had calls
//! refused, and were killed.
//!
//! Calls are refused only with the feature `faults`, in a second round. The test locks the pool for
//! itself, because other tests could take and keep pages.

use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use glebe::contig::{Contig, Source};
use glebe::units::Bytes;
use glebe_testing::process::{child_of, is_child};
use glebe_testing::time::is_long;

use crate::contig::pool::Machine;
use glebe_testing::turn::{Turn, POOL};

const TEST: &str = "pool_stress::processes_beside_each_other_leave_the_pool_as_it_was";
const SEED: &str = "GLEBE_TEST_SEED";
const REFUSED: &str = "GLEBE_TEST_REFUSED";
const CHILDREN: u64 = 2;
const KILLS: u64 = 6;

/// xorshift64*. Its upper bits are good.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % n
    }
}

fn make(random: &mut Random) -> Option<Contig> {
    let len = Bytes::mib(2 * (1 + random.below(8)));
    let options = Contig::options().source(Source::HUGETLB_2M).threads(1);
    let options = options.in_order(random.below(2) == 0);
    let options = match random.below(4) {
        0 => options,
        1 => options.mappable(),
        2 => options.prefer_run(len),
        _ => options.mappable().prefer_run(len),
    };
    options.build(len).ok()
}

fn grow_and_shrink(seed: u64) -> ! {
    let mut random = Random(seed);
    let mut held = Vec::new();
    #[cfg(feature = "faults")]
    let refused = std::env::var_os(REFUSED).is_some();
    loop {
        #[cfg(feature = "faults")]
        if refused {
            refuse_one(&mut random);
        }
        if held.len() < 4 && random.below(2) == 0 {
            held.extend(make(&mut random));
        } else if !held.is_empty() {
            let at = random.below(held.len() as u64) as usize;
            held.swap_remove(at);
        }
    }
}

/// Makes one of the next 120 calls fail, perhaps with later calls. One time in three, none fails.
#[cfg(feature = "faults")]
fn refuse_one(random: &mut Random) {
    use glebe::internal::sys::fault::{arm, disarm, Fault, Lasting};
    disarm();
    if random.below(3) > 0 {
        let lasting = [Lasting::Once, Lasting::ThisCall, Lasting::EveryCall];
        let lasting = lasting[random.below(3) as usize];
        arm(Fault { nth: 1 + random.below(120), choice: random.below(3) as usize, lasting });
    }
}

struct Running(Child);

impl Running {
    fn start(seed: u64, refused: bool) -> Self {
        let mut command = child_of(TEST);
        if refused {
            command.env(REFUSED, "1");
        }
        Self(command.env(SEED, seed.to_string()).stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn processes_beside_each_other_leave_the_pool_as_it_was() {
    if is_child() {
        let seed = std::env::var(SEED).unwrap().parse().unwrap();
        grow_and_shrink(seed);
    }
    let _turn = Turn::alone(POOL);
    let Some(machine) = Machine::privileged() else { return };
    let first = u64::from(std::process::id()) << 20;
    println!("seed {first}");
    let mut random = Random(first + 1);
    let mut seeds = first..;
    let rounds: &[bool] = if cfg!(feature = "faults") { &[false, true] } else { &[false] };
    for &refused in rounds {
        machine.base_is_kept(|| {
            let mut start = || Running::start(seeds.next().unwrap(), refused);
            let mut children: Vec<Running> = (0..CHILDREN).map(|_| start()).collect();
            for _ in 0..if is_long() { 2 * KILLS } else { KILLS } {
                thread::sleep(Duration::from_millis(random.below(150)));
                children[random.below(CHILDREN) as usize] = start();
            }
        });
    }
}
