//! A scratch arena on volatile memory. The end of a request marks the arena's memory instead of
//! freeing it. Unless memory was short, the next request finds most pages still there, without page
//! faults.

use std::io::Write;

use glebe_volatile::units::{Bytes, Pages};
use glebe_volatile::{Priority, Region};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const REQUESTS: u32 = 50;
const CHUNK: Bytes = Bytes::new(256 << 10);

struct Arena {
    region: Region,
    used: Bytes,
    safe: Bytes,
    lost: Pages,
}

impl Arena {
    fn new(len: Bytes) -> Outcome<Self> {
        let region = Region::new(len)?;
        let safe = region.len();
        Ok(Self { region, used: Bytes::ZERO, safe, lost: Pages::ZERO })
    }

    fn put(&mut self, bytes: &[u8]) -> Outcome<Bytes> {
        let (at, end) = (self.used, self.used + Bytes::new(bytes.len() as u64));
        if end > self.region.len() {
            return Err(format!("the arena of {} is full", self.region.len()).into());
        }
        while end > self.safe {
            let next = (self.safe + CHUNK).min(self.region.len());
            // An arena needs no old contents; kept pages only save page faults.
            self.lost = self.lost + self.region.unmark(self.safe..next)?.pages();
            self.safe = next;
        }
        self.region.write(at, bytes)?;
        self.used = end;
        Ok(at)
    }

    fn get(&self, at: Bytes, bytes: &mut [u8]) -> Outcome<()> {
        Ok(self.region.read(at, bytes)?)
    }

    fn reset(&mut self) -> Outcome<()> {
        self.region.mark(Bytes::ZERO..self.safe, Priority::NORMAL)?;
        (self.used, self.safe) = (Bytes::ZERO, Bytes::ZERO);
        Ok(())
    }
}

fn serve(arena: &mut Arena, text: &str, copies: u32) -> Outcome<Bytes> {
    let mut places = Vec::new();
    for _ in 0..copies {
        for word in text.split_whitespace() {
            places.push((arena.put(word.as_bytes())?, word.len()));
        }
    }
    let read = |&(at, len): &(Bytes, usize)| {
        let mut word = vec![0; len];
        arena.get(at, &mut word).map(|()| word)
    };
    let mut words = places.iter().map(read).collect::<Outcome<Vec<_>>>()?;
    words.sort();
    let mut expected: Vec<_> = text.split_whitespace().map(str::as_bytes).collect();
    expected.sort_unstable();
    let all = expected.iter().flat_map(|word| std::iter::repeat_n(word, copies as usize));
    assert!(words.iter().map(Vec::as_slice).eq(all.copied()), "scratch memory holds what was put");
    Ok(arena.used)
}

fn main() -> Outcome<()> {
    let mut out = std::io::stdout();
    let text = include_str!("volatile_arena.rs").repeat(10);
    let mut arena = Arena::new(Bytes::mib(8))?;
    let mut most = Bytes::ZERO;
    for request in 0..REQUESTS {
        most = most.max(serve(&mut arena, &text, 1 + request % 40)?);
        arena.reset()?;
        if request % 10 == 9 {
            // Imitates a kernel short of memory.
            arena.region.drop_now(Bytes::ZERO..CHUNK)?;
        }
    }
    let stats = arena.region.stats();
    stats.check()?;
    writeln!(out, "{REQUESTS} requests, at most {most} each, engine {}", arena.region.engine())?;
    writeln!(out, "pages found again {}, lost {}", stats.rescued, arena.lost)?;
    assert!(arena.lost > Pages::ZERO, "what was dropped is told");
    assert!(stats.rescued > stats.purged, "most of the memory was there again");
    Ok(())
}
