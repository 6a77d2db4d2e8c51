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

use glebe::sys::page_size;

use super::aligned::Aligned;
use super::replay::differing;
use super::zram::{Absent, Zram};
use super::{pool, Error};
use crate::clock::thread_cpu;
use crate::interrupt;
use crate::report::Report;
use crate::samples::{by_round, rounds, Samples, NO_END};

const UNIT: &str = "kpages/CPU-s";
const STORE: &str = "store_4k";
const LOAD: &str = "load_4k";
const GLEBE: &str = "glebe";
const CODEC: &str = "LZ4 alone";
/// What is read and written at once.
pub(super) const BLOCK: usize = 1 << 20;

fn page_bytes() -> usize {
    page_size().bytes().as_usize()
}

/// Thousands of pages per CPU-second of `work` on so many bytes.
fn timed(bytes: usize, work: impl FnOnce() -> Result<(), Error>) -> Result<f64, Error> {
    let start = thread_cpu();
    work()?;
    Ok(rate(bytes, thread_cpu() - start))
}

fn rate(bytes: usize, cpu: Duration) -> f64 {
    (bytes / page_bytes()) as f64 / cpu.as_secs_f64() / 1e3
}

/// Stores and loads all of `pages`, a whole number of [`BLOCK`]s, in turns.
pub(super) fn measure(pages: &[u8], count: u64, report: &mut Report) -> Result<(), Error> {
    let device = Zram::new(pages.len() / page_bytes());
    let zrams = [BLOCK, page_bytes()].map(|at_once| (at_once, zram_name(at_once)));
    let mut buffer = Aligned::new(BLOCK);
    let mut table = Samples::default();
    let mut wrong = 0;
    rounds("store and load", (count, NO_END), |_| {
        let mut add = |who: &str, [store, load]: [f64; 2]| {
            table.add(STORE, who, UNIT, store);
            table.add(LOAD, who, UNIT, load);
        };
        add(CODEC, bare(pages, buffer.bytes())?);
        let (rates, differ) = in_pool(pages, buffer.bytes())?;
        add(GLEBE, rates);
        wrong += differ;
        for (at_once, who) in &zrams {
            interrupt::check();
            if let Ok(device) = &device {
                add(who, in_zram(device, pages, *at_once, &mut buffer)?);
            }
        }
        Ok::<_, Error>(())
    })?;
    report.check("wrong_bytes", wrong);
    if let Err(why) = &device {
        for case in [STORE, LOAD] {
            zrams.iter().for_each(|(_, who)| table.remark(case, who, UNIT, &why.to_string()));
        }
    }
    table.report(report);
    for (name, case) in [("store", STORE), ("load", LOAD)] {
        let of = |who: &str| table.of(case, who, UNIT);
        let best = of(&zrams[0].1).iter().zip(of(&zrams[1].1)).map(|(a, b)| a.max(*b));
        let zram = by_round(of(GLEBE), &best.collect::<Vec<_>>());
        report.ratio(&format!("{name}_vs_zram"), zram);
        report.ratio(&format!("{name}_vs_codec"), by_round(of(GLEBE), of(CODEC)));
    }
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

fn zram_name(at_once: usize) -> String {
    format!("zram, {} KiB at once", at_once >> 10)
}

/// What was stored and loaded per CPU-second, and bytes that came back different.
fn in_pool(pages: &[u8], buffer: &mut [u8]) -> Result<([f64; 2], u64), Error> {
    let pool = pool(true)?;
    let page = page_bytes();
    let mut handles = Vec::new();
    let store = timed(pages.len(), || {
        for page in pages.chunks_exact(page) {
            handles.push(pool.insert(page)?);
        }
        Ok(())
    })?;
    let load = timed(pages.len(), || {
        for block in handles.chunks(BLOCK / page) {
            for (handle, page) in block.iter().zip(buffer.chunks_exact_mut(page)) {
                pool.read(*handle, page)?;
            }
            black_box(&mut *buffer);
        }
        Ok(())
    })?;
    let mut wrong = 0;
    for (handle, wanted) in handles.iter().zip(pages.chunks_exact(page)) {
        let len = pool.read(*handle, &mut buffer[..page])?;
        wrong += differing(&buffer[..len], wanted);
    }
    Ok(([store, load], wrong))
}

fn in_zram(
    device: &Zram,
    pages: &[u8],
    at_once: usize,
    buffer: &mut Aligned,
) -> Result<[f64; 2], Error> {
    let step = at_once / page_bytes();
    device.discard(0, pages.len() / page_bytes())?;
    let store = timed(pages.len(), || {
        for (nth, block) in pages.chunks_exact(at_once).enumerate() {
            device.write(nth * step, block)?;
        }
        Ok(())
    })?;
    let load = timed(pages.len(), || {
        for nth in 0..pages.len() / at_once {
            // Through all of the buffer, as the others do.
            let at = nth * at_once % BLOCK;
            device.read(nth * step, &mut buffer.bytes()[at..][..at_once])?;
        }
        Ok(())
    })?;
    Ok([store, load])
}

/// The codec and nothing else: coded pages one after the other.
fn bare(pages: &[u8], buffer: &mut [u8]) -> Result<[f64; 2], Error> {
    let page = page_bytes();
    let bound = lzzzz::lz4::max_compressed_size(page);
    // Written before the clock starts.
    let mut coded = vec![1_u8; pages.len() + bound];
    let mut ends = Vec::with_capacity(pages.len() / page);
    let mut at = 0;
    let store = timed(pages.len(), || {
        for plain in pages.chunks_exact(page) {
            // What does not shrink takes no more than a page in the pool.
            at += code(plain, &mut coded[at..][..bound]).min(page);
            ends.push(at);
        }
        Ok(())
    })?;
    let (mut from, mut to) = (0, 0);
    let load = timed(pages.len(), || {
        for &end in &ends {
            decode(&coded[from..end], &mut buffer[to..][..page]);
            (from, to) = (end, (to + page) % BLOCK);
        }
        Ok(())
    })?;
    black_box(buffer);
    Ok([store, load])
}

fn code(page: &[u8], out: &mut [u8]) -> usize {
    lzzzz::lz4::compress(page, out, lzzzz::lz4::ACC_LEVEL_DEFAULT).unwrap_or(page.len())
}

fn decode(coded: &[u8], out: &mut [u8]) {
    // The end of a page that did not shrink is cut off, which is an error late in the work.
    let _ = black_box(lzzzz::lz4::decompress(coded, out));
}

/// What threads do with each page that is theirs, with a buffer of a page and one for it coded.
type Work<'a> = &'a (dyn Fn(&[u8], [&mut [u8]; 2]) -> Result<(), Error> + Sync);

/// Two threads beside one: the work that they get done per CPU-second.
pub(super) fn threads(pages: &[u8], count: u64, report: &mut Report) -> Result<(), Error> {
    let pool = pool(true)?;
    // It is not empty.
    for page in pages.chunks_exact(page_bytes()) {
        pool.insert(page)?;
    }
    let coded = |page: &[u8], [out, _]: [&mut [u8]; 2]| {
        let handle = pool.insert(page)?;
        black_box(pool.read(handle, out)?);
        Ok(pool.remove(handle)?)
    };
    let bare = |page: &[u8], [out, coded]: [&mut [u8]; 2]| {
        let len = code(page, coded);
        decode(&coded[..len], out);
        Ok(())
    };
    let contestants: [(&str, &str, Work<'_>); 2] =
        [(GLEBE, "threads_2_vs_1_cpu", &coded), (CODEC, "threads_2_vs_1_cpu_codec_alone", &bare)];
    let mut table = Samples::default();
    rounds("threads", (count, NO_END), |_| {
        for (who, _, work) in contestants {
            interrupt::check();
            table.add("threads_1", who, UNIT, on_threads(pages, 1, work)?);
            table.add("threads_2", who, UNIT, on_threads(pages, 2, work)?);
        }
        Ok::<_, Error>(())
    })?;
    table.report(report);
    for (who, ratio, _) in contestants {
        let [one, two] = ["threads_1", "threads_2"].map(|case| table.of(case, who, UNIT));
        report.ratio(ratio, by_round(two, one));
    }
    report.note(
        "threads: insert, read, remove of a page, in a pool that holds all pages besides; of the \
         codec, code and decode. On this machine's processors beside whatever else runs there.",
    );
    Ok(())
}

/// Thousands of pages per CPU-second of all threads together, each on a half of the pages.
fn on_threads(pages: &[u8], threads: usize, work: Work<'_>) -> Result<f64, Error> {
    let cpu_ns = AtomicU64::new(0);
    let barrier = Barrier::new(threads);
    let half = pages.len() / 2;
    let run = |own: &[u8]| {
        let mut out = vec![1; page_bytes()];
        let mut coded = vec![1; lzzzz::lz4::max_compressed_size(out.len())];
        barrier.wait();
        let start = thread_cpu();
        own.chunks_exact(out.len()).try_for_each(|page| work(page, [&mut out, &mut coded]))?;
        cpu_ns.fetch_add((thread_cpu() - start).as_nanos() as u64, Ordering::Relaxed);
        Ok(())
    };
    std::thread::scope(|scope| {
        let halves = pages.chunks_exact(half).take(threads);
        let running: Vec<_> = halves.map(|own| scope.spawn(move || run(own))).collect();
        running.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
    })
    .map(|()| rate(half * threads, Duration::from_nanos(cpu_ns.into_inner())))
}
