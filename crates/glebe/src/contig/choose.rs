//! From what is wanted to what is had: the sources tried, the plan, the place and the hold.

use std::time::Duration;

use super::hold::{HeldBy, Pin};
use super::options::{Options, Plan, SourceChoice};
use super::populate::Reporter;
use super::{
    assemble, blocks, hugetlb, ordinary, pool, runs, Contig, Error, Node, Part, Proof, Run, Source,
};
use crate::extent::Extent;
use crate::mapping::Mapping;
use crate::sys::madvise::transparent_huge_page;
use crate::sys::{hugetlb as pools, numa, page_size, place};
use crate::units::{Bytes, PageSize};

/// What a source is asked for.
pub(super) struct Request<'a> {
    pub len: Bytes,
    /// The run to try for.
    pub run: Option<Bytes>,
    /// Whether nobody asked for it by its length: as long a run as can be had then.
    pub by_default: bool,
    /// How much to look at for it; where no run is asked for, for the longest.
    pub search: Option<Bytes>,
    /// How long to look.
    pub search_time: Option<Duration>,
    /// Whether a pool's pages are put in physical order.
    pub in_order: bool,
    pub node: Option<Node>,
    pub dma_heap: Option<&'a std::path::Path>,
    pub threads: usize,
    pub grow_pool: Option<bool>,
    pub lock_patience: Duration,
    /// How long the kernel may try to empty one memory block.
    pub block_patience: Duration,
    /// Whether the pages are a file's.
    pub mappable: bool,
    pub place: pool::Place,
    /// Whose memory blocks may be evacuated.
    pub blocks_of: blocks::Whose,
}

/// What a source gave.
pub(super) struct Built {
    pub mapping: Mapping,
    /// Blocks that are movable for it.
    pub blocks: Option<blocks::Held>,
    /// Pages that hugetlb pools had not.
    pub grown_by: u64,
    pub parts: Vec<Part>,
    pub runs: Vec<Run>,
    pub proof: Proof,
    /// What was tried for a run that was not had.
    pub tried: Option<String>,
    pub notes: Vec<String>,
}

impl Built {
    /// All of one source.
    pub fn of(source: Source, mapping: Mapping, runs: (Vec<Run>, Proof)) -> Self {
        let parts = vec![Part { pages: all_of(&mapping), source }];
        let ((runs, proof), grown_by, tried, notes) = (runs, 0, None, Vec::new());
        Self { mapping, blocks: None, grown_by, parts, runs, proof, tried, notes }
    }

    fn longest(&self) -> Bytes {
        runs::longest(&self.runs).bytes(page_size())
    }
}

/// Address space at such an alignment can be had in any process that has room for the memory.
const LIKELY_ALIGN: PageSize = PageSize::new(1 << 30).unwrap();

/// Every position of a mapping.
pub(super) fn all_of(mapping: &Mapping) -> Extent {
    let pages = mapping.len().pages_up(page_size()).get();
    Extent::new(0, pages).expect("a mapping is never empty")
}

/// Maps what `options` ask for.
pub(super) fn map(options: Options<'_>, len: Bytes, place: pool::Place) -> Result<Contig, Error> {
    if len == Bytes::ZERO {
        return Err(Error::ZeroLength);
    }
    let align = checked_align(options.align)?;
    if align > LIKELY_ALIGN && options.at.is_none() {
        // Seen before memory is had.
        let refused = |why| Error::NoAddresses { len, align: align.bytes(), why };
        place::check_room(len.pages_up(page_size()).bytes(page_size()), align).map_err(refused)?;
    }
    check_node(options.node)?;
    let mut options = options;
    let mut reporter = Reporter(options.progress.take());
    let request = request(&options, len, place);
    let Options { required, plan, pin, at, .. } = options;
    let preferred = options.preferred.or(options.for_runs.then_some(len));
    let mut notes = Vec::new();
    if options.source == SourceChoice::Only(Source::Blocks) && pin == Some(true) {
        return Err(Error::NeverPinned(blocks::WHY_NOT_PINNED));
    }
    let sources = match (plan, options.source) {
        (Plan::Divide, SourceChoice::Auto) => vec![Source::Divided],
        (_, SourceChoice::Auto) => {
            let mut sources = candidates(len, &mut notes);
            if may_draw_on_the_bank(&request, pin) {
                sources.insert(0, Source::Blocks);
            }
            sources
        }
        (_, SourceChoice::Only(source)) => vec![source],
    };
    let mut last = None;
    for source in sources {
        let built = build(source, &request, &mut reporter)
            .and_then(|built| shaped(built, plan, len, align, at))
            .and_then(|built| held(built, pin.or(request.mappable.then_some(false))))
            .and_then(|built| long_enough(built, required));
        match built {
            Ok((mut built, pin, why_not_pinned)) => {
                let longest = built.longest();
                notes.append(&mut built.notes);
                if let Some(wanted) = preferred.filter(|wanted| *wanted > longest) {
                    let tried =
                        built.tried.take().map_or(String::new(), |tried| format!("; {tried}"));
                    notes.push(format!("{source}: run of {wanted} sought, {longest} had{tried}"));
                }
                let Built { mapping, blocks, grown_by, parts, runs, proof, .. } = built;
                let (asked, why_not_better) = (len, notes);
                return Ok(Contig {
                    pin,
                    mapping,
                    blocks,
                    grown_by,
                    asked,
                    parts,
                    runs,
                    proof,
                    why_not_better,
                    why_not_pinned,
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

/// Whether an administrator has made a bank that may hold the run asked for.
fn may_draw_on_the_bank(request: &Request<'_>, pin: Option<bool>) -> bool {
    let is_for_it = request.run.is_some() && !request.mappable && pin != Some(true);
    is_for_it && blocks::bank_len(&request.place) >= request.len
}

fn request<'a>(options: &'a Options<'_>, len: Bytes, place: pool::Place) -> Request<'a> {
    Request {
        len,
        run: options.required.max(options.preferred).or(options.for_runs.then_some(len)),
        by_default: options.required.max(options.preferred).is_none(),
        search: options.search,
        search_time: options.search_time,
        in_order: options.in_order,
        node: options.node,
        dma_heap: options.dma_heap.as_deref(),
        threads: options.threads,
        grow_pool: options.grow_pool,
        lock_patience: options.lock_patience,
        block_patience: options.block_patience,
        mappable: options.mappable,
        place,
        blocks_of: match options.source {
            SourceChoice::Only(_) => blocks::Whose::Anybodys,
            SourceChoice::Auto => blocks::Whose::Banks,
        },
    }
}

/// Pages of the hugetlb pool of `size` in a file.
pub(super) fn in_file(options: Options<'_>, len: Bytes, size: PageSize) -> Result<Built, Error> {
    if len == Bytes::ZERO {
        return Err(Error::ZeroLength);
    }
    check_node(options.node)?;
    let place = pool::Place::machine();
    let options = options.chosen_for_runs();
    let request = Request { mappable: true, ..request(&options, len, place) };
    let built = build(Source::Hugetlb(size), &request, &mut Reporter(None))?;
    long_enough((built, None, None), options.required).map(|(built, ..)| built)
}

/// The smallest size of the machine's hugetlb pools that is not below a transparent huge page.
pub(super) fn smallest_hugetlb() -> Option<PageSize> {
    let least = transparent_huge_page().map_or(Bytes::mib(2), PageSize::bytes);
    pools::sizes().into_iter().rfind(|size| size.bytes() >= least)
}

fn check_node(node: Option<Node>) -> Result<(), Error> {
    let Some(node) = node else { return Ok(()) };
    let online = numa::online();
    match online.contains(&node) {
        true => Ok(()),
        false => Err(Error::NoSuchNode { node, online }),
    }
}

fn checked_align(align: Bytes) -> Result<PageSize, Error> {
    match align.get() {
        0 => Ok(page_size()),
        _ => PageSize::new(align.get()).ok_or(Error::BadAlign { align }),
    }
}

/// Gives back what is not needed, where the plan wants that, and moves it where it is wanted.
fn shaped(
    mut built: Built,
    plan: Plan,
    len: Bytes,
    align: PageSize,
    at: Option<usize>,
) -> Result<Built, Error> {
    let page = page_size();
    let needed = len.pages_up(page).bytes(page);
    if plan == Plan::RoundUp && needed < built.mapping.len() {
        if let [Part { source: Source::Thp | Source::Mthp(_), .. }] = built.parts[..] {
            built.mapping.shorten(needed)?;
            let kept = all_of(&built.mapping);
            let cut = |pages: Extent| pages.intersection(kept);
            built.parts.iter_mut().for_each(|part| part.pages = kept);
            let runs = std::mem::take(&mut built.runs).into_iter();
            let runs = runs.filter_map(|run| cut(run.pages).map(|pages| Run { pages, ..run }));
            built.runs = runs.collect();
        }
    }
    if let Some(at) = at.filter(|at| *at != built.mapping.addr()) {
        built.mapping = built.mapping.moved_to_free(at)?;
        if at % align.bytes().as_usize() != 0 {
            return Err(Error::BadAlign { align: align.bytes() });
        }
        return Ok(built);
    }
    built.mapping = built.mapping.aligned_to(align)?;
    Ok(built)
}

type Held = (Built, Option<Pin>, Option<String>);

/// Has the pages held where they are, and looks again where that may have moved them.
fn held(mut built: Built, pin: Option<bool>) -> Result<Held, Error> {
    if let [Part { source: Source::Blocks, .. }] = built.parts[..] {
        return Ok((built, None, Some(blocks::WHY_NOT_PINNED.to_owned())));
    }
    let by_source = match built.parts[..] {
        [Part { source: Source::DmaHeap, .. }] => HeldBy::DmaBuffer,
        _ if built.parts.iter().all(Part::is_hugetlb) => HeldBy::HugetlbPool,
        _ => HeldBy::Nothing,
    };
    if !pin.unwrap_or(by_source == HeldBy::Nothing) {
        return Ok((built, None, None));
    }
    match Pin::new(&built.mapping) {
        Ok(pin) => {
            if built.proof == Proof::Frames {
                (built.runs, built.proof) = runs::read_parts(&built.mapping, &built.parts)?;
            }
            Ok((built, Some(pin), None))
        }
        Err(error) if pin == Some(true) => Err(Error::NotPinned(error)),
        Err(error) => Ok((built, None, Some(error.to_string()))),
    }
}

fn long_enough(held: Held, required: Option<Bytes>) -> Result<Held, Error> {
    let longest = held.0.longest();
    match required.filter(|wanted| *wanted > longest) {
        Some(wanted) => Err(Error::NotContiguous { wanted, longest, tried: held.0.tried }),
        None => Ok(held),
    }
}

/// Of two refusals the one to return: the later, but never a shorter run than was had before.
fn better_word(before: Option<Error>, error: Error) -> Error {
    match (before, error) {
        (
            Some(Error::NotContiguous { wanted, longest, tried }),
            Error::NotContiguous { longest: later, tried: of_later, .. },
        ) => {
            let tried = tried.or(of_later);
            Error::NotContiguous { wanted, longest: longest.max(later), tried }
        }
        (_, error) => error,
    }
}

/// Has the memory from one source.
pub(super) fn build(
    source: Source,
    request: &Request<'_>,
    report: &mut Reporter<'_>,
) -> Result<Built, Error> {
    let page = match source {
        Source::Hugetlb(size) | Source::Mthp(size) => size,
        Source::Thp => transparent_huge_page()?,
        Source::Plain | Source::DmaHeap | Source::Blocks | Source::Divided => page_size(),
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
        Source::Mthp(size) => ordinary::small_transparent(request, len, size, report),
        Source::Plain => ordinary::plain(request, len, report),
        Source::DmaHeap => ordinary::dma_heap(request, len),
        Source::Blocks => blocks::build(request, len, report),
        Source::Divided => assemble::build(request, len, report),
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
            _ => None,
        }
    }
}
