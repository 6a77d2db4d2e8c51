//! [`live`] makes and fills an object pool, removes objects, compacts, and changes the size
//! classes.

use glebe::units::{Bytes, Pages};
use glebe::zpool::{Budget, Handle, ObjectPool, Rules, Table};

use super::Outcome;

const OBJECTS: usize = 600;
const LIMIT: Bytes = Bytes::mib(4);

fn bytes_of(n: usize) -> Vec<u8> {
    vec![n as u8; 100 + n * 37 % 3000]
}

fn look(pool: &ObjectPool, handles: &[(usize, Handle)]) {
    for (n, handle) in handles {
        assert_eq!(*pool.get(*handle).expect("an object is gone"), *bytes_of(*n), "object {n}");
    }
}

pub fn live() -> Outcome {
    let pool = ObjectPool::options().limit(LIMIT).build()?;
    let (mut handles, mut error) = (Vec::new(), None);
    for n in 0..OBJECTS {
        match pool.insert(&bytes_of(n)) {
            Ok(handle) => handles.push((n, handle)),
            Err(refused) => error = error.or(Some(refused)),
        }
    }
    look(&pool, &handles);
    for (n, handle) in handles.iter().skip(1).step_by(3) {
        pool.remove(*handle).unwrap_or_else(|error| panic!("object {n}: {error}"));
    }
    handles = handles
        .into_iter()
        .enumerate()
        .filter(|(at, _)| at % 3 != 1)
        .map(|(_, kept)| kept)
        .collect();
    pool.compact(Budget::All)?;
    look(&pool, &handles);
    let rules = Rules { chain: Pages::new(2), ..*pool.table().rules() };
    pool.set_table(&Table::by_rules(&rules)?)?;
    pool.compact(Budget::All)?;
    look(&pool, &handles);
    pool.stats().check()?;
    for (n, handle) in handles {
        pool.remove(handle).unwrap_or_else(|error| panic!("object {n}: {error}"));
    }
    pool.stats().check()?;
    assert_eq!((pool.stats().used_pages, pool.stats().objects), (0, 0));
    error.map_or(Ok(()), |error| Err(error.into()))
}
