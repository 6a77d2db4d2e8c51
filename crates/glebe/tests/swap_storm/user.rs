//! [`serve`] executes steps that the test's process sends, and returns what the steps read. The
//! test kills the process of `serve`.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use super::*;

pub const STEP: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum What {
    ReadObject,
    /// Inserts the object, or reads and overwrites it.
    WriteObject,
    TakeObject,
    StorePage,
    LoadPage,
    TakePage,
    DropPage,
    ReadRegion,
    WriteRegion,
    /// Reads and overwrites the page by plain loads and stores.
    TouchRegion,
    PinRegion,
}

impl What {
    pub const ALL: [Self; 11] = [
        Self::ReadObject,
        Self::WriteObject,
        Self::TakeObject,
        Self::StorePage,
        Self::LoadPage,
        Self::TakePage,
        Self::DropPage,
        Self::ReadRegion,
        Self::WriteRegion,
        Self::TouchRegion,
        Self::PinRegion,
    ];

    pub fn is_of_region(self) -> bool {
        self as u8 >= Self::ReadRegion as u8
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub what: What,
    pub at: u32,
    pub version: u64,
}

impl Step {
    pub fn to_bytes(self) -> [u8; STEP] {
        let mut bytes = [0; STEP];
        bytes[0] = self.what as u8;
        bytes[4..8].copy_from_slice(&self.at.to_le_bytes());
        bytes[8..].copy_from_slice(&self.version.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        Self {
            what: What::ALL[usize::from(bytes[0])],
            at: u32::from_le_bytes(bytes[4..8].try_into().unwrap()),
            version: u64::from_le_bytes(bytes[8..16].try_into().unwrap()),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Refused,
    Done,
    Absent,
    Read(Vec<u8>),
}

impl Answer {
    fn put(&self, to: &mut Vec<u8>) {
        let (kind, bytes) = match self {
            Self::Refused => (0, &[][..]),
            Self::Done => (1, &[][..]),
            Self::Absent => (2, &[][..]),
            Self::Read(bytes) => (3, &bytes[..]),
        };
        to.push(kind);
        to.extend((bytes.len() as u32).to_le_bytes());
        to.extend(bytes);
    }

    pub fn get(from: &mut impl Read) -> io::Result<Self> {
        let mut head = [0; 5];
        from.read_exact(&mut head)?;
        let mut bytes = vec![0; u32::from_le_bytes(head[1..].try_into().unwrap()) as usize];
        from.read_exact(&mut bytes)?;
        Ok(match head[0] {
            0 => Self::Refused,
            1 => Self::Done,
            2 => Self::Absent,
            _ => Self::Read(bytes),
        })
    }

    fn of<T>(result: Result<T, SwapError>, done: impl FnOnce(T) -> Self) -> Self {
        kept(result).map_or(Self::Refused, done)
    }
}

pub fn len_of(at: u32) -> usize {
    1 + (mix(at.into()) % (5 * page() as u64)) as usize
}

struct Hand<'a> {
    storm: &'a Storm,
    whose: u64,
    keys: Vec<Option<Key>>,
}

impl Hand<'_> {
    fn make(&mut self, step: Step) -> Answer {
        match step.what {
            What::ReadObject | What::WriteObject | What::TakeObject => self.object(step),
            what if what.is_of_region() => self.region(step),
            _ => self.page(step),
        }
    }

    fn object(&mut self, Step { what, at, version }: Step) -> Answer {
        let (store, key) = (&self.storm.store, &mut self.keys[at as usize]);
        let new = || bytes_of(version, len_of(at));
        match (what, *key) {
            (What::WriteObject, None) => Answer::of(store.insert(&new()), |made| {
                *key = Some(made);
                Answer::Done
            }),
            (_, None) => Answer::Absent,
            (What::WriteObject, Some(key)) => Answer::of(store.pin_mut(key), |mut object| {
                let was = object.to_vec();
                object.copy_from_slice(&new());
                Answer::Read(was)
            }),
            (What::TakeObject, Some(made)) => Answer::of(store.take(made), |bytes| {
                *key = None;
                Answer::Read(bytes)
            }),
            (_, Some(key)) => Answer::of(store.pin(key), |object| Answer::Read(object.to_vec())),
        }
    }

    fn place(&self, at: u32) -> u64 {
        u64::from(at) * THREADS + self.whose
    }

    fn page(&self, Step { what, at, version }: Step) -> Answer {
        let (area, offset, mut out) = (&self.storm.area, self.place(at), vec![0; page()]);
        let found = match what {
            What::StorePage => {
                let stored = area.store(offset, &bytes_of(version, page()));
                return Answer::of(stored, |()| Answer::Done);
            }
            What::DropPage => area.invalidate_page(offset).map(|was| (was, false)),
            What::TakePage => area.take(offset, &mut out).map(|was| (was, true)),
            _ => area.load(offset, &mut out).map(|is_there| (is_there, true)),
        };
        Answer::of(found, |found| match found {
            (false, _) => Answer::Absent,
            (true, false) => Answer::Done,
            (true, true) => Answer::Read(out),
        })
    }

    fn region(&self, Step { what, at, version }: Step) -> Answer {
        let Some(region) = &self.storm.region else { return Answer::Refused };
        let (offset, mut out) = (pages(self.place(at)), vec![0; page()]);
        match what {
            What::ReadRegion => {
                let read = region.read_at(offset, &mut out);
                Answer::of(read, |()| Answer::Read(out))
            }
            What::WriteRegion => {
                let written = region.write_at(offset, &bytes_of(version, page()));
                Answer::of(written, |()| Answer::Done)
            }
            What::PinRegion => Answer::of(region.resident(offset, pages(1)), |mut guard| {
                out.copy_from_slice(&guard);
                guard.copy_from_slice(&bytes_of(version, page()));
                Answer::Read(out)
            }),
            _ => {
                let first = region.as_ptr().wrapping_add(offset.as_usize()).cast::<u64>();
                let new = bytes_of(version, page());
                for (at, (word, new)) in out.chunks_mut(8).zip(new.chunks(8)).enumerate() {
                    let place = first.wrapping_add(at);
                    // SAFETY: the word is in a live region, in this thread's page.
                    unsafe {
                        word.copy_from_slice(&place.read_volatile().to_ne_bytes());
                        place.write_volatile(u64::from_ne_bytes(new.try_into().unwrap()));
                    }
                }
                Answer::Read(out)
            }
        }
    }
}

pub fn serve(storm: &Storm, whose: u64, mut asked: UnixStream) {
    let mut hand = Hand { storm, whose, keys: vec![None; OBJECTS] };
    let mut count = [0; 4];
    while asked.read_exact(&mut count).is_ok() {
        let mut steps = vec![0; u32::from_le_bytes(count) as usize * STEP];
        if asked.read_exact(&mut steps).is_err() {
            return;
        }
        let mut answers = Vec::new();
        for step in steps.chunks(STEP) {
            hand.make(Step::from_bytes(step)).put(&mut answers);
        }
        if asked.write_all(&answers).is_err() {
            return;
        }
    }
}
