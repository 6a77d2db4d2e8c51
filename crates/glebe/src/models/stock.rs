//! Models a stock that gives each page to one taker.

use std::sync::Arc;

use loom::thread;

use super::explore;
use crate::reserve::stock::Stock;
use glebe_os::extent::Extent;

#[test]
fn a_page_of_the_stock_goes_to_one_taker() {
    explore(3, || {
        let stock = Arc::new(Stock::new());
        let one = |page| Extent::new(page, 1).expect("one page");
        assert!(stock.fill(one(31)) && stock.fill(one(32)));
        let taker = |stock: Arc<Stock>| {
            move || {
                let first = stock.take();
                let back = first.is_some_and(|page| stock.put_back(page));
                (first.filter(|_| !back), stock.take())
            }
        };
        let other = thread::spawn(taker(Arc::clone(&stock)));
        let drained: Vec<u64> = stock.drain().flat_map(|run| run.start()..run.end()).collect();
        let refilled = drained.first().is_some_and(|page| stock.fill(one(*page)));
        let mine = stock.take();
        let (kept, last) = other.join().expect("no panic");
        let left = stock.drain().flat_map(|run| run.start()..run.end());
        let drained = drained.into_iter().skip(usize::from(refilled));
        let mut pages: Vec<u64> = left.chain(drained).chain(mine).chain(kept).chain(last).collect();
        pages.sort_unstable();
        assert_eq!(pages, [31, 32]);
    });
}
