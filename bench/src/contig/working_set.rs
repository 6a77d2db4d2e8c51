//! What contiguity and huge pages buy: reads, copies and messages over memory had in each way.
//!
//! One contestant has its memory at a time: it is obtained, used and given back, and then the next
//! one's turn comes, round by round, so that all meet the same machine and none needs room beside
//! another. Times are CPU time of the calling thread. Memory is written once before it is read:
//! what the host of a virtual machine does about pages that are touched for the first time is not
//! the reader's to pay.

use glebe::units::Bytes;

use super::memory::{self, Kind, Memory};
use super::messages::{self, Amount, Line};
use super::samples::Samples;
use super::{name, reads, Error};
use crate::clock::Stopwatch;
use crate::interrupt;
use crate::progress::Progress;
use crate::report::Report;

/// Sizes of the memory that is worked on.
const SIZES: [Bytes; 4] = [Bytes::mib(64), Bytes::gib(1), Bytes::gib(4), Bytes::gib(8)];
const SIZES_QUICK: [Bytes; 2] = [Bytes::mib(64), Bytes::mib(128)];
/// The size that the targets are of.
const TARGET: Bytes = Bytes::gib(4);
/// From here on fewer rounds: the memory of one takes seconds.
const LARGE: Bytes = Bytes::gib(1);

/// Bytes between two reads; none a power of two, so that all sets of the caches are used.
const STRIDES: [u64; 4] = [320, 4160, 65_600, 2_097_216];

/// How much is done for one sample.
struct Effort {
    rounds: usize,
    rounds_large: usize,
    /// Samples of a turn.
    repeats: u64,
    independent: u64,
    dependent: u64,
    strided: u64,
    messages: Amount,
}

const EFFORT: Effort = Effort {
    rounds: 5,
    rounds_large: 3,
    repeats: 3,
    independent: 1 << 22,
    dependent: 1 << 19,
    strided: 1 << 20,
    messages: Amount { messages: 100_000, bytes: 64 << 20 },
};
const EFFORT_QUICK: Effort = Effort {
    rounds: 2,
    rounds_large: 2,
    repeats: 1,
    independent: 1 << 18,
    dependent: 1 << 16,
    strided: 1 << 16,
    messages: Amount { messages: 2000, bytes: 16 << 20 },
};

/// Measures all sizes up to `largest`, reports rows, ratios and the table.
pub(super) fn measure(quick: bool, largest: Bytes, report: &mut Report) -> Result<(), Error> {
    let sizes = if quick { &SIZES_QUICK[..] } else { &SIZES };
    let effort = if quick { EFFORT_QUICK } else { EFFORT };
    let fitting = memory::largest()?;
    let most = largest.min(fitting);
    let (sizes, left): (Vec<Bytes>, Vec<Bytes>) = sizes.iter().partition(|&&size| size <= most);
    for size in left {
        let why = if size > largest { "--largest" } else { "free memory" };
        let text = format!("left out: {why} allows {most}");
        report.absent(&format!("random_read_{}", name(size)), "all", "ns", &text);
    }
    let Some(&target) = sizes.iter().filter(|&&size| size <= TARGET).max() else {
        report.note("No size fits: nothing was read or copied.");
        ratios(&Samples::default(), "none", report);
        return Ok(());
    };
    let mut samples = Samples::default();
    for size in sizes {
        rounds(size, size == target, &effort, &mut samples);
    }
    samples.report(report);
    ratios(&samples, &name(target), report);
    talk(&samples, &name(target), report);
    Ok(())
}

fn rounds(size: Bytes, with_messages: bool, effort: &Effort, samples: &mut Samples) {
    let rounds = if size >= LARGE { effort.rounds_large } else { effort.rounds };
    let label = format!("contig {}", name(size));
    let mut progress = Progress::new(&label, (rounds * Kind::ALL.len()) as u64);
    let mut refused = Vec::new();
    let mut target = vec![1_u8; messages::SIZE_MAX as usize];
    for round in 0..rounds {
        for turn in 0..Kind::ALL.len() {
            // Another begins each round: none is always first after a change of the machine.
            let kind = Kind::ALL[(turn + round) % Kind::ALL.len()];
            progress.update((round * Kind::ALL.len() + turn) as u64);
            if refused.contains(&kind) {
                continue;
            }
            match Memory::obtain(kind, size) {
                Ok(mut memory) => {
                    let mut work = Work { kind, size, round: round as u64, samples };
                    work.of_memory(&mut memory, effort);
                    if with_messages {
                        work.messages(&memory, &mut target, effort);
                    }
                }
                Err(why) => {
                    let case = format!("random_read_{}", name(size));
                    samples.note(&case, kind.name(), "ns", &why.to_string());
                    refused.push(kind);
                }
            }
        }
    }
    progress.finish();
}

/// One contestant's turn.
struct Work<'a> {
    kind: Kind,
    size: Bytes,
    round: u64,
    samples: &'a mut Samples,
}

impl Work<'_> {
    fn of_memory(&mut self, memory: &mut Memory, effort: &Effort) {
        if let Some(contig) = memory.contig() {
            let (case, note) = (self.case("random_read"), format!("of {}", contig.source()));
            self.samples.note(&case, self.kind.name(), "ns", &note);
        }
        memory.bytes_mut().fill(0);
        for repeat in 0..effort.repeats {
            let seed = self.round * effort.repeats + repeat + 1;
            let words = memory.words();
            let random = reads::independent(words, effort.independent, seed);
            self.add("random_read", "ns", random);
            let dependent = reads::dependent(words, effort.dependent, seed);
            self.add("dependent_read", "ns", dependent);
            for stride in STRIDES {
                let strided = reads::strided(words, effort.strided, stride);
                self.add(&format!("stride_{stride}"), "ns", strided);
            }
            self.add("stream_copy", "GB/s", stream(memory.bytes_mut()));
        }
        self.add("obtain", "us cpu", memory.obtained().cpu_us);
    }

    /// Of one size of memory only, which their names leave out.
    fn messages(&mut self, memory: &Memory, target: &mut [u8], effort: &Effort) {
        for repeat in 0..effort.repeats {
            let seed = self.round * effort.repeats + repeat + 1;
            for size in messages::sizes() {
                interrupt::check();
                let rate = messages::copy(memory.bytes(), target, size, effort.messages, seed);
                self.samples.add(&format!("message_{size}"), self.kind.name(), "MB/s", rate);
            }
        }
    }

    fn case(&self, what: &str) -> String {
        format!("{what}_{}", name(self.size))
    }

    fn add(&mut self, what: &str, unit: &'static str, value: f64) {
        interrupt::check();
        let case = self.case(what);
        self.samples.add(&case, self.kind.name(), unit, value);
    }
}

/// One half copied to the other: gigabytes (10^9) copied a second.
fn stream(bytes: &mut [u8]) -> f64 {
    let (to, from) = bytes.split_at_mut(bytes.len() / 2);
    let watch = Stopwatch::start();
    to.copy_from_slice(&from[..to.len()]);
    to.len() as f64 / watch.elapsed().cpu_us / 1e3
}

/// Times divide as peer by glebe, rates as glebe by peer.
fn ratios(samples: &Samples, size: &str, report: &mut Report) {
    let glebe = Kind::Glebe.name();
    for (ratio, what, is_rate) in [
        ("random_read", "random_read", false),
        ("dependent_read", "dependent_read", false),
        ("stream", "stream_copy", true),
    ] {
        for peer in [Kind::Memalign, Kind::MemalignThp, Kind::Hugetlb] {
            let case = format!("{what}_{size}");
            let [own, peers] = [glebe, peer.name()].map(|who| samples.median(&case, who));
            let value = if is_rate { own / peers } else { peers / own };
            report.ratio(&format!("{ratio}_vs_{}", peer.name()), value);
        }
    }
    report.note(&format!(
        "Ratios of reads and copies are of {size}. Memory comes zeroed and is populated before \
         anything is timed; times are CPU time of one thread."
    ));
}

/// The talk's table.
fn talk(samples: &Samples, size: &str, report: &mut Report) {
    let line = |bytes: u64| {
        let median = |kind: Kind| samples.median(&format!("message_{bytes}"), kind.name());
        Line { size: bytes, before: median(Kind::Memalign), after: median(Kind::Glebe) }
    };
    let lines: Vec<Line> = messages::sizes().map(line).collect();
    let columns = [Kind::Memalign.name(), Kind::Glebe.name()];
    let title = format!(
        "messages from random places of {size}, copied by the processor (no network card): MB/s"
    );
    report.section(&title, &messages::table(columns, &lines));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_larger_where_glebe_is_better() {
        let mut samples = Samples::default();
        for (kind, ns, rate) in [(Kind::Memalign, 30.0, 5.0), (Kind::Glebe, 10.0, 6.0)] {
            samples.add("random_read_64m", kind.name(), "ns", ns);
            samples.add("stream_copy_64m", kind.name(), "GB/s", rate);
        }
        let mut report = Report::new("test", "", true);
        ratios(&samples, "64m", &mut report);
        let json = report.json();
        assert!(json.contains("\"random_read_vs_memalign\": 3.0"), "{json}");
        assert!(json.contains("\"stream_vs_memalign\": 1.2"), "{json}");
        assert!(json.contains("\"random_read_vs_hugetlb\": null"), "{json}");
    }
}
