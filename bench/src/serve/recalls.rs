//! First-class blocks taken inside glebe's server, again and again, while a client reads: how long
//! they take, what the client misses, and that what it reads is what it stored.
//!
//! A value has its key and version in each of its words. What is missed is stored again.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use glebe::units::Bytes;
use glebe_serve::server::ask_control;

use super::load::{connect, Op};
use super::peer::{Peer, Who};
use crate::clock::{micros, wall};
use crate::interrupt::Stop;
use crate::report::Report;
use crate::reserve::keyed::{mix, Random};
use crate::turns::{rounds, NO_END};
use crate::Outcome;

/// Memory of the server, in MiB; the values take most of it.
const MIB: u64 = 256;
const BLOCK: Bytes = Bytes::mib(125);
const EVERY: Duration = Duration::from_millis(500);
/// How long a block is held.
const HELD: Duration = Duration::from_millis(100);
const KEYS: u64 = 200_000;
const SIZE: usize = 1000;
/// Requests at once.
const DEPTH: u64 = 64;

pub(super) fn measure(report: &mut Report) -> Outcome {
    let peer = Peer::start(Who::Glebe, MIB, 2)?;
    let mut reader = Reader::new(connect(peer.port)?)?;
    (0..KEYS).try_for_each(|key| reader.store(key))?;
    reader.wait()?;
    let (blocks, requests) = report.plan((4, 0), (200, 10_000_000));
    let stop = AtomicBool::new(false);
    let (seen, taken) = std::thread::scope(|scope| {
        let over = Stop(&stop);
        let clients = scope.spawn(|| reader.read_until(&stop, requests));
        let mut taken = Vec::new();
        for _ in rounds("serve, recalls", blocks, NO_END) {
            let begin = wall();
            let asked = ask_control(&peer.control, BLOCK.get(), HELD, |recalled| {
                taken.push((recalled.bytes >= BLOCK.get()).then(|| micros(recalled.took)));
            });
            if asked.is_err() {
                taken.push(None);
            }
            std::thread::sleep((begin + EVERY).saturating_sub(wall()));
        }
        drop(over);
        let seen = clients.join().map_err(|_| "the client panicked")??;
        Outcome::Ok((seen, taken))
    })?;
    let us: Vec<f64> = taken.iter().flatten().copied().collect();
    report.row("recall_125m", Who::Glebe.name(), "us", &us);
    report.check("failures", (taken.len() - us.len()) as u64);
    report.check("wrong_bytes", seen.wrong);
    let share = seen.hits as f64 / seen.requests as f64;
    report.add("hit_under_recall", Who::Glebe.name(), "of requests", share);
    Ok(())
}

/// What a client saw.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    requests: u64,
    hits: u64,
    /// Values that were not those of their key.
    wrong: u64,
}

/// A client that knows what it stored.
struct Reader {
    stream: BufReader<TcpStream>,
    request: Vec<u8>,
    value: Vec<u8>,
    line: Vec<u8>,
}

impl Reader {
    fn new(stream: TcpStream) -> Outcome<Self> {
        let (request, value, line) = <(Vec<u8>, Vec<u8>, Vec<u8>)>::default();
        Ok(Self { stream: BufReader::with_capacity(1 << 18, stream), request, value, line })
    }

    /// Stores the value of a key, without an answer.
    fn store(&mut self, key: u64) -> Outcome {
        self.request.clear();
        let head = format!("set key{key:08} 0 0 {SIZE} noreply\r\n");
        self.request.extend_from_slice(head.as_bytes());
        self.request.extend_from_slice(&value_of(key));
        self.request.extend_from_slice(b"\r\n");
        Ok(self.stream.get_mut().write_all(&self.request)?)
    }

    /// Waits until all that was sent is done.
    fn wait(&mut self) -> Outcome {
        self.stream.get_mut().write_all(b"mn\r\n")?;
        match self.line()? {
            b"MN\r\n" => Ok(()),
            other => Err(format!("{:?} for mn", String::from_utf8_lossy(other)).into()),
        }
    }

    fn line(&mut self) -> Outcome<&[u8]> {
        self.line.clear();
        self.stream.read_until(b'\n', &mut self.line)?;
        Ok(&self.line)
    }

    /// Reads keys at random until it is told to stop and has asked for `least`.
    fn read_until(&mut self, stop: &AtomicBool, least: u64) -> Outcome<Seen> {
        let (mut seen, mut random) = (Seen::default(), Random::new(5));
        while !stop.load(Ordering::Relaxed) || seen.requests < least {
            crate::interrupt::check();
            let keys: Vec<u64> = (0..DEPTH).map(|_| random.below(KEYS)).collect();
            self.request.clear();
            keys.iter().for_each(|key| Op::Get.ask(*key, &[], &mut self.request));
            let request = std::mem::take(&mut self.request);
            self.stream.get_mut().write_all(&request)?;
            self.request = request;
            let mut missed = Vec::new();
            for key in keys {
                seen.requests += 1;
                match self.answer(key)? {
                    Some(is_right) => {
                        seen.hits += 1;
                        seen.wrong += u64::from(!is_right);
                    }
                    None => missed.push(key),
                }
            }
            missed.into_iter().try_for_each(|key| self.store(key))?;
        }
        Ok(seen)
    }

    /// Whether the value of a key is right; `None` for a miss.
    fn answer(&mut self, key: u64) -> Outcome<Option<bool>> {
        let line = self.line()?;
        if line == b"END\r\n" {
            return Ok(None);
        }
        let is_of_key = line == format!("VALUE key{key:08} 0 {SIZE}\r\n").as_bytes();
        if !line.starts_with(b"VALUE ") {
            return Err(format!("{:?} for a get", String::from_utf8_lossy(line)).into());
        }
        self.value.resize(SIZE + "\r\nEND\r\n".len(), 0);
        self.stream.read_exact(&mut self.value)?;
        Ok(Some(is_of_key && self.value[..SIZE] == value_of(key)))
    }
}

/// Words that only this key's value has.
fn value_of(key: u64) -> Vec<u8> {
    let words = (0..SIZE as u64 / 8).flat_map(|at| mix(key << 16 | at).to_ne_bytes());
    words.collect()
}
