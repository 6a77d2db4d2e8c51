//! The end of the demo: the table, the checks, the result in a sentence, and the JSON.

use std::io::Write;

use glebe::internal::sys::page_size;
use glebe::reserve::{GranuleUse, Reserve};
use glebe::units::Pages;
use serde_json::{json, Value};

use super::files::{FileSet, Reading};
use super::line::Line;
use super::{CONTESTANTS, NAMES};

fn sorted(us: &[f64]) -> Vec<f64> {
    let mut sorted = us.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Returns the median and the maximum of sorted times.
fn median_and_max(us: &[f64]) -> Option<(f64, f64)> {
    Some((us[us.len().checked_sub(1)? / 2], *us.last()?))
}

pub fn table(lines: &[Line], out: &mut dyn Write) -> std::io::Result<()> {
    let [glebe, huge, small] = NAMES;
    writeln!(out, "\nHow long the program waited for memory of each size:\n")?;
    writeln!(out, "{:>9}{glebe:>22}{huge:>23}{small:>24}", "size")?;
    let times = "median / longest, us";
    writeln!(out, "{:>9}{times:>22}{times:>23}{times:>24}", "")?;
    for of_size in lines.chunks(CONTESTANTS.len()) {
        let size = of_size.first().map_or(0, |line| line.pages);
        let mut row = format!("{:>9}", Pages::new(size).bytes(page_size()).to_string());
        for (line, width) in of_size.iter().zip([22, 23, 24]) {
            let times = median_and_max(&sorted(&line.us));
            let cell = times.map(|(median, max)| format!("{median:.1} / {max:.1}"));
            row += &format!("{:>width$}", cell.unwrap_or_else(|| "-".to_owned()));
        }
        writeln!(out, "{row}")?;
    }
    for (line, name) in lines.iter().zip(NAMES.iter().cycle()) {
        if line.note.is_empty() {
            continue;
        }
        let failed = match line.failures {
            0 => String::new(),
            count => format!("{count} failed: "),
        };
        let size = Pages::new(line.pages).bytes(page_size());
        writeln!(out, "{size}, {name}: {failed}{}", line.note)?;
    }
    Ok(())
}

/// Says the result for the largest block that the reserve gave.
pub fn result(lines: &[Line], is_right: bool) -> Option<String> {
    let mut of_size = lines.chunks(CONTESTANTS.len()).rev();
    let [glebe, kernel, ..] = of_size.find(|lines| lines.iter().all(|line| !line.us.is_empty()))?
    else {
        return None;
    };
    let median = |line: &Line| median_and_max(&sorted(&line.us)).map(|(median, _)| median);
    let (glebe_us, kernel_ms) = (median(glebe)?, median(kernel)? / 1e3);
    let size = Pages::new(glebe.pages).bytes(page_size());
    let checks = match is_right {
        true => "No request of glebe failed, no byte was wrong.",
        false => "Some checks failed.",
    };
    // Only a block without a note is proved to be contiguous.
    let piece = if glebe.note.is_empty() { "in one piece" } else { "in addresses" };
    let times = format!("glebe, {piece}, {glebe_us:.0} us; the kernel, in huge pages, ");
    Some(format!("{size}: {times}{kernel_ms:.1} ms (median). {checks}"))
}

pub fn conclude(
    reserve: &Reserve,
    reading: &Reading,
    checks: &[(&str, u64)],
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let stats = reserve.stats();
    let (taken, evicted) = (stats.recalled, stats.evicted);
    writeln!(
        out,
        "\npages     {taken} taken back from the cache for blocks, {evicted} for other files"
    )?;
    let Reading { hits, hit_s, misses, read_s, .. } = reading;
    let us = |seconds: f64, count: u64| seconds * 1e6 / count.max(1) as f64;
    let (hit, read) = (us(*hit_s, *hits), us(*read_s, *misses));
    writeln!(out, "cache     {hits} hits of {hit:.2} us, {misses} misses of {read:.2} us to read")?;
    writeln!(
        out,
        "A block of glebe is one piece and not zeroed. The kernel's memory is zeroed, and"
    )?;
    writeln!(out, "contiguous within a page only.\n\nchecks (must be 0)")?;
    for (name, count) in checks {
        writeln!(out, "  {name:38} {count}{}", if *count == 0 { "" } else { "  WRONG" })?;
    }
    Ok(())
}

/// Returns the report in the benchmarks' format.
pub fn report(
    quick: bool,
    reserve: &Reserve,
    files: &FileSet,
    lines: &[Line],
    fullest: &[GranuleUse],
) -> Value {
    let row = |line: &Line| {
        let us = sorted(&line.us);
        let (first, last) = (us.first()?, us.last()?);
        let (median, runs) = (us[(us.len() - 1) / 2], us.len());
        Some(json!({
            "case": format!("recall_{}", line.pages), "who": line.who, "unit": "us",
            "median": median, "max": last, "min": first, "runs": runs,
        }))
    };
    let granule = |of: &GranuleUse| json!([of.free.get(), of.first_class.get(), of.tenant.get()]);
    json!({
        "bench": "demo",
        "version": 1,
        "quick": quick,
        "len_bytes": reserve.len().bytes(page_size()).get(),
        "page_bytes": page_size().bytes().get(),
        "files": files.to_string(),
        "rows": lines.iter().filter_map(row).collect::<Vec<_>>(),
        "map": fullest.iter().map(granule).collect::<Vec<_>>(),
    })
}
