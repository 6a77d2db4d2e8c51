//! Uses a whole reserve, for several tests.

use glebe::page_size;
use glebe::reserve::{Put, Request, Reserve};

pub fn use_all(reserve: &Reserve) {
    let all = Request::new(reserve.len()).any();
    let mut block = reserve.alloc(all).unwrap();
    block.bytes_mut().unwrap().fill(0xa5);
    assert!(block.bytes().unwrap().iter().all(|byte| *byte == 0xa5));
    drop(block);
    let pool = reserve.page_cache().namespace("all").unwrap();
    let page = vec![0x5a; page_size().bytes().as_usize()];
    for index in 0..reserve.len().get() {
        assert_eq!(pool.put(1, index, &page).unwrap(), Put::Stored);
    }
    reserve.stats().check().unwrap();
}
