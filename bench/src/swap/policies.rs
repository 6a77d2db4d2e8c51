//! Measures the cost of a background pager under each policy, and its writes to devices. A variant
//! also writes each page to zram.
//!
//! Touches follow Zipf's law. A touch takes a page out if it is stored, and stores a new version of
//! the page if not. Once in [`EVERY`] touches first-class code takes a block. Units: microseconds
//! per operation, CPU and wall; bytes written to devices.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use glebe::page_size;
use glebe::reserve::{Request, Reserve};
use glebe::swap::cache::{Area, SwapCache};
use glebe::units::Pages;
use memmap2::MmapMut;

use super::recall::Policy;
use super::touched::{page_bytes, stamp, stamped, Corpus, Wrong};
use super::trace::Pattern;
use crate::clock::{micros, process_cpu, wall};
use crate::report::Report;
use crate::turns::turns;
use crate::zram::Device;
use crate::{zpool, Outcome};

const CPU: &str = "us cpu/op";
const WALL: &str = "us/op";
const BACKGROUND: &str = "background";
const DEVICE: &str = "device_bytes";
const ON_ZRAM: &str = "write-through onto zram";
/// Touches between blocks, and pages of a block.
const EVERY: usize = 512;
const BLOCK: u64 = 512;

struct Pager<'a> {
    corpus: &'a Corpus<'a>,
    reserve: Reserve,
    area: Area,
    /// The zram device, if pages are also written to zram, and an aligned page for direct I/O.
    device: Option<(File, MmapMut)>,
    /// The version of each page, and true if the page is stored.
    pages: Vec<(u32, bool)>,
    buffer: Vec<u8>,
    wrong: Wrong,
}

pub(super) fn measure(corpus: &Corpus<'_>, report: &mut Report) -> Outcome {
    let (pages, operations, count) = report.plan((1024, 2_000, 1), (16384, 100_000, 3));
    let touches = Pattern::Zipf.touches(pages, operations * 2);
    let (warm, measured) = touches.split_at(operations);
    let scratch = report.options.scratch();
    let zram = Device::new(Pages::new(pages).bytes(page_size()));
    let sides: Vec<Option<Policy>> = Policy::ALL.into_iter().map(Some).chain([None]).collect();
    for (_, side) in turns("policies", count, &sides) {
        let who = side.map_or(ON_ZRAM, Policy::who);
        let mut pager = match (side, &zram) {
            (Some(policy), _) => Pager::new(policy, pages, corpus, &scratch)?,
            (None, Ok(zram)) => Pager::onto(zram, pages, corpus)?,
            (None, Err(why)) => {
                report.remark(BACKGROUND, who, CPU, &why.to_string());
                continue;
            }
        };
        pager.go(warm)?;
        let (bytes, cpu, start) = (written()?, process_cpu(), wall());
        pager.go(measured)?;
        let (cpu, wall) = (process_cpu() - cpu, wall() - start);
        report.add(BACKGROUND, who, CPU, micros(cpu) / operations as f64);
        report.add(BACKGROUND, who, WALL, micros(wall) / operations as f64);
        report.add(DEVICE, who, "bytes/op", (written()? - bytes) / operations as f64);
        report.add("stores_that_wrote_others", who, "stores", pager.area.stats().waited as f64);
        super::judged(pager.wrong, report);
    }
    let bytes = |policy: Policy| report.median(DEVICE, policy.who());
    let ratio = bytes(Policy::WriteThrough) / bytes(Policy::WriteBack);
    report.ratio("device_bytes_writethrough_over_writeback", ratio);
    report.note(
        "background: half of the pages are stored at a time. Write-back may have a sixteenth of \
         the reserve unsaved; put-back has no file, and room for all. write-through onto zram: \
         stored as by put-back, and each page also written to zram.",
    );
    Ok(())
}

fn written() -> Outcome<f64> {
    let text = fs::read_to_string("/proc/self/io")?;
    let bytes = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    Ok(bytes.ok_or("no write_bytes in /proc/self/io")?.parse()?)
}

impl<'a> Pager<'a> {
    fn new(policy: Policy, pages: u64, corpus: &'a Corpus<'a>, dir: &Path) -> Outcome<Self> {
        let reserve = zpool::reserve()?;
        let cache = SwapCache::on(&reserve)?;
        let bytes = Pages::new(pages).bytes(page_size());
        let (area, most) = match policy {
            Policy::PutBack => (cache.area_without_file(Pages::new(pages))?, bytes),
            _ => (cache.area(Pages::new(pages), dir, bytes + bytes)?, cache.usual_write_back()),
        };
        policy.set(&area, most)?;
        Ok(Self {
            corpus,
            reserve,
            area,
            device: None,
            pages: vec![(0, false); pages as usize],
            buffer: vec![0; page_bytes()],
            wrong: Wrong::default(),
        })
    }

    fn onto(zram: &Device, pages: u64, corpus: &'a Corpus<'a>) -> Outcome<Self> {
        let device = Some((zram.open()?, MmapMut::map_anon(page_bytes())?));
        Ok(Self { device, ..Self::new(Policy::PutBack, pages, corpus, Path::new(""))? })
    }

    fn go(&mut self, touches: &[u32]) -> Outcome {
        for (nth, &page) in touches.iter().enumerate() {
            let of = u64::from(page);
            let (version, is_stored) = &mut self.pages[page as usize];
            if *is_stored {
                let is_there = self.area.take(of, &mut self.buffer)?;
                self.wrong.lost_writes += u64::from(!is_there);
                self.wrong.look_at_page(&self.buffer, self.corpus.page(of), stamp(of, *version));
            } else {
                *version += 1;
                let bytes = stamped(self.corpus, of, *version);
                self.area.store(of, &bytes)?;
                if let Some((device, page)) = &mut self.device {
                    page.copy_from_slice(&bytes);
                    device.write_all_at(page, of * bytes.len() as u64)?;
                }
            }
            *is_stored = !*is_stored;
            if nth % EVERY == 0 {
                let request = Request::new(Pages::new(BLOCK)).any();
                self.reserve.alloc(request)?.bytes_mut()?.fill(0xee);
            }
        }
        Ok(())
    }
}
