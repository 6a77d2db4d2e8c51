//! [`Options`]: what memory is wanted, and the choice of the source that has it.

use super::populate::Reporter;
use super::{hugetlb, ordinary, pool, runs, Contig, Error, Proof, Run, Source};
use crate::mapping::Mapping;
use crate::sys::madvise::transparent_huge_page;
use crate::sys::{hugetlb as pools, page_size};
use crate::units::{Bytes, PageSize};

/// How far populating is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes populated.
    pub done: Bytes,
    /// Bytes to populate.
    pub total: Bytes,
}

/// Which sources may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceChoice {
    /// The best that can be had: hugetlb pages of each size that divides the length, largest
    /// first (the smallest not below a transparent huge page's also if the length must be rounded
    /// up to it), then transparent huge pages, then base pages.
    #[default]
    Auto,
    /// This one or none.
    Only(Source),
}

impl From<Source> for SourceChoice {
    fn from(source: Source) -> Self {
        Self::Only(source)
    }
}

/// What memory is wanted. Made by [`Contig::options`].
#[must_use]
pub struct Options<'a> {
    source: SourceChoice,
    required: Option<Bytes>,
    preferred: Option<Bytes>,
    threads: usize,
    grow_pool: Option<bool>,
    progress: Option<&'a mut dyn FnMut(Progress)>,
}

/// What a source is asked for.
pub(super) struct Request {
    pub len: Bytes,
    /// The run to try for.
    pub run: Option<Bytes>,
    pub threads: usize,
    pub grow_pool: Option<bool>,
    pub place: pool::Place,
}

/// What a source gave.
pub(super) struct Built {
    // In this order, as in `Contig`.
    pub mapping: Mapping,
    pub claim: Option<pool::PoolClaim>,
    pub runs: Vec<Run>,
    pub proof: Proof,
    pub notes: Vec<String>,
}

impl<'a> Options<'a> {
    pub(super) fn new() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8);
        Self {
            source: SourceChoice::Auto,
            required: None,
            preferred: None,
            threads,
            grow_pool: None,
            progress: None,
        }
    }

    /// Which sources may be used; any by default.
    pub fn source(mut self, source: impl Into<SourceChoice>) -> Self {
        self.source = source.into();
        self
    }

    /// Requires a physically contiguous run of `len`: without one, [`Error::NotContiguous`].
    pub fn require_run(mut self, len: Bytes) -> Self {
        self.required = Some(len);
        self
    }

    /// Tries for a physically contiguous run of `len`; [`Contig::longest_run`] says what came.
    pub fn prefer_run(mut self, len: Bytes) -> Self {
        self.preferred = Some(len);
        self
    }

    /// Populates by up to `n` threads; as many as processors, and at most 8, by default.
    pub fn threads(mut self, n: usize) -> Self {
        self.threads = n.max(1);
        self
    }

    /// Calls `callback` as populating goes on, from the calling thread. A source that puts pages
    /// in order counts its two rounds from zero each, and has the pool locked meanwhile: the
    /// callback must neither map nor drop a [`Contig`] then, which would wait for ever.
    pub fn progress(mut self, callback: &'a mut dyn FnMut(Progress)) -> Self {
        self.progress = Some(callback);
        self
    }

    /// Whether a hugetlb pool may be grown for this; by default if the caller may. What was
    /// added is given back on drop, or, of a killed process, by the next that grows a pool.
    pub fn grow_pool(mut self, grow: bool) -> Self {
        self.grow_pool = Some(grow);
        self
    }

    /// Maps and populates at least `len` bytes.
    ///
    /// # Errors
    /// Why the source refused; with [`SourceChoice::Auto`], why the last of them did. Whatever
    /// had been taken is given back.
    pub fn map(self, len: Bytes) -> Result<Contig, Error> {
        if len == Bytes::ZERO {
            return Err(Error::ZeroLength);
        }
        let run = self.required.max(self.preferred);
        let (required, preferred) = (self.required, self.preferred);
        let request = Request {
            len,
            run,
            threads: self.threads,
            grow_pool: self.grow_pool,
            place: pool::Place::machine(),
        };
        let mut reporter = Reporter(self.progress);
        let mut notes = Vec::new();
        let sources = match self.source {
            SourceChoice::Auto => candidates(len, &mut notes),
            SourceChoice::Only(source) => vec![source],
        };
        let mut last = None;
        for source in sources {
            let built = build(source, &request, &mut reporter).and_then(|built| {
                let longest = runs::longest(&built.runs).bytes(page_size());
                match required.filter(|wanted| *wanted > longest) {
                    Some(wanted) => Err(Error::NotContiguous { wanted, longest }),
                    None => Ok((built, longest)),
                }
            });
            match built {
                Ok((built, longest)) => {
                    notes.extend(built.notes);
                    if let Some(wanted) = preferred.filter(|wanted| *wanted > longest) {
                        notes.push(format!("{source}: run of {wanted} preferred, {longest} had"));
                    }
                    let Built { mapping, claim, runs, proof, .. } = built;
                    return Ok(Contig {
                        mapping,
                        claim,
                        source,
                        runs,
                        proof,
                        why_not_better: notes,
                    });
                }
                Err(error) => {
                    notes.push(format!("{source}: {error}"));
                    last = Some(better_word(last, error));
                }
            }
        }
        Err(last.unwrap_or(Error::ZeroLength)) // at least one source was tried
    }
}

/// Of two refusals the one to return: the later, but never a shorter run than was had before.
fn better_word(before: Option<Error>, error: Error) -> Error {
    match (before, error) {
        (
            Some(Error::NotContiguous { wanted, longest }),
            Error::NotContiguous { longest: later, .. },
        ) => Error::NotContiguous { wanted, longest: longest.max(later) },
        (_, error) => error,
    }
}

fn build(source: Source, request: &Request, report: &mut Reporter<'_>) -> Result<Built, Error> {
    let page = match source {
        Source::Hugetlb(size) => size,
        Source::Thp => transparent_huge_page()?,
        Source::Plain => page_size(),
    };
    let asked = request.len;
    let too_large =
        || Error::TooLarge { asked, available: Bytes::new(isize::MAX.unsigned_abs() as u64) };
    let len = asked.pages_up(page).checked_bytes(page).ok_or_else(too_large)?;
    if isize::try_from(len.get()).is_err() {
        return Err(too_large());
    }
    match source {
        Source::Hugetlb(size) => hugetlb::build(request, len, size, report),
        Source::Thp => ordinary::transparent(request, len, page, report),
        Source::Plain => ordinary::plain(request, len, report),
    }
}

/// The sources to try for `len`, best first; what is not tried is noted.
fn candidates(len: Bytes, notes: &mut Vec<String>) -> Vec<Source> {
    let huge = transparent_huge_page().map_or(Source::HUGETLB_2M.page(), Some);
    let least = huge.map_or(Bytes::mib(2), PageSize::bytes);
    let sizes: Vec<PageSize> =
        pools::sizes().into_iter().filter(|size| size.bytes() >= least).collect();
    let mut sources = Vec::new();
    for size in &sizes {
        if len.get() % size.bytes().get() == 0 || Some(size) == sizes.last() {
            sources.push(Source::Hugetlb(*size));
        } else {
            let size = size.bytes();
            notes.push(format!("hugetlb {size}: {len} is no multiple of {size}; ask for one"));
        }
    }
    if sizes.is_empty() {
        notes.push(format!("hugetlb: {} lists no pool; CONFIG_HUGETLBFS", pools::ROOT));
    }
    sources.extend([Source::Thp, Source::Plain]);
    sources
}

impl Source {
    fn page(self) -> Option<PageSize> {
        match self {
            Source::Hugetlb(size) => Some(size),
            Source::Thp | Source::Plain => None,
        }
    }
}
