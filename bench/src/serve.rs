//! Compares `glebe serve --memcached` with memcached, with equal clients, bytes and threads.
//!
//! Measures the server's CPU time per request, kernel included; how long clients wait; hits of a
//! trace and items at equal memory; recalls while a client reads; bytes of idle connections.
//! Clients and servers share the processors.

mod load;
mod peer;
mod recalls;
mod trace;
mod wire;

use std::time::Duration;

use load::{Load, Op};
pub(crate) use peer::be;
use peer::{CacheServer, ServerKind};

use crate::report::Report;
use crate::turns::{by_round, rounds, turns, NO_END};
use crate::Outcome;

/// Server memory in MiB, enough that no item is evicted.
const ROOM_MIB: u64 = 512;
const ROOM_MIB_QUICK: u64 = 128;
const UNIT: &str = "us cpu";
const RATE: &str = "op/s";
const P99: &str = "us, 99 of 100";
/// Bytes of values.
const SIZES: [usize; 2] = [100, 4000];
/// Requests under way per connection.
const DEPTHS: [usize; 2] = [1, 16];
const THREADS: [usize; 2] = [1, 2];
const IDLE: usize = 1000;

pub(crate) fn run(report: &mut Report) -> Outcome {
    peer::let_many_be_open()?;
    report.check("wrong_bytes", 0);
    report.check("failures", 0);
    let mib = report.plan(ROOM_MIB_QUICK, ROOM_MIB);
    for threads in THREADS {
        let peers = CacheServer::all(mib, threads, false, report)?;
        requests(&peers, |op, size, depth| name(op, size, depth, threads), report)?;
    }
    let peers = CacheServer::all(mib, 1, true, report)?;
    requests(&peers, |op, size, depth| format!("tls_{}", name(op, size, depth, 1)), report)?;
    drop(peers);
    trace::measure(report)?;
    recalls::measure(report)?;
    idle(report)?;
    report.note(
        "tls_: over TLS 1.3. A request's CPU time is that of all threads of the server. Clients: \
         16 connections of one thread, 20,000 keys; every request is of a key that is there. x16: \
         each connection sends 16 requests at once. A p99 is of one round, a ratio the median over \
         the rounds.",
    );
    Ok(())
}

fn name(op: Op, size: usize, depth: usize, threads: usize) -> String {
    let depth = if depth > 1 { format!("_x{depth}") } else { String::new() };
    let threads = if threads > 1 { format!("_{threads}_threads") } else { String::new() };
    format!("{}_{size}{depth}{threads}", op.name())
}

fn requests(
    peers: &[CacheServer],
    name: impl Fn(Op, usize, usize) -> String,
    report: &mut Report,
) -> Outcome {
    let (count, millis) = report.plan((1, 10), (20, 500));
    let time = Duration::from_millis(millis);
    for size in SIZES {
        let mut loads = Vec::new();
        for peer in peers {
            loads.push((peer, Load::new(peer.port, peer.with_tls, size)?));
        }
        let with_tls = peers.iter().any(|peer| peer.with_tls);
        for (op, depth) in Op::ALL.into_iter().flat_map(|op| DEPTHS.map(|depth| (op, depth))) {
            if !load::fits_a_record(with_tls, size, op, depth) {
                continue;
            }
            let case = name(op, size, depth);
            let order: Vec<usize> = (0..loads.len()).collect();
            for (_, nth) in turns(&format!("serve, {case}"), count, &order) {
                let (peer, load) = &mut loads[nth];
                let (cpu, who) = (peer.cpu()?, peer.who.name());
                let done = load.run(op, depth, time)?;
                let requests = done.requests as f64;
                report.add(&case, who, UNIT, (peer.cpu()? - cpu).as_secs_f64() * 1e6 / requests);
                report.add(&case, who, RATE, requests / done.wall.as_secs_f64());
                if depth == 1 {
                    report.add(&case, who, P99, done.p99_us);
                }
            }
            ratio("cpu", &case, UNIT, report);
            if depth == 1 {
                ratio("p99", &case, P99, report);
            }
        }
    }
    Ok(())
}

fn ratio(what: &str, case: &str, unit: &str, report: &mut Report) {
    let of = |who: ServerKind| report.of(case, who.name(), unit);
    let ratio = by_round(of(ServerKind::Memcached), of(ServerKind::Glebe));
    report.ratio(&format!("{what}_{case}_vs_memcached"), ratio);
}

fn idle(report: &mut Report) -> Outcome {
    let peers = CacheServer::all(ROOM_MIB / 8, 1, false, report)?;
    for _ in rounds("serve, idle connections", 1, NO_END) {
        for peer in &peers {
            let before = peer.resident()?;
            let conns: Outcome<Vec<_>> = (0..IDLE).map(|_| wire::connect(peer.port)).collect();
            let conns = conns?;
            // The server accepts in order, so an answer on the last connection shows that all are
            // accepted.
            load::ask_version(conns.last().ok_or("no connection")?)?;
            let bytes = peer.resident()?.saturating_sub(before);
            report.add("idle_1000_bytes", peer.who.name(), "bytes", bytes as f64);
        }
    }
    Ok(())
}
