//! [`Reader`] reads in a thread of its own, because processes and the kernel may answer late.

use std::sync::mpsc::{channel, Receiver, Sender};
use std::thread;

use super::bank::Bank;
use super::look::Look;
use crate::contig;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Look,
    /// The map of physical memory.
    Map,
}

pub enum Told {
    Look(Box<Look>),
    Map(String),
}

pub struct Reader {
    ask: Sender<Wanted>,
    told: Receiver<Told>,
    /// What has no answer yet.
    asked: Vec<Wanted>,
}

impl Reader {
    pub fn start() -> Self {
        let (ask, wanted) = channel();
        let (tell, told) = channel();
        thread::spawn(move || {
            let mut bank = Bank::default();
            wanted.iter().all(|wanted| tell.send(read(wanted, &mut bank)).is_ok())
        });
        Self { ask, told, asked: Vec::new() }
    }

    pub fn has_asked(&self, wanted: Wanted) -> bool {
        self.asked.contains(&wanted)
    }

    pub fn is_busy(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Asks, if no answer to the same question is on its way.
    pub fn ask(&mut self, wanted: Wanted) {
        if !self.has_asked(wanted) && self.ask.send(wanted).is_ok() {
            self.asked.push(wanted);
        }
    }

    pub fn told(&mut self) -> Option<Told> {
        let told = self.told.try_recv().ok()?;
        let of = match told {
            Told::Look(_) => Wanted::Look,
            Told::Map(_) => Wanted::Map,
        };
        self.asked.retain(|asked| *asked != of);
        Some(told)
    }
}

fn read(wanted: Wanted, bank: &mut Bank) -> Told {
    match wanted {
        Wanted::Look => Told::Look(Box::new(Look::now(bank))),
        Wanted::Map => {
            Told::Map(contig::map_text().unwrap_or_else(|error| format!("no map: {error}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use glebe_testing::time::wait_until;

    use super::*;

    #[test]
    fn each_question_has_one_answer() {
        let mut reader = Reader::start();
        reader.ask(Wanted::Map);
        reader.ask(Wanted::Map);
        assert!(reader.is_busy() && reader.has_asked(Wanted::Map));
        assert!(!reader.has_asked(Wanted::Look));
        let mut map = None;
        wait_until("a map", Duration::from_secs(60), || {
            map = reader.told();
            map.is_some()
        });
        assert!(matches!(map, Some(Told::Map(text)) if !text.is_empty()));
        assert!(!reader.is_busy());
        reader.ask(Wanted::Look);
        wait_until("a look", Duration::from_secs(60), || reader.told().is_some());
        assert!(reader.told().is_none());
    }
}
