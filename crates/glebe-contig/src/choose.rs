//! Turns [`Options`] into a [`Contig`].

use std::time::Instant;

use super::hold::{HeldBy, Pin};
use super::options::{Options, Plan};
use super::{
    assemble, blocks, elsewhere, hugetlb, ordinary, runs, Contig, Error, Node, Proof, Run, Source,
};
use glebe_os::extent::Extent;
use glebe_os::internal::sys::machine::hugetlb as pools;
use glebe_os::internal::sys::machine::numa;
use glebe_os::internal::sys::memory::pagemap::frames_visible;
use glebe_os::internal::sys::memory::place;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, PageSize};

/// Larger alignments may have no addresses, so `build` checks them first.
const LIKELY_ALIGN: PageSize = PageSize::new(1 << 30).unwrap();

impl Options {
    /// Maps and populates at least `len` bytes.
    ///
    /// # Errors
    /// For bad options; otherwise the refusal of the last source tried.
    pub fn build(mut self, len: Bytes) -> Result<Contig, Error> {
        self.began = Some(Instant::now());
        let Some(node) = self.preferred_node.filter(|_| self.nodes.is_none()) else {
            return self.built(len).map_err(|error| elsewhere::told(error, &self));
        };
        match self.clone().node(node).built(len) {
            Err(error) if may_be_had_elsewhere(&error) => {
                self.began = Some(Instant::now());
                let mut contig = self.built(len)?;
                contig.why_not_better.insert(0, format!("{node}: {error}"));
                Ok(contig)
            }
            built => built,
        }
    }

    fn built(&self, len: Bytes) -> Result<Contig, Error> {
        let options = self;
        if len == Bytes::ZERO {
            return Err(Error::ZeroLength);
        }
        let align = checked_align(options.align)?;
        if align > LIKELY_ALIGN && options.at.is_none() {
            let refused = |why| Error::NoAddresses { len, align: align.bytes(), why };
            let page = page_size();
            let whole = len.pages_up(page).checked_bytes(page).unwrap_or(len);
            place::check_room(whole, align).map_err(refused)?;
        }
        check_nodes(options.nodes.as_deref())?;
        if options.source == Some(Source::Blocks) && options.pin == Some(true) {
            return Err(Error::NotPinned { why: blocks::WHY_NOT_PINNED.to_owned() });
        }
        let (mut notes, mut last, mut before) = (Vec::new(), None, None);
        for source in sources(options, len, &mut notes) {
            if let Some(why) = why_not_tried(source, options, before.zip(last.as_ref())) {
                notes.push(format!("{source}: not tried: {why}"));
                continue;
            }
            let built = of_source(source, options, len).and_then(|mut contig| {
                contig.asked = len;
                let mut contig = contig.shaped(options, align)?;
                contig.hold(options)?;
                contig.check_run(options.required)?;
                Ok(contig)
            });
            match built {
                Ok(mut contig) => {
                    notes.append(&mut contig.why_not_better);
                    let longest = contig.longest();
                    let preferred = options.preferred.or(options.for_runs.then_some(len));
                    if let Some(wanted) = preferred.filter(|wanted| *wanted > longest) {
                        let tried = contig.tried.iter().map(|tried| format!("; {tried}"));
                        let tried: String = tried.collect();
                        notes.push(format!(
                            "{source}: run of {wanted} sought, {longest} had{tried}"
                        ));
                    }
                    contig.why_not_better = notes;
                    return Ok(contig);
                }
                Err(error) => {
                    notes.push(format!("{source}: {error}"));
                    (before, last) = (Some(source), Some(better_word(last, error)));
                }
            }
        }
        Err(last.unwrap_or(Error::ZeroLength)) // at least one source was tried
    }
}

fn may_be_had_elsewhere(error: &Error) -> bool {
    use Error::{BlocksShort, BlocksStuck, BlocksTaken, NoBlocks, NoRoomToEvacuate};
    use Error::{EmptyNode, NotContiguous, NotHuge, Os, PoolShort, TooLarge};
    let is_of_blocks = matches!(
        error,
        NoBlocks { .. } | BlocksShort { .. } | BlocksStuck { .. } | BlocksTaken { .. }
    );
    let is_short =
        matches!(error, NotContiguous { .. } | NotHuge { .. } | PoolShort { .. } | TooLarge { .. });
    is_of_blocks || is_short || matches!(error, EmptyNode { .. } | NoRoomToEvacuate { .. } | Os(_))
}

fn sources(options: &Options, len: Bytes, notes: &mut Vec<String>) -> Vec<Source> {
    let is_for_bank = options.run(len).is_some()
        && !options.mappable
        && options.pin != Some(true)
        && blocks::has_record(&options.place);
    match (options.source, options.plan) {
        (Some(source), _) if options.bricks.is_some() && is_for_bank => {
            let is_run = len > source.page().bytes();
            let fits = super::smallest_hugetlb().map(Source::Hugetlb) == Some(source);
            let bank = (fits && is_run).then_some(Source::Blocks);
            return bank.into_iter().chain([source]).collect();
        }
        (Some(source), _) => return vec![source],
        (None, Plan::Divide) => return vec![Source::Divided],
        _ => {}
    }
    let mut sources = Vec::new();
    if is_for_bank {
        sources.push(Source::Blocks);
    }
    let sizes = super::pool_sizes();
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

fn why_not_tried(
    source: Source,
    options: &Options,
    before: Option<(Source, &Error)>,
) -> Option<String> {
    let (before, refusal) = before?;
    if options.is_too_late() {
        return Some("the time for the run that is required is over".to_owned());
    }
    let is_short = before == Source::Thp && matches!(refusal, Error::NotContiguous { .. });
    let why = "runs of transparent huge pages were too short";
    (source == Source::Plain && is_short).then(|| why.to_owned())
}

/// Refuses a required run of several pages of `source` if hidden frames prevent its proof.
fn check_provable(source: Source, required: Option<Bytes>) -> Result<(), Error> {
    let longest = source.page().bytes();
    let is_plain = matches!(source, Source::Hugetlb(_) | Source::Thp | Source::Plain);
    match required.filter(|wanted| is_plain && *wanted > longest && !frames_visible()) {
        None => Ok(()),
        Some(wanted) => {
            let why = "page frames are hidden from this process; CAP_SYS_ADMIN shows them";
            Err(Error::NotContiguous { wanted, longest, tried: Some(why.to_owned()) })
        }
    }
}

fn of_source(source: Source, options: &Options, len: Bytes) -> Result<Contig, Error> {
    let available = Bytes::new(isize::MAX.unsigned_abs() as u64);
    let page = source.rounds_to();
    let unit = options.brick_of(page).map_or(page, |brick| brick.each);
    let whole = len.pages_up(unit).checked_bytes(unit).filter(|whole| *whole <= available);
    let len = whole.ok_or(Error::too_large(len, available))?;
    check_provable(source, options.required)?;
    match source {
        Source::Hugetlb(size) => hugetlb::build(options, len, size),
        Source::Blocks => blocks::build(options, len),
        _ if options.bricks.is_some() => {
            Err(Error::NoSuchSize { size: page, listed: pools::sizes() })
        }
        Source::Thp => ordinary::transparent(options, len),
        Source::Plain => ordinary::plain(options, len),
        Source::DmaHeap => ordinary::dma_heap(options, len),
        Source::Divided => {
            // Each part only prefers a required run, because another part may hold the run.
            let preferred = options.required.max(options.preferred);
            let of_part = &Options { required: None, preferred, ..options.clone() };
            assemble::build(len, |source, len| of_source(source, of_part, len))
        }
    }
}

fn check_nodes(nodes: Option<&[Node]>) -> Result<(), Error> {
    nodes.map_or(Ok(()), |nodes| check_among(nodes, numa::online(), numa::with_memory()))
}

fn check_among(nodes: &[Node], online: Vec<Node>, with_memory: Vec<Node>) -> Result<(), Error> {
    if nodes.is_empty() {
        return Err(Error::NoNodes { with_memory });
    }
    for node in nodes.iter().copied() {
        if !online.contains(&node) {
            return Err(Error::NoSuchNode { node, online });
        }
        if !with_memory.contains(&node) {
            return Err(Error::EmptyNode { node, with_memory });
        }
    }
    Ok(())
}

fn checked_align(align: Bytes) -> Result<PageSize, Error> {
    match align.get() {
        0 => Ok(page_size()),
        _ => PageSize::new(align.get()).ok_or(Error::BadAlign { align }),
    }
}

impl Contig {
    fn longest(&self) -> Bytes {
        self.longest_run().bytes(page_size())
    }

    fn shaped(mut self, options: &Options, align: PageSize) -> Result<Self, Error> {
        let page = page_size();
        let needed = self.asked.pages_up(page);
        let is_long = needed.bytes(page) < self.len();
        if options.plan == Plan::RoundUp && is_long && self.source() == Source::Thp {
            self.mapping.shorten(needed.bytes(page))?;
            let kept = Extent::new(0, needed.get()).expect("a mapping is never empty");
            self.parts[0].pages = kept;
            let cut = |run: &Run| run.pages.intersection(kept).map(|pages| Run { pages, ..*run });
            self.runs = self.runs.iter().filter_map(cut).collect();
        }
        let Some(at) = options.at.filter(|at| *at != self.mapping.addr()) else {
            return Ok(Self { mapping: self.mapping.aligned_to(align)?, ..self });
        };
        let mapping = self.mapping.moved_to_free(at)?;
        match at % align.bytes().as_usize() {
            0 => Ok(Self { mapping, ..self }),
            _ => Err(Error::BadAlign { align: align.bytes() }),
        }
    }

    /// A pin may move pages, so the runs are read again.
    fn hold(&mut self, options: &Options) -> Result<(), Error> {
        if self.blocks.is_some() {
            self.why_not_pinned = Some(blocks::WHY_NOT_PINNED.to_owned());
            return Ok(());
        }
        let unless_asked = self.held_by() == HeldBy::Nothing && !options.is_of_files();
        if !options.pin.unwrap_or(unless_asked) {
            return Ok(());
        }
        match Pin::new(&self.mapping) {
            Ok(pin) => {
                self.pin = Some(pin);
                if self.proof == Proof::Frames {
                    (self.runs, self.proof) = runs::read_parts(&self.mapping, &self.parts)?;
                }
            }
            Err(error) if options.pin == Some(true) => {
                let helps = "a larger RLIMIT_MEMLOCK, CAP_IPC_LOCK or io_uring";
                return Err(Error::NotPinned { why: format!("{error}; {helps}") });
            }
            Err(error) => self.why_not_pinned = Some(error.to_string()),
        }
        Ok(())
    }

    fn check_run(&mut self, required: Option<Bytes>) -> Result<(), Error> {
        let longest = self.longest();
        match required.filter(|wanted| *wanted > longest) {
            Some(wanted) => Err(Error::NotContiguous { wanted, longest, tried: self.tried.take() }),
            None => Ok(()),
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_are_not_there_or_empty_are_refused_with_those_that_are() {
        let said = |nodes: &[u32]| {
            let nodes: Vec<Node> = nodes.iter().copied().map(Node).collect();
            let refused =
                check_among(&nodes, vec![Node(0), Node(1), Node(2)], vec![Node(0), Node(2)]);
            refused.map_err(|error| error.to_string())
        };
        assert_eq!((said(&[2]), said(&[0, 2])), (Ok(()), Ok(())));
        let refused = |nodes| said(nodes).unwrap_err();
        assert_eq!(refused(&[0, 3]), "node 3 is not online; those that are: 0, 1, 2");
        assert_eq!(refused(&[0, 1]), "node 1 has no memory; those that have some: 0, 2");
        let none = refused(&[]);
        assert!(none.starts_with("a set of no NUMA node") && none.ends_with(": 0, 2"), "{none}");
        let none = Contig::options().nodes([]).build(Bytes::new(1));
        assert!(matches!(none, Err(Error::NoNodes { .. })), "{none:?}");
    }
}
