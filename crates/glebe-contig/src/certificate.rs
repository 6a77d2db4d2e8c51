//! [`Certificate`] describes a mapping's physical memory.
//!
//! If `held_by` is `nothing`, the kernel may move pages.
//!
//! If frames are hidden, `within_bytes` replaces `pfn`:
//!
//! ```text
//! {"certificate":"glebe contig","version":1,"source":TEXT,"held_by":WORD,"page_bytes":N,
//!  "len_bytes":N,"proved":"frames"|"within","within_bytes":N,"longest_run_bytes":N,
//!  "runs":[{"offset_bytes":N,"len_bytes":N,"pfn":N},...],
//!  "nodes":[{"offset_bytes":N,"len_bytes":N,"node":N},...]}
//! ```

use std::fmt::Write as _;
use std::path::Path;

use super::{runs, HeldBy, Location, Node, Proof, Run, Source};
use glebe_os::error::OsError;
use glebe_os::extent::Extent;
use glebe_os::internal::sys::files::private;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};

/// Runs, the evidence for them, and the NUMA nodes of the pages.
///
/// ```
/// use glebe_contig::Contig;
/// use glebe_contig::units::Bytes;
///
/// let memory = Contig::new(Bytes::mib(1))?;
/// println!("{}", memory.certificate().to_json());
/// # Ok::<(), glebe_contig::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Source of the memory.
    pub source: Source,
    /// Mechanism that keeps the pages in their frames.
    pub held_by: HeldBy,
    /// Bytes mapped.
    pub len: Bytes,
    /// Runs in order of position.
    pub runs: Vec<Run>,
    /// Evidence for the runs.
    pub proof: Proof,
    /// Positions and NUMA nodes of the pages; empty if the kernel does not tell them.
    pub nodes: Vec<(Extent, Node)>,
}

impl Certificate {
    /// Returns JSON on one line.
    #[must_use]
    pub fn to_json(&self) -> String {
        let page = page_size();
        let (proved, within) = match self.proof {
            Proof::Frames => ("frames", None),
            Proof::Within(pages) => ("within", Some(pages)),
        };
        let mut text = format!(
            "{{\"certificate\":\"glebe contig\",\"version\":1,\"source\":\"{}\",\
             \"held_by\":\"{}\",\"page_bytes\":{},\"len_bytes\":{},\"proved\":\"{proved}\"",
            self.source,
            self.held_by.as_str(),
            page.bytes().get(),
            self.len.get(),
        );
        if let Some(pages) = within {
            let _ = write!(text, ",\"within_bytes\":{}", pages.bytes(page).get());
        }
        let longest = runs::longest(&self.runs).bytes(page).get();
        let _ = write!(text, ",\"longest_run_bytes\":{longest},\"runs\":[");
        for (n, run) in self.runs.iter().enumerate() {
            begin(&mut text, n, run.pages);
            if let Some(pfn) = run.pfn {
                let _ = write!(text, ",\"pfn\":{}", pfn.get());
            }
            text.push('}');
        }
        text.push_str("],\"nodes\":[");
        for (n, (pages, node)) in self.nodes.iter().enumerate() {
            begin(&mut text, n, *pages);
            let _ = write!(text, ",\"node\":{}}}", node.0);
        }
        text.push_str("]}");
        text
    }

    /// Writes the JSON to a file that only its owner may read.
    ///
    /// # Errors
    /// If the file cannot be written, is a symbolic link, or has another owner.
    pub fn write(&self, path: &Path) -> Result<(), OsError> {
        private::replace(path, format!("{}\n", self.to_json()).as_bytes())
    }
}

/// Begins the `n`th object of a list with its place in bytes.
fn begin(text: &mut String, n: usize, pages: Extent) {
    let [offset, len] =
        [pages.start(), pages.len()].map(|pages| Pages::new(pages).bytes(page_size()).get());
    let comma = if n == 0 { "" } else { "," };
    let _ = write!(text, "{comma}{{\"offset_bytes\":{offset},\"len_bytes\":{len}");
}

/// Returns the place of `offset` in a mapping of `len` bytes, or `None` from `len` on.
pub fn locate(runs: &[Run], len: Bytes, offset: Bytes) -> Option<Location> {
    if offset >= len {
        return None;
    }
    let page = page_size();
    let position = offset.pages_down(page).get();
    let at = runs.partition_point(|run| run.pages.start() <= position);
    let run = at.checked_sub(1).map(|at| runs[at]).filter(|run| position < run.pages.end());
    // Without a run, the base page is still contiguous.
    let (start, pages, pfn) = match run {
        Some(run) => (run.pages.start(), run.pages.len(), run.pfn),
        None => (position, 1, None),
    };
    let offset_in_run = offset - Pages::new(start).bytes(page);
    let run_len = Pages::new(pages).bytes(page);
    Some(Location {
        offset_in_run,
        contiguous: (run_len - offset_in_run).min(len - offset),
        run_len,
        pfn: pfn.map(|pfn| pfn.plus(Pages::new(position - start))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use glebe_os::units::Pfn;

    fn run(start: u64, len: u64, pfn: Option<u64>) -> Run {
        Run { pages: Extent::new(start, len).unwrap(), pfn: pfn.map(Pfn::new) }
    }

    fn bytes(pages: u64) -> Bytes {
        Pages::new(pages).bytes(page_size())
    }

    #[test]
    fn a_byte_is_found_in_its_run() {
        let runs = [run(0, 4, Some(100)), run(6, 2, Some(50))];
        let at = |offset: Bytes| locate(&runs, bytes(9), offset).unwrap();
        let inside = at(bytes(3) + Bytes::new(1));
        assert_eq!(inside.offset_in_run, bytes(3) + Bytes::new(1));
        assert_eq!(inside.contiguous, bytes(1) - Bytes::new(1));
        assert_eq!((inside.run_len, inside.pfn), (bytes(4), Some(Pfn::new(103))));
        let between = at(bytes(5));
        assert_eq!((between.contiguous, between.pfn), (bytes(1), None), "no more than a page");
        assert_eq!(at(bytes(6)).contiguous, bytes(2));
        assert_eq!(at(bytes(8)).run_len, bytes(1));
        assert_eq!(locate(&runs, bytes(9), bytes(9)), None);
        assert_eq!(locate(&[], bytes(1), Bytes::new(7)).unwrap().offset_in_run, Bytes::new(7));
    }

    #[test]
    fn json_has_frames_only_where_they_may_be_seen() {
        let certificate = Certificate {
            source: Source::HUGETLB_2M,
            held_by: HeldBy::HugetlbPool,
            len: bytes(4),
            runs: vec![run(0, 2, Some(100)), run(2, 2, Some(50))],
            proof: Proof::Frames,
            nodes: vec![(Extent::new(0, 4).unwrap(), Node(3))],
        };
        let json = certificate.to_json();
        assert!(json.contains("\"pfn\":100") && json.contains("\"held_by\":\"hugetlb_pool\""));
        assert!(json.contains("\"proved\":\"frames\"") && !json.contains("within_bytes"));
        let all = bytes(4).get();
        let nodes = format!("\"nodes\":[{{\"offset_bytes\":0,\"len_bytes\":{all},\"node\":3}}]}}");
        assert!(json.ends_with(&nodes), "{json}");
        let runs = vec![run(0, 2, None), run(2, 2, None)];
        let hidden = Certificate { runs, proof: Proof::Within(Pages::new(2)), ..certificate };
        assert!(!hidden.to_json().contains("pfn"));
        let within = format!("\"within_bytes\":{}", bytes(2).get());
        assert!(hidden.to_json().contains(&within), "{}", hidden.to_json());
    }
}
