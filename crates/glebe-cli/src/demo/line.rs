//! [`Line`] asks for one size of block from one contestant, and keeps the times in microseconds.

use std::time::Instant;

use glebe::contig::Proof;
use glebe::internal::sys::page_size;
use glebe::reserve::{GranuleUse, Request, Reserve};
use glebe::units::Pages;
use memmap2::{Advice, MmapMut};

/// Requests for one size of block from one contestant. `us` has the times of those that succeeded.
#[derive(Default)]
pub struct Line {
    pub pages: u64,
    pub who: &'static str,
    pub us: Vec<f64>,
    pub failures: u64,
    pub note: String,
}

impl Line {
    /// Makes one request. Returns the number of wrong bytes in a block of the reserve. Keeps the
    /// reserve's map in `fullest` if the block is the largest so far.
    pub fn ask(&mut self, reserve: &Reserve, fullest: &mut Vec<GranuleUse>) -> u64 {
        let asked = match self.who {
            "glebe" => return self.ask_reserve(reserve, fullest),
            who => kernel(Pages::new(self.pages), who == "thp"),
        };
        match asked {
            Ok(took) => self.us.push(took),
            Err(why) => self.failed(why.to_string()),
        }
        0
    }

    fn failed(&mut self, why: String) {
        (self.failures, self.note) = (self.failures + 1, why);
    }

    fn ask_reserve(&mut self, reserve: &Reserve, fullest: &mut Vec<GranuleUse>) -> u64 {
        let Some(request) = self.request(reserve) else { return 0 };
        let start = Instant::now();
        let block = reserve.alloc(request);
        let took = start.elapsed();
        let mut block = match block {
            Ok(block) => block,
            Err(why) => {
                self.failed(why.to_string());
                return 0;
            }
        };
        self.us.push(took.as_secs_f64() * 1e6);
        // This process owns the reserve, so access cannot fail.
        let byte = self.us.len() as u8;
        block.bytes_mut().map(|bytes| bytes.fill(byte)).unwrap_or_default();
        let usage = reserve.usage();
        let weight = |usage: &[GranuleUse]| {
            // The largest block shows most.
            let held = usage.iter().map(|of| of.first_class.get()).sum::<u64>();
            (held, usage.iter().map(|of| of.tenant.get()).sum::<u64>())
        };
        if weight(&usage) > weight(fullest) {
            *fullest = usage;
        }
        match block.bytes() {
            Ok(bytes) => others(bytes, byte),
            Err(_) => block.pages().bytes(page_size()).get(),
        }
    }

    fn request(&mut self, reserve: &Reserve) -> Option<Request> {
        let contig = reserve.contig();
        let (longest, half) = (contig.longest_run().get(), reserve.len().get() / 2);
        let request = Request::new(Pages::new(self.pages));
        if self.pages > half {
            self.note = format!("not asked: more than half the reserve, {half} pages");
            None
        } else if self.pages <= longest {
            Some(request)
        } else if matches!(contig.proof(), Proof::Within(_)) {
            self.note = format!("in addresses only: runs proved up to {longest} pages");
            Some(request.any())
        } else {
            self.note = format!("not asked: the longest run is {longest} pages");
            None
        }
    }
}

/// Counts the bytes that are not `byte`. Compares whole pages first, which is faster.
fn others(bytes: &[u8], byte: u8) -> u64 {
    let page = vec![byte; page_size().bytes().as_usize()];
    let wrong = bytes.chunks(page.len()).filter(|part| **part != page[..part.len()]);
    wrong.flatten().filter(|is| **is != byte).count() as u64
}

/// Returns the microseconds that the kernel takes to populate `pages`.
fn kernel(pages: Pages, huge: bool) -> std::io::Result<f64> {
    let start = Instant::now();
    let memory = MmapMut::map_anon(pages.bytes(page_size()).as_usize())?;
    if huge {
        memory.advise(Advice::HugePage)?;
    }
    memory.advise(Advice::PopulateWrite)?;
    Ok(start.elapsed().as_secs_f64() * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_other_than_the_pattern_are_counted() {
        let mut bytes = vec![7; 2 * page_size().bytes().as_usize() + 3];
        assert_eq!(others(&bytes, 7), 0);
        let last = bytes.len() - 1;
        (bytes[1], bytes[last]) = (8, 0);
        assert_eq!(others(&bytes, 7), 2);
        assert_eq!(others(&bytes, 8), bytes.len() as u64 - 1);
    }
}
