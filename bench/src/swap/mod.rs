//! The benchmark `swap`: [`glebe::swap`] beside the kernel's swap on its own zram device.
//!
//! Measures loads of a page from compressed memory ([`faults`]), programs with more data than may
//! be in memory ([`runs`]), recalls from a reserve that a swap cache has filled ([`recall`]), and a
//! background pager ([`policies`]). Touches check the number and version in the page.

mod faults;
mod kernel;
mod policies;
mod recall;
mod runs;
mod touched;
mod trace;

use glebe::units::Bytes;

use crate::report::Report;
use crate::{zpool, Outcome};
use runs::Kind;
use touched::{Corpus, Wrong};
use trace::Pattern;

pub(crate) use runs::inside;

const REGION: &str = "glebe region";
const KERNEL: &str = "kernel, zram swap";

const KINDS: [Kind; 3] = [
    Kind { name: "zipf_2x", times: 2, pattern: Pattern::Zipf },
    Kind { name: "zipf_4x", times: 4, pattern: Pattern::Zipf },
    Kind { name: "seq_2x", times: 2, pattern: Pattern::Sequential },
];

pub(crate) fn run(report: &mut Report) -> Outcome {
    let only = report.options.only.clone();
    let known = || ["faults", "recall", "policies"].into_iter().chain(KINDS.map(|kind| kind.name));
    if let Some(unknown) = only.iter().find(|name| known().all(|known| known != **name)) {
        let known: Vec<&str> = known().collect();
        return Err(format!("--only {unknown}: no part; there are {}", known.join(", ")).into());
    }
    let is_wanted = |name: &str| only.is_empty() || only.iter().any(|part| part == name);
    let scratch = report.options.scratch();
    let pages = zpool::any_pages(report.plan(Bytes::mib(8), Bytes::mib(64)), &scratch)?;
    let file = tempfile::NamedTempFile::new_in(&scratch)?;
    std::fs::write(file.path(), &pages)?;
    let corpus = Corpus(&pages);
    judged(Wrong::default(), report);
    if is_wanted("faults") {
        faults::measure(&corpus, report)?;
    }
    let runs = || KINDS.iter().filter(|kind| is_wanted(kind.name));
    runs().try_for_each(|kind| runs::measure(kind, file.path(), report))?;
    if runs().next().is_some() {
        runs::sum_up(runs(), report);
    }
    if is_wanted("recall") {
        recall::measure(&corpus, report)?;
    }
    if is_wanted("policies") {
        policies::measure(&corpus, report)?;
    }
    Ok(())
}

fn judged(wrong: Wrong, report: &mut Report) {
    report.check("wrong_bytes", wrong.bytes);
    report.check("lost_writes", wrong.lost_writes);
}
