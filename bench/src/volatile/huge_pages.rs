//! How much of a range lies in transparent huge pages: the kernel gives them if it can, and says
//! nothing where it cannot. Unit: bytes. Source: proc_pid_smaps(5), `AnonHugePages`.

use std::ops::Range;

use glebe::units::Bytes;

/// A part that is in huge pages, from which on a figure is one of huge pages.
const ENOUGH_PERCENT: u64 = 95;

/// Bytes of a range in huge pages; nothing where the kernel does not say. Of a mapping that
/// reaches beyond the range, all of it counts, up to the range's length.
pub(super) fn huge_bytes(range: &Range<usize>) -> Bytes {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    parse(&text, range)
}

/// Whether enough of `len` is in huge pages, and how that is said in a row.
pub(super) fn judge(huge: Bytes, len: Bytes) -> (bool, String) {
    let enough = huge.get() >= len.get() / 100 * ENOUGH_PERCENT;
    let not = if enough { "" } else { "not huge: " };
    (enough, format!("{not}{huge} of {len} in huge pages"))
}

fn parse(text: &str, range: &Range<usize>) -> Bytes {
    let mut inside = false;
    let mut kib = 0;
    for line in text.lines() {
        if let Some((start, end)) = bounds(line) {
            inside = start < range.end && end > range.start;
        } else if let Some(rest) = line.strip_prefix("AnonHugePages:").filter(|_| inside) {
            let number = rest.trim().trim_end_matches(" kB");
            kib += number.parse::<u64>().unwrap_or(0);
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
VmFlags: rd wr mr mw me ac hg \n\
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

    #[test]
    fn what_is_not_huge_says_so() {
        assert!(judge(Bytes::mib(254), Bytes::mib(256)).0);
        let (enough, text) = judge(Bytes::mib(128), Bytes::mib(256));
        assert!(!enough && text.starts_with("not huge: 128"), "{text}");
    }
}
