//! Checks the invariants of the table.

use super::*;

impl<K: Hash + Eq, V> Table<K, V> {
    pub(in crate::cache) fn check_invariants(&self) {
        let items = || self.items.iter().enumerate();
        let live = || items().filter_map(|(id, item)| Some((id, item.as_ref()?)));
        let mut pages = [0_u64; 3];
        for (id, item) in live() {
            assert_eq!(item.is_listed, self.ids.get(&item.key) == Some(&id), "item {id}");
            assert!(item.pins == 0 || item.phase == Phase::Safe, "item {id} is pinned");
            let is_marked = match item.phase {
                Phase::Marked(order) => self.marked.get(&(item.priority, order)) == Some(&id),
                _ => false,
            };
            assert_eq!(is_marked, matches!(item.phase, Phase::Marked(_)), "item {id}");
            let is_young = item.turn.is_some_and(|turn| self.young.get(&turn) == Some(&id));
            assert_eq!(is_young, item.turn.is_some(), "item {id}");
            let is_idle = item.phase == Phase::Safe && item.pins == 0;
            assert!(!is_idle || is_young, "item {id} is safe and never to be marked");
            for (sum, counts) in pages.iter_mut().zip([true, is_young, is_marked]) {
                *sum += if counts { item.pages() } else { 0 };
            }
            let place = item.place.into_iter();
            let mut others = live().filter(|(other, _)| *other != id).filter_map(|(_, o)| o.place);
            assert!(place.clone().all(|place| !others.any(|other| other.overlaps(place))));
            assert!(place.clone().all(|place| !self.free.iter().any(|free| free.overlaps(place))));
        }
        assert_eq!(pages, [self.kept_pages, self.young_pages, self.marked_pages]);
        assert!(self.kept_pages <= self.cap_pages);
        let lists = [self.ids.len(), self.young.len(), self.marked.len()];
        let sums = [
            live().filter(|(_, item)| item.is_listed).count(),
            live().filter(|(_, item)| item.turn.is_some()).count(),
            live().filter(|(_, item)| matches!(item.phase, Phase::Marked(_))).count(),
        ];
        assert_eq!(lists, sums);
        assert_eq!(live().count() + self.unused.len(), self.items.len());
    }
}
