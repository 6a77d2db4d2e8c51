//! Compares servers of equal memory by hits of a trace, and by the number of items with values of
//! 100 bytes.
//!
//! The trace follows published figures: keys by Zipf's law with exponent 0.99, lengths as in
//! Facebook's pool ETC (Atikoglu and others, *Workload analysis of a large-scale key-value store*,
//! 2012). Missed keys are stored. Both servers get the same gets.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use super::peer::{CacheServer, ServerKind};
use super::wire::connect;
use crate::report::Report;
use crate::reserve::keyed::{mix, Random};
use crate::turns::{rounds, NO_END};
use crate::Outcome;

const MIB: u64 = 64;
const EXPONENT: f64 = 0.99;
const DEPTH: u64 = 32;
const ITEM: usize = 100;

pub(super) fn measure(report: &mut Report) -> Outcome {
    let (keys, requests) = report.plan((5_000, 10_000), (1_000_000, 10_000_000));
    let zipf = Zipf::new(keys);
    for peer in CacheServer::all(MIB, 1, false, report)? {
        let mut client = Client(BufReader::with_capacity(1 << 20, connect(peer.port)?));
        let (mut hits, mut asked, mut random) = (0, 0, Random::new(11));
        let turns = requests / DEPTH;
        for turn in rounds(&format!("serve, trace, {}", peer.who.name()), turns, NO_END) {
            let of: Vec<u64> = (0..DEPTH).map(|_| mix(zipf.rank(&mut random))).collect();
            let had = client.get_or_set(&of)?;
            // The first half fills the cache.
            if turn >= turns / 2 {
                (hits, asked) = (hits + had, asked + DEPTH);
            }
        }
        let share = hits as f64 / asked as f64;
        report.add("hit_ratio", peer.who.name(), "of requests", share);
    }
    // Memory in MiB, and more items than fit.
    let (mib, items) = report.plan((16, 250_000), (MIB, 1_000_000));
    for peer in CacheServer::all(mib, 1, false, report)? {
        let mut client = Client(BufReader::new(connect(peer.port)?));
        (0..items).step_by(1000).try_for_each(|first| client.fill(first..first + 1000))?;
        report.add("items_100", peer.who.name(), "items", client.items()? as f64);
    }
    for (name, case) in
        [("hit_ratio_vs_memcached", "hit_ratio"), ("items_vs_memcached", "items_100")]
    {
        let of = |who: ServerKind| report.median(case, who.name());
        let ratio = of(ServerKind::Glebe) / of(ServerKind::Memcached);
        report.ratio(name, ratio);
    }
    Ok(())
}

pub(super) struct Zipf(Vec<f64>);

impl Zipf {
    pub(super) fn new(keys: u64) -> Self {
        let mut sum = 0.0;
        let weight = |rank: u64| {
            sum += (rank as f64).powf(-EXPONENT);
            sum
        };
        Self((1..=keys).map(weight).collect())
    }

    pub(super) fn keys(&self) -> u64 {
        self.0.len() as u64
    }

    /// Returns a random rank; rank 0 is the most frequent key.
    pub(super) fn rank(&self, random: &mut Random) -> u64 {
        let all = self.0.last().copied().unwrap_or_default();
        let at = unit(random.below(u64::MAX)) * all;
        self.0.partition_point(|sum| *sum < at) as u64
    }
}

fn unit(word: u64) -> f64 {
    (word >> 11) as f64 / (1_u64 << 53) as f64
}

/// Makes a key of 16 to 200 bytes; lengths have a generalised extreme value distribution.
fn key_of(id: u64) -> Vec<u8> {
    let u = unit(mix(id ^ 1)).max(1e-9);
    let len = 30.7984 + 8.20449 / 0.078688 * ((-u.ln()).powf(-0.078688) - 1.0);
    let mut key = format!("{id:016x}").into_bytes();
    key.resize((len as usize).clamp(key.len(), 200), b'k');
    key
}

/// Returns a value's length, 1 to 900,000 bytes, from a generalised Pareto distribution.
fn len_of(id: u64) -> usize {
    let u = unit(mix(id ^ 2));
    let len = 214.476 / 0.348238 * ((1.0 - u).powf(-0.348238) - 1.0);
    (len as usize).clamp(1, 900_000)
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        Ok(line)
    }

    fn get_or_set(&mut self, keys: &[u64]) -> Outcome<u64> {
        let mut request = Vec::new();
        for id in keys {
            request.extend_from_slice(b"get ");
            request.extend_from_slice(&key_of(*id));
            request.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&request)?;
        request.clear();
        let mut hits = 0;
        for id in keys {
            let len = len_of(*id);
            let line = self.line()?;
            if line == "END\r\n" {
                self.ask_to_set(*id, len, &mut request);
                continue;
            }
            if !line.ends_with(&format!(" 0 {len}\r\n")) {
                return Err(format!("{line:?} for a value of {len} bytes").into());
            }
            let mut rest = vec![0; len + "\r\nEND\r\n".len()];
            self.0.read_exact(&mut rest)?;
            hits += 1;
        }
        self.done(&request)?;
        Ok(hits)
    }

    fn ask_to_set(&self, id: u64, len: usize, request: &mut Vec<u8>) {
        request.extend_from_slice(b"set ");
        request.extend_from_slice(&key_of(id));
        request.extend_from_slice(format!(" 0 0 {len} noreply\r\n").as_bytes());
        request.resize(request.len() + len, b'v');
        request.extend_from_slice(b"\r\n");
    }

    /// Sends `request` and waits until it is done. Skips errors of `noreply` requests.
    fn done(&mut self, request: &[u8]) -> Outcome {
        self.0.get_mut().write_all(request)?;
        self.0.get_mut().write_all(b"mn\r\n")?;
        loop {
            match &*self.line()? {
                "MN\r\n" => return Ok(()),
                "" => return Err("the server closed a connection".into()),
                _ => {}
            }
        }
    }

    fn fill(&mut self, ids: std::ops::Range<u64>) -> Outcome {
        let mut request = Vec::new();
        for id in ids {
            let head = format!("set item{id:012} 0 0 {ITEM} noreply\r\n");
            request.extend_from_slice(head.as_bytes());
            request.resize(request.len() + ITEM, b'v');
            request.extend_from_slice(b"\r\n");
        }
        self.done(&request)
    }

    fn items(&mut self) -> Outcome<u64> {
        self.0.get_mut().write_all(b"stats\r\n")?;
        let mut items = None;
        loop {
            let line = self.line()?;
            if let Some(count) = line.strip_prefix("STAT curr_items ") {
                items = count.trim_end().parse().ok();
            }
            if line == "END\r\n" || line.is_empty() {
                return Ok(items.ok_or("no curr_items")?);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_lengths_are_as_published() {
        let zipf = Zipf::new(1000);
        let mut random = Random::new(1);
        let draws = 100_000;
        let firsts = (0..draws).filter(|_| zipf.rank(&mut random) == 0).count();
        // The share of the first of 1000 keys is 1 / (sum of 1 / n^0.99), about 1 / 7.7.
        assert!((12_000..14_500).contains(&firsts), "{firsts}");
        let mut lens: Vec<usize> = (0..10_000).map(|id| len_of(mix(id))).collect();
        lens.sort_unstable();
        // The median of the Pareto distribution in `len_of` is 168.
        assert!((155..180).contains(&lens[5000]), "{}", lens[5000]);
        let keys: usize = (0..10_000).map(|id| key_of(mix(id)).len()).sum();
        assert!((330_000..420_000).contains(&keys), "{keys}");
    }
}
