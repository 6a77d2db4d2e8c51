//! Measures recalls in glebe's server while a client reads: their time, the client's hits, and
//! wrong bytes.
//!
//! Every word of a value depends on its key. Keys follow Zipf's law, their values are twice the
//! server's memory in a full run, and missed values are stored again. The peer is a second server,
//! without recalls, with the mean memory of the first.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use glebe::units::Bytes;
use glebe_serve::server::ask_control;

use super::load::Op;
use super::peer::{CacheServer, ServerKind};
use super::trace::Zipf;
use super::wire::connect;
use crate::clock::{micros, wall};
use crate::report::Report;
use crate::reserve::keyed::{mix, Random};
use crate::turns::{rounds, NO_END};
use crate::{interrupt, Outcome};

const BLOCK: Bytes = Bytes::mib(125);
const EVERY: Duration = Duration::from_millis(500);
const HELD: Duration = Duration::from_millis(100);
const SIZE: usize = 1000;
const DEPTH: u64 = 64;
/// Step between stored keys. `STRIDE` is coprime to the number of keys, so all are stored, in an
/// order unrelated to popularity.
const STRIDE: u64 = 7919;
const HITS: &str = "of requests";

pub(super) fn measure(report: &mut Report) -> Outcome {
    // Even a quick run has so many keys that a recall evicts some.
    let (mib, keys, requests) = report.plan((192, 150_000, 20_000), (1024, 1024 << 11, 30_000_000));
    let zipf = Zipf::new(keys);
    let glebe = ServerKind::Glebe.name();

    let peer = CacheServer::start(ServerKind::Glebe, mib, 2, false)?;
    let mut reader = Reader::filled(&peer, zipf.keys())?;
    let mut recalls = Recalls::default();
    let seen = std::thread::scope(|scope| {
        let client = scope.spawn(|| reader.read("serve, recalls", &zipf, requests));
        recalls.until(&peer, || client.is_finished());
        client.join().map_err(|_| "the client panicked")?
    })?;
    drop(peer);
    report.row("recall_125m", glebe, "us", &recalls.us);
    report.check("failures", recalls.failed);
    report.check("wrong_bytes", seen.wrong);
    report.add("hit_under_recall", glebe, HITS, seen.share());

    let taken = recalls.share_held() * BLOCK.get() as f64;
    let peer = CacheServer::start(ServerKind::Glebe, mib - (taken as u64 >> 20), 2, false)?;
    let mut reader = Reader::filled(&peer, zipf.keys())?;
    let still = reader.read("serve, without recalls", &zipf, requests)?;
    report.check("wrong_bytes", still.wrong);
    report.add("hit_at_mean_memory", glebe, HITS, still.share());
    report.ratio("hit_under_recall_vs_mean_memory", seen.share() / still.share());
    Ok(())
}

#[derive(Debug, Default)]
struct Recalls {
    us: Vec<f64>,
    failed: u64,
    held: Duration,
    all: Duration,
}

impl Recalls {
    fn until(&mut self, peer: &CacheServer, is_over: impl Fn() -> bool) {
        let start = wall();
        while !is_over() {
            interrupt::check();
            let begin = wall();
            let took = &mut None;
            let asked = ask_control(&peer.control, BLOCK.get(), HELD, |recalled| {
                *took = (recalled.bytes >= BLOCK.get()).then_some(recalled.took);
            });
            match (asked, took) {
                (Ok(()), Some(took)) => self.us.push(micros(*took)),
                _ => self.failed += 1,
            }
            self.held += wall() - begin;
            std::thread::sleep((begin + EVERY).saturating_sub(wall()));
        }
        self.all = wall() - start;
    }

    fn share_held(&self) -> f64 {
        self.held.as_secs_f64() / self.all.as_secs_f64()
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Requests of the second half, when the cache is full.
    requests: u64,
    hits: u64,
    /// Wrong values, of all requests.
    wrong: u64,
}

impl Seen {
    fn share(self) -> f64 {
        self.hits as f64 / self.requests as f64
    }
}

struct Reader {
    stream: BufReader<TcpStream>,
    request: Vec<u8>,
    value: Vec<u8>,
    line: Vec<u8>,
}

impl Reader {
    fn filled(peer: &CacheServer, keys: u64) -> Outcome<Self> {
        let (request, value, line) = <(Vec<u8>, Vec<u8>, Vec<u8>)>::default();
        let stream = BufReader::with_capacity(1 << 18, connect(peer.port)?);
        let mut reader = Self { stream, request, value, line };
        (0..keys).try_for_each(|nth| reader.store(nth * STRIDE % keys))?;
        reader.wait()?;
        Ok(reader)
    }

    fn store(&mut self, key: u64) -> Outcome {
        self.request.clear();
        let head = format!("set key{key:08} 0 0 {SIZE} noreply\r\n");
        self.request.extend_from_slice(head.as_bytes());
        self.request.extend_from_slice(&value_of(key));
        self.request.extend_from_slice(b"\r\n");
        Ok(self.stream.get_mut().write_all(&self.request)?)
    }

    /// Waits until the server has done all earlier requests.
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

    fn read(&mut self, what: &str, zipf: &Zipf, requests: u64) -> Outcome<Seen> {
        let (mut seen, mut random) = (Seen::default(), Random::new(5));
        let turns = requests / DEPTH;
        for turn in rounds(what, turns, NO_END) {
            let keys: Vec<u64> = (0..DEPTH).map(|_| zipf.rank(&mut random)).collect();
            self.request.clear();
            keys.iter().for_each(|key| Op::Get.ask(*key, &[], &mut self.request));
            self.stream.get_mut().write_all(&self.request)?;
            let mut missed = Vec::new();
            for key in &keys {
                match self.answer(*key)? {
                    Some(is_right) => seen.wrong += u64::from(!is_right),
                    None => missed.push(*key),
                }
            }
            if turn >= turns / 2 {
                seen.requests += DEPTH;
                seen.hits += DEPTH - missed.len() as u64;
            }
            missed.into_iter().try_for_each(|key| self.store(key))?;
        }
        Ok(seen)
    }

    /// Returns true if the value is right; `None` for a miss.
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

/// Returns the key's value. No other key's value shares a word with it.
fn value_of(key: u64) -> Vec<u8> {
    let words = (0..SIZE as u64 / 8).flat_map(|at| mix(key << 16 | at).to_ne_bytes());
    words.collect()
}
