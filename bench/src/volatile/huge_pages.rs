//! How much of a contestant's memory lies in transparent huge pages: the kernel gives them if it
//! can, and says nothing where it cannot. Unit: bytes. Source: proc_pid_smaps(5), `AnonHugePages`.

use std::collections::BTreeMap;
use std::ops::Range;

use glebe::units::Bytes;

/// A part that is in huge pages, from which on a figure is one of huge pages.
const ENOUGH_PERCENT: u64 = 95;

/// The least that each contestant had in huge pages, and of how much.
#[derive(Debug, Default)]
pub(super) struct HugePages(BTreeMap<String, (Bytes, Bytes)>);

impl HugePages {
    /// Looks at the memory of a contestant, if it is to be of huge pages. Of a mapping that
    /// reaches beyond the range all counts, up to the range's length.
    pub(super) fn look(&mut self, is_huge: bool, who: &str, addr: usize, len: Bytes) {
        if is_huge {
            let text = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
            let now = parse(&text, &(addr..addr + len.as_usize()));
            let least = self.0.entry(who.to_owned()).or_insert((len, len));
            least.0 = least.0.min(now);
        }
    }

    /// Whether too little of its memory was in huge pages.
    pub(super) fn are_small(&self, who: &str) -> bool {
        let is_small = |(had, len): &(Bytes, Bytes)| had.get() < len.get() / 100 * ENOUGH_PERCENT;
        self.0.get(who).is_some_and(is_small)
    }

    /// Says of each contestant how much it was.
    pub(super) fn tell(&self, mut note: impl FnMut(&str, &str)) {
        for (who, (had, len)) in &self.0 {
            let not = if self.are_small(who) { "not huge: " } else { "" };
            note(who, &format!("{not}{had} of {len} in huge pages"));
        }
    }
}

fn parse(text: &str, range: &Range<usize>) -> Bytes {
    let (mut is_inside, mut kib) = (false, 0);
    for line in text.lines() {
        if let Some((start, end)) = bounds(line) {
            is_inside = start < range.end && end > range.start;
        } else if let Some(rest) = line.strip_prefix("AnonHugePages:").filter(|_| is_inside) {
            kib += rest.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0);
        }
    }
    Bytes::new(kib << 10).min(Bytes::new((range.end - range.start) as u64))
}

/// The first line on a mapping.
fn bounds(line: &str) -> Option<(usize, usize)> {
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0 \n\
Rss:                4096 kB\n\
AnonHugePages:      2048 kB\n\
7f0000400000-7f0000600000 rw-p 00000000 00:00 0    [anon:x]\n\
AnonHugePages:      2048 kB\n\
7f0000800000-7f0000a00000 rw-p 00000000 00:00 0 \n\
AnonHugePages:         0 kB\n";

    #[test]
    fn mappings_of_the_range_count_up_to_its_length() {
        let at = |mib: usize| 0x7f00_0000_0000 + (mib << 20);
        for (from, to, mib) in [(0, 4, 2), (0, 6, 4), (4, 6, 2), (5, 6, 1), (6, 10, 0)] {
            assert_eq!(parse(TEXT, &(at(from)..at(to))), Bytes::mib(mib), "{from} {to}");
        }
    }
}
