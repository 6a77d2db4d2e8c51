//! Measures how fast the pool, zram and the bare codec store and load the same pages, and how two
//! threads scale.
//!
//! Unit: thousands of pages per second of CPU time. With direct I/O, a thread's CPU time includes
//! zram's work.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Duration;

use glebe::page_size;
use lzzzz::lz4;

use super::store::{aligned, differing, Pooled, Store};
use super::zram::Zram;
use crate::clock::thread_cpu;
use crate::report::{Report, GLEBE};
use crate::turns::{self, by_round, rounds, NO_END};
use crate::Outcome;

const UNIT: &str = "kpages/CPU-s";
const STORE: &str = "store_4k";
const LOAD: &str = "load_4k";
const CODEC: &str = "LZ4 alone";
/// Bytes of the buffer for loads.
pub(super) const BLOCK: usize = 1 << 20;

fn page_bytes() -> usize {
    page_size().bytes().as_usize()
}

fn rate(bytes: usize, cpu: Duration) -> f64 {
    (bytes / page_bytes()) as f64 / cpu.as_secs_f64() / 1e3
}

/// `pages` is a whole number of [`BLOCK`]s.
pub(super) fn measure(pages: &[u8], count: u64, report: &mut Report) -> Outcome {
    let (page, count_pages) = (page_bytes(), pages.len() / page_bytes());
    let mut device = Zram::new(count_pages, false);
    let mut buffer = aligned(BLOCK)?;
    let zrams = [BLOCK, page].map(|len| (len, format!("zram, {} KiB at once", len >> 10)));
    for _ in rounds("store and load", count, NO_END) {
        codec_alone(pages, &mut buffer, report);
        let mut pooled = Pooled::new(true, count_pages)?;
        contest(GLEBE, &mut pooled, pages, page, &mut buffer, report)?;
        for (nth, wanted) in pages.chunks_exact(page).enumerate() {
            let len = pooled.get(nth, &mut buffer[..page])?;
            report.check("wrong_bytes", differing(&buffer[..len], wanted));
        }
        for (at_once, who) in &zrams {
            match &mut device {
                Ok(device) => {
                    device.discard(0, count_pages)?;
                    contest(who, device, pages, *at_once, &mut buffer, report)?;
                }
                Err(why) => [STORE, LOAD]
                    .iter()
                    .for_each(|case| report.remark(case, who, UNIT, &why.to_string())),
            }
        }
    }
    for (name, case) in [("store", STORE), ("load", LOAD)] {
        let of = |who: &str| report.of(case, who, UNIT);
        let best = of(&zrams[0].1).iter().zip(of(&zrams[1].1)).map(|(a, b)| a.max(*b));
        let zram = by_round(of(GLEBE), &best.collect::<Vec<_>>());
        let codec = by_round(of(GLEBE), of(CODEC));
        report.ratio(&format!("{name}_vs_zram"), zram);
        report.ratio(&format!("{name}_vs_codec"), codec);
    }
    report.note(
        "store, load: ratios are medians of those of the rounds, against zram's better block \
         size of the round. Each round has a new pool and a discarded device, so pages are new to \
         both; zram's figures have the block layer's work in them, the pool's its page faults.",
    );
    Ok(())
}

fn contest(
    who: &str,
    store: &mut impl Store,
    pages: &[u8],
    at_once: usize,
    buffer: &mut [u8],
    report: &mut Report,
) -> Outcome {
    let start = thread_cpu();
    for (nth, part) in pages.chunks_exact(at_once).enumerate() {
        store.put(nth, part)?;
    }
    report.add(STORE, who, UNIT, rate(pages.len(), thread_cpu() - start));
    let start = thread_cpu();
    for nth in 0..pages.len() / at_once {
        // Loads into each part of the buffer in turn.
        black_box(store.get(nth, &mut buffer[nth * at_once % BLOCK..][..at_once])?);
    }
    report.add(LOAD, who, UNIT, rate(pages.len(), thread_cpu() - start));
    Ok(())
}

/// Compresses and decompresses pages one after the other, without a store.
fn codec_alone(pages: &[u8], buffer: &mut [u8], report: &mut Report) {
    let page = page_bytes();
    // Writes the vector, so that its memory exists before the clock starts.
    let mut bytes = vec![1; pages.len() + lz4::max_compressed_size(page)];
    let (mut ends, mut end) = (Vec::with_capacity(pages.len() / page + 1), 0);
    ends.push(end);
    let start = thread_cpu();
    for page in pages.chunks_exact(page) {
        // Counts a page that does not shrink as one page, as the pool stores it.
        end += code(page, &mut bytes[end..]).min(page.len());
        ends.push(end);
    }
    report.add(STORE, CODEC, UNIT, rate(pages.len(), thread_cpu() - start));
    let start = thread_cpu();
    for (nth, ends) in ends.windows(2).enumerate() {
        let to = &mut buffer[nth * page % BLOCK..][..page];
        // A page that did not shrink was cut off, so decoding it fails, but only at its end.
        let _ = black_box(lz4::decompress(&bytes[ends[0]..ends[1]], to));
    }
    report.add(LOAD, CODEC, UNIT, rate(pages.len(), thread_cpu() - start));
}

fn code(page: &[u8], out: &mut [u8]) -> usize {
    lz4::compress(page, out, lz4::ACC_LEVEL_DEFAULT).unwrap_or(page.len())
}

/// Work on one page, with buffers for a page and a coded page.
type Work<'a> = &'a (dyn Fn(&[u8], [&mut [u8]; 2]) -> Outcome + Sync);

pub(super) fn threads(pages: &[u8], count: u64, report: &mut Report) -> Outcome {
    let mut pooled = Pooled::new(true, pages.len() / page_bytes())?;
    for (nth, page) in pages.chunks_exact(page_bytes()).enumerate() {
        pooled.put(nth, page)?;
    }
    let in_pool = |page: &[u8], [out, _]: [&mut [u8]; 2]| {
        let handle = pooled.pool.insert(page)?;
        black_box(pooled.pool.read(handle, out)?);
        Ok(pooled.pool.remove(handle)?)
    };
    let bare = |page: &[u8], [out, coded]: [&mut [u8]; 2]| {
        let len = code(page, coded);
        let _ = black_box(lz4::decompress(&coded[..len], out));
        Ok(())
    };
    let contestants: [(&str, &str, Work<'_>); 2] =
        [(GLEBE, "threads_2_vs_1_cpu", &in_pool), (CODEC, "threads_2_vs_1_cpu_codec_alone", &bare)];
    for _ in rounds("threads", count, NO_END) {
        for (who, _, work) in contestants {
            report.add("threads_1", who, UNIT, on_threads(pages, 1, work)?);
            report.add("threads_2", who, UNIT, on_threads(pages, 2, work)?);
        }
    }
    for (who, ratio, _) in contestants {
        let [one, two] = ["threads_1", "threads_2"].map(|case| report.of(case, who, UNIT));
        report.ratio(ratio, by_round(two, one));
    }
    report.note(
        "threads: insert, read, remove of a page, in a pool that holds all pages besides; of the \
         codec, code and decode. On this machine's processors beside whatever else runs there.",
    );
    Ok(())
}

/// Returns thousands of pages per CPU-second of all threads. A thread works on half of the pages.
fn on_threads(pages: &[u8], threads: usize, work: Work<'_>) -> Outcome<f64> {
    let half = pages.len() / 2;
    let run = |nth: usize, begin: &Barrier| -> Outcome<Duration> {
        let mut out = vec![1; page_bytes()];
        let mut coded = vec![1; lz4::max_compressed_size(out.len())];
        begin.wait();
        let start = thread_cpu();
        let mut own = pages[nth * half..][..half].chunks_exact(out.len());
        own.try_for_each(|page| work(page, [&mut out, &mut coded]))?;
        Ok(thread_cpu() - start)
    };
    let cpu: Outcome<Duration> = turns::on_threads(threads, run).into_iter().sum();
    Ok(rate(half * threads, cpu?))
}
