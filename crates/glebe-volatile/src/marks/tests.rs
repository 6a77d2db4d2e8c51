//! Tests the range map and the bitmap against a list of pages.

use proptest::prelude::*;

use super::*;

const PAGES: u64 = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Page {
    priority: Priority,
    order: u64,
    since: Duration,
    dropped: bool,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Insert(Extent, u8),
    Remove(Extent),
    Drop(Extent),
    Renew(Extent),
    DropFirst,
    DropAged(u64),
}

fn extents() -> impl Strategy<Value = Extent> {
    (0..PAGES, 1..80_u64)
        .prop_map(|(start, len)| Extent::new(start, len.min(PAGES - start)).unwrap())
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (extents(), 0..=7_u8).prop_map(|(extent, priority)| Step::Insert(extent, priority)),
        3 => extents().prop_map(Step::Remove),
        1 => extents().prop_map(Step::Drop),
        1 => extents().prop_map(Step::Renew),
        1 => Just(Step::DropFirst),
        1 => (0..20_u64).prop_map(Step::DropAged),
    ]
}

type Pages = Vec<Option<Page>>;

fn runs(pages: &Pages, within: Extent, is: impl Fn(&Option<Page>) -> bool) -> Vec<Extent> {
    let mut runs = Vec::new();
    for at in within.start()..within.end() {
        if is(&pages[at as usize]) {
            push(&mut runs, Extent::new(at, 1).unwrap());
        }
    }
    runs
}

fn held(page: &Option<Page>) -> bool {
    page.is_some_and(|page| !page.dropped)
}

fn drop_in(pages: &mut Pages, extent: Extent) {
    for page in pages[extent.start() as usize..extent.end() as usize].iter_mut().flatten() {
        page.dropped = true;
    }
}

fn goes_first(pages: &Pages, first: Option<Extent>) -> bool {
    let key = |page: &Page| (page.priority, page.order);
    let least = pages.iter().flatten().filter(|page| !page.dropped).map(key).min();
    let found = first.map(|first| {
        let own = &pages[first.start() as usize..first.end() as usize];
        assert!(own.iter().all(|page| held(page) && key(&page.unwrap()) == key(&own[0].unwrap())));
        key(&own[0].unwrap())
    });
    found == least
}

proptest! {
    #[test]
    fn marks_agree_with_a_list_of_pages(steps in proptest::collection::vec(steps(), 1..60)) {
        let (mut marks, mut pages): (_, Pages) = (Marks::new(true), vec![None; PAGES as usize]);
        let bitmap = Bitmap::new(PAGES);
        let everything = Extent::new(0, PAGES).unwrap();
        for (i, step) in steps.into_iter().enumerate() {
            let now = Duration::from_secs(i as u64);
            match step {
                Step::Insert(extent, priority) => {
                    let priority = Priority::new(priority).unwrap();
                    let new = marks.insert(extent, priority, now);
                    prop_assert_eq!(new.to_vec(), runs(&pages, extent, |page| page.is_none()));
                    let order = i as u64;
                    for page in &mut pages[extent.start() as usize..extent.end() as usize] {
                        page.get_or_insert(Page { priority, order, since: now, dropped: false });
                    }
                    new.iter().for_each(|part| bitmap.set(*part));
                }
                Step::Remove(extent) => {
                    let marked = runs(&pages, extent, |page| page.is_some());
                    prop_assert_eq!(marks.within(extent).to_vec(), marked.clone());
                    marks.remove(extent);
                    pages[extent.start() as usize..extent.end() as usize].fill(None);
                    marked.iter().for_each(|part| bitmap.clear(*part));
                }
                Step::Drop(extent) => {
                    prop_assert_eq!(marks.drop_within(extent), runs(&pages, extent, held));
                    drop_in(&mut pages, extent);
                }
                Step::Renew(extent) => {
                    marks.renew(extent, now);
                    let own = &mut pages[extent.start() as usize..extent.end() as usize];
                    for page in own.iter_mut().flatten() {
                        *page = Page { order: i as u64, since: now, dropped: false, ..*page };
                    }
                }
                Step::DropFirst => {
                    let first = marks.first_to_drop();
                    prop_assert!(goes_first(&pages, first));
                    if let Some(first) = first {
                        prop_assert_eq!(marks.drop_within(first), vec![first]);
                        drop_in(&mut pages, first);
                    }
                }
                Step::DropAged(age) => {
                    let age = Duration::from_secs(age);
                    while let Some(old) = marks.aged(age, now) {
                        prop_assert_eq!(marks.drop_within(old), vec![old]);
                        let mut own = pages[old.start() as usize..old.end() as usize].iter();
                        prop_assert!(own.all(|page| now - page.unwrap().since >= age));
                        drop_in(&mut pages, old);
                    }
                    let old = |page: &Page| !page.dropped && now - page.since >= age;
                    prop_assert!(!pages.iter().flatten().any(old));
                }
            }
            marks.check_invariants();
            let marked = runs(&pages, everything, |page| page.is_some());
            prop_assert_eq!(marks.all().to_vec(), marked.clone());
            prop_assert_eq!(bitmap.runs_in(everything), marked.clone());
            prop_assert_eq!(bitmap.first_in(everything), marked.first().map(|run| run.start()));
            prop_assert_eq!(marks.pages(), pages.iter().flatten().count() as u64);
            let held = pages.iter().filter(|page| held(page)).count();
            prop_assert_eq!(marks.held_pages(), held as u64);
        }
    }
}

#[test]
fn bits_at_the_ends_of_words() {
    let bitmap = Bitmap::new(192);
    let set = [(0, 1), (62, 4), (127, 65)];
    for (start, len) in set {
        bitmap.set(Extent::new(start, len).unwrap());
    }
    let runs: Vec<_> = set.iter().map(|(start, len)| Extent::new(*start, *len).unwrap()).collect();
    assert_eq!(bitmap.runs_in(Extent::new(0, 192).unwrap()), runs);
    assert_eq!(bitmap.first_in(Extent::new(1, 100).unwrap()), Some(62));
    assert_eq!(bitmap.first_in(Extent::new(66, 61).unwrap()), None);
    bitmap.clear(Extent::new(0, 192).unwrap());
    assert!((0..192).all(|page| !bitmap.get(page)));
}
