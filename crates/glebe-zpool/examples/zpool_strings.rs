//! Stores short texts in an object pool, each text once, under a handle of 8 bytes. The example
//! drops most texts at random. Compaction gathers the others and returns memory to the system;
//! every handle stays valid.

use std::collections::hash_map::{DefaultHasher, Entry, HashMap};
use std::fs;
use std::hash::{Hash, Hasher};
use std::io::Write;
use std::time::Instant;

use glebe_zpool::page_size;
use glebe_zpool::units::{Bytes, Pages};
use glebe_zpool::{Budget, Codec, Compaction, Error, Handle, ObjectPool};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const STRINGS: u64 = 300_000;
const STRINGS_PER_KEPT: u64 = 10;

struct Strings {
    pool: ObjectPool,
    /// Maps a text's hash to its handle and number of uses. Another text with an equal hash is
    /// stored anew.
    shared: HashMap<u64, (Handle, u32)>,
}

fn hash(text: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

impl Strings {
    fn new() -> Result<Self, Error> {
        let pool =
            ObjectPool::options().compaction(Compaction::Manual).codec(Codec::None).build()?;
        Ok(Self { pool, shared: HashMap::with_capacity(STRINGS as usize) })
    }

    fn intern(&mut self, text: &str) -> Result<Handle, Error> {
        match self.shared.entry(hash(text.as_bytes())) {
            Entry::Vacant(place) => {
                let handle = self.pool.insert(text.as_bytes())?;
                place.insert((handle, 1));
                Ok(handle)
            }
            Entry::Occupied(mut place) => {
                let (handle, uses) = place.get_mut();
                if *self.pool.get(*handle)? == *text.as_bytes() {
                    *uses += 1;
                    return Ok(*handle);
                }
                self.pool.insert(text.as_bytes())
            }
        }
    }

    fn drop_one(&mut self, handle: Handle) -> Result<(), Error> {
        let hash = hash(&self.pool.get(handle)?);
        if let Entry::Occupied(mut place) = self.shared.entry(hash) {
            let (shared, uses) = place.get_mut();
            if *shared == handle {
                *uses -= 1;
                if *uses > 0 {
                    return Ok(());
                }
                place.remove();
            }
        }
        self.pool.remove(handle)
    }

    fn is(&self, handle: Handle, text: &str) -> bool {
        self.pool.get(handle).is_ok_and(|bytes| *bytes == *text.as_bytes())
    }
}

fn text(nth: u64) -> String {
    let mixed = nth.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut text = format!("/{nth}/{mixed:x}");
    for part in 0..mixed >> 32 & 7 {
        text += ["/user", "/session", "?page=", "&order=descending", "#"][(part % 5) as usize];
        text += &(mixed.rotate_left(9 * part as u32) >> 20).to_string();
    }
    text
}

fn resident() -> Outcome<u64> {
    let statm = fs::read_to_string("/proc/self/statm")?;
    let pages = statm.split_whitespace().nth(1).ok_or("statm has a second column")?;
    Ok(Pages::new(pages.parse()?).bytes(page_size()).get())
}

fn report(when: &str, strings: &Strings) -> Outcome<u64> {
    let mut out = std::io::stdout();
    let (stats, resident) = (strings.pool.stats(), resident()?);
    stats.check()?;
    writeln!(
        out,
        "{when}: {} strings of {} in {}, {:.1} % beyond them, {:.1} % without metadata; \
         resident {}",
        stats.objects,
        Bytes::new(stats.stored_bytes),
        Bytes::new(stats.held_bytes),
        100.0 * stats.overhead(),
        100.0 * stats.overhead_of_pages(),
        Bytes::new(resident),
    )?;
    Ok(resident)
}

fn main() -> Outcome<()> {
    let mut out = std::io::stdout();
    let mut strings = Strings::new()?;
    let mut handles = Vec::with_capacity(STRINGS as usize);
    for nth in 0..STRINGS {
        handles.push(strings.intern(&text(nth))?);
    }
    assert_eq!(strings.intern(&text(7))?, handles[7]);
    strings.drop_one(handles[7])?;
    assert!(strings.is(handles[7], &text(7)));
    report("full", &strings)?;

    let mut kept = Vec::new();
    for (nth, &handle) in (0..).zip(&handles) {
        let random = hash(&u64::to_le_bytes(nth));
        if random % STRINGS_PER_KEPT == 0 {
            kept.push((nth, handle));
        } else {
            strings.drop_one(handle)?;
            assert!(matches!(strings.pool.get(handle), Err(Error::Stale)), "it is gone");
        }
    }
    let before = report("most dropped", &strings)?;
    let wasted = strings.pool.stats().overhead_of_pages();

    let (freeable, start) = (strings.pool.freeable(), Instant::now());
    let done = strings.pool.compact(Budget::All)?;
    writeln!(out, "{} strings moved, {} freed in {:.1?}", done.moved, done.freed, start.elapsed())?;
    let after = report("compacted", &strings)?;

    // The estimate leaves out some size classes that compaction empties too.
    assert!(done.freed >= freeable, "as much as was said before is freed");
    let freed = done.freed.bytes(page_size()).get();
    assert!(before.saturating_sub(after) > freed / 2, "the memory is the system's again");
    let tight = strings.pool.stats().overhead_of_pages();
    assert!(wasted > 3.0 && tight < 0.25, "{wasted} wasted, {tight} then");
    assert!(kept.iter().all(|&(nth, handle)| strings.is(handle, &text(nth))), "handles are good");
    Ok(())
}
