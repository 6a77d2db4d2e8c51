//! Pages stored and loaded, by the pool, by zram and by the bare codec, in turns; and by two
//! threads.
//!
//! Thousands of pages per second of CPU time, the kernel's work for the thread included: zram does
//! what it does in the time of the thread whose direct I/O it is. All of them have the same pages,
//! and write what they load to a buffer of the same length.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Barrier;
use std::time::Duration;

use super::aligned::Aligned;
use super::replay::differing;
use super::store::{Classes, Store};
use super::zram::{Absent, Zram};
use super::Error;
use crate::clock::thread_cpu;
use crate::interrupt;
use crate::progress::Progress;
use crate::report::Report;
use crate::summary::Summary;

const UNIT: &str = "kpages/CPU-s";
const CODEC: &str = "LZ4 alone";
/// What is read and written at once.
const BLOCK: usize = 1 << 20;

/// Pages one after the other, a whole number of [`BLOCK`]s.
#[derive(Debug)]
pub(super) struct Pages {
    pub(super) bytes: Aligned,
    pub(super) page: usize,
}

impl Pages {
    fn count(&self) -> usize {
        self.bytes.as_slice().len() / self.page
    }

    fn all(&self) -> std::slice::ChunksExact<'_, u8> {
        self.bytes.as_slice().chunks_exact(self.page)
    }

    /// As many bytes as are a whole number of blocks.
    pub(super) fn whole(len: usize) -> usize {
        (len / BLOCK).max(1) * BLOCK
    }
}

/// Rates of one contestant, a sample a round.
#[derive(Debug, Default)]
struct Rates {
    store: Vec<f64>,
    load: Vec<f64>,
}

fn rate(pages: usize, cpu: Duration) -> f64 {
    pages as f64 / cpu.as_secs_f64() / 1e3
}

/// The CPU time of `work`.
fn timed<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<(T, Duration), Error> {
    let start = thread_cpu();
    let done = work()?;
    Ok((done, thread_cpu() - start))
}

/// Stores and loads all pages, in turns.
pub(super) fn measure(pages: &Pages, rounds: usize, report: &mut Report) -> Result<(), Error> {
    let mut device = Zram::new(pages.count());
    let mut buffer = Aligned::new(BLOCK);
    let (mut ours, mut codec) = (Rates::default(), Rates::default());
    let mut theirs = [(BLOCK, Rates::default()), (pages.page, Rates::default())];
    let mut progress = Progress::new("store and load", rounds as u64);
    for round in 0..rounds {
        progress.update(round as u64);
        bare(pages, buffer.bytes(), &mut codec)?;
        let wrong = in_pool(pages, buffer.bytes(), &mut ours)?;
        report.check("wrong_bytes", wrong);
        if let Ok(device) = &mut device {
            for (at_once, rates) in &mut theirs {
                interrupt::check();
                in_zram(device, pages, *at_once, &mut buffer, rates)?;
            }
        }
    }
    progress.clear();
    let all = [("glebe", &ours), (CODEC, &codec)];
    for (who, rates) in all {
        report.row("store_4k", who, UNIT, &rates.store);
        report.row("load_4k", who, UNIT, &rates.load);
    }
    for (at_once, rates) in &theirs {
        let who = format!("zram, {} KiB at once", at_once >> 10);
        for (case, samples) in [("store_4k", &rates.store), ("load_4k", &rates.load)] {
            match &device {
                Ok(_) => report.row(case, &who, UNIT, samples),
                Err(why) => report.absent(case, &who, UNIT, &why.to_string()),
            }
        }
    }
    let [(_, large), (_, small)] = &theirs;
    report.ratio("store_vs_zram", by_round(&ours.store, &best(&large.store, &small.store)));
    report.ratio("load_vs_zram", by_round(&ours.load, &best(&large.load, &small.load)));
    report.ratio("load_vs_codec", by_round(&ours.load, &codec.load));
    report.ratio("store_vs_codec", by_round(&ours.store, &codec.store));
    report.note(
        "store, load: ratios are medians of those of the rounds, against zram's better block \
         size of the round. Each round has a new pool and a discarded device, so pages are new to \
         both; zram's figures have the block layer's work in them, the pool's its page faults.",
    );
    match device {
        Err(Absent::Os(error)) => Err(error.into()),
        _ => Ok(()),
    }
}

fn best(one: &[f64], other: &[f64]) -> Vec<f64> {
    one.iter().zip(other).map(|(one, other)| one.max(*other)).collect()
}

/// The median of the rounds' ratios: whatever else the machine does falls on both.
fn by_round(ours: &[f64], theirs: &[f64]) -> f64 {
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
    Summary::of(&ratios).map_or(f64::NAN, |summary| summary.median)
}

fn in_pool(pages: &Pages, buffer: &mut [u8], rates: &mut Rates) -> Result<u64, Error> {
    let store = Store::new(Classes::Default, true)?;
    let (handles, cpu) =
        timed(|| pages.all().map(|page| store.insert(page)).collect::<Result<Vec<_>, _>>())?;
    rates.store.push(rate(handles.len(), cpu));
    let ((), cpu) = timed(|| {
        for block in handles.chunks(BLOCK / pages.page) {
            for (handle, page) in block.iter().zip(buffer.chunks_exact_mut(pages.page)) {
                store.read(*handle, page)?;
            }
            black_box(&mut *buffer);
        }
        Ok(())
    })?;
    rates.load.push(rate(handles.len(), cpu));
    let mut wrong = 0;
    for (handle, page) in handles.iter().zip(pages.all()) {
        let len = store.read(*handle, buffer)?;
        wrong += differing(&buffer[..len], page);
        store.remove(*handle)?;
    }
    Ok(wrong)
}

fn in_zram(
    device: &Zram,
    pages: &Pages,
    at_once: usize,
    buffer: &mut Aligned,
    rates: &mut Rates,
) -> Result<(), Error> {
    let step = at_once / pages.page;
    device.discard(0, pages.count())?;
    let ((), cpu) = timed(|| {
        for (nth, block) in pages.bytes.as_slice().chunks_exact(at_once).enumerate() {
            device.write(nth * step, block)?;
        }
        Ok(())
    })?;
    rates.store.push(rate(pages.count(), cpu));
    let ((), cpu) = timed(|| {
        for (nth, _) in pages.bytes.as_slice().chunks_exact(at_once).enumerate() {
            // Through all of the buffer, as the others do.
            let at = nth * at_once % BLOCK;
            device.read(nth * step, &mut buffer.bytes()[at..][..at_once])?;
        }
        Ok(())
    })?;
    rates.load.push(rate(pages.count(), cpu));
    Ok(())
}

/// The codec and nothing else: coded pages one after the other.
fn bare(pages: &Pages, buffer: &mut [u8], rates: &mut Rates) -> Result<(), Error> {
    let bound = lzzzz::lz4::max_compressed_size(pages.page);
    // Written before the clock starts.
    let mut coded = vec![1_u8; pages.count() * pages.page + bound];
    let mut ends = Vec::with_capacity(pages.count());
    let mut at = 0;
    let ((), cpu) = timed(|| {
        for page in pages.all() {
            // What does not shrink takes no more than a page in the pool.
            at += code(page, &mut coded[at..][..bound]).min(pages.page);
            ends.push(at);
        }
        Ok(())
    })?;
    rates.store.push(rate(pages.count(), cpu));
    let mut from = 0;
    let mut to = 0;
    let ((), cpu) = timed(|| {
        for &end in &ends {
            let out = &mut buffer[to..][..pages.page];
            decode(&coded[from..end], out);
            (from, to) = (end, (to + pages.page) % BLOCK);
        }
        Ok(())
    })?;
    rates.load.push(rate(pages.count(), cpu));
    black_box(buffer);
    Ok(())
}

fn code(page: &[u8], out: &mut [u8]) -> usize {
    lzzzz::lz4::compress(page, out, lzzzz::lz4::ACC_LEVEL_DEFAULT).unwrap_or(page.len())
}

fn decode(coded: &[u8], out: &mut [u8]) {
    // The end of a page that did not shrink is cut off, which is an error late in the work.
    let _ = black_box(lzzzz::lz4::decompress(coded, out));
}

/// What a thread works with.
struct Buffers {
    coded: Vec<u8>,
    out: Vec<u8>,
}

/// What threads do with each page that is theirs.
type Work<'a> = &'a (dyn Fn(&[u8], &mut Buffers) -> Result<(), Error> + Sync);

/// Two threads beside one: the work that they get done per CPU-second.
pub(super) fn threads(pages: &Pages, rounds: usize, report: &mut Report) -> Result<(), Error> {
    let coded = Store::new(Classes::Default, true)?;
    let plain = Store::new(Classes::Default, false)?;
    // They are not empty.
    for page in pages.all() {
        coded.insert(page)?;
        plain.insert(page)?;
    }
    let in_pool = |store: &Store, page: &[u8], buffers: &mut Buffers| {
        let handle = store.insert(page)?;
        black_box(store.read(handle, &mut buffers.out)?);
        store.remove(handle)
    };
    let coded = |page: &[u8], buffers: &mut Buffers| in_pool(&coded, page, buffers);
    let plain = |page: &[u8], buffers: &mut Buffers| in_pool(&plain, page, buffers);
    let bare = |page: &[u8], buffers: &mut Buffers| {
        let len = code(page, &mut buffers.coded);
        decode(&buffers.coded[..len], &mut buffers.out);
        Ok(())
    };
    let contestants: [(&str, &str, Work<'_>); 3] = [
        ("glebe", "threads_2_vs_1_cpu", &coded),
        ("glebe, no codec", "threads_2_vs_1_cpu_uncoded", &plain),
        (CODEC, "threads_2_vs_1_cpu_codec_alone", &bare),
    ];
    let mut samples = vec![[Vec::new(), Vec::new()]; contestants.len()];
    let mut progress = Progress::new("threads", rounds as u64);
    for round in 0..rounds {
        progress.update(round as u64);
        for ((_, _, work), samples) in contestants.iter().zip(&mut samples) {
            interrupt::check();
            for (threads, samples) in [1, 2].into_iter().zip(samples) {
                samples.push(on_threads(pages, threads, *work)?);
            }
        }
    }
    progress.clear();
    for ((who, ratio, _), [one, two]) in contestants.into_iter().zip(&samples) {
        report.row("threads_1", who, UNIT, one);
        report.row("threads_2", who, UNIT, two);
        report.ratio(ratio, by_round(two, one));
    }
    report.note(
        "threads: insert, read, remove of a page, in a pool that holds all pages besides; of the \
         codec, code and decode. On this machine's processors beside whatever else runs there.",
    );
    Ok(())
}

/// Thousands of pages per CPU-second of all threads together.
fn on_threads(pages: &Pages, threads: usize, work: Work<'_>) -> Result<f64, Error> {
    let cpu_ns = AtomicU64::new(0);
    let barrier = Barrier::new(threads);
    let half = pages.bytes.as_slice().len() / 2;
    std::thread::scope(|scope| {
        let (cpu_ns, barrier) = (&cpu_ns, &barrier);
        let halves: Vec<_> = pages.bytes.as_slice().chunks_exact(half).take(threads).collect();
        let running: Vec<_> = halves
            .into_iter()
            .map(|own| {
                scope.spawn(move || {
                    let coded = vec![1; lzzzz::lz4::max_compressed_size(pages.page)];
                    let mut buffers = Buffers { coded, out: vec![1; pages.page] };
                    barrier.wait();
                    let ((), cpu) = timed(|| {
                        own.chunks_exact(pages.page).try_for_each(|page| work(page, &mut buffers))
                    })?;
                    cpu_ns.fetch_add(cpu.as_nanos() as u64, Ordering::Relaxed);
                    Ok(())
                })
            })
            .collect();
        running.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
    })
    .map(|()| {
        let cpu = Duration::from_nanos(cpu_ns.load(Ordering::Relaxed));
        rate(half / pages.page * threads, cpu)
    })
}
