//! Runs Redis under redis-benchmark. Only the server has the peer's allocator. The CPU time is that
//! of all the server's running threads since its start, the wall time that of redis-benchmark.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::peer::Peer;
use super::programs::{needs, REDIS};
use super::ran::{Ran, CPU};
use super::usage::peak_in;
use crate::report::Report;
use crate::turns::turns;
use crate::{clock, interrupt, Outcome};

const TESTS: &str = "set,get,incr,lpush,rpush,lpop,sadd,hset,spop,zadd,mset";
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn measure(dir: &Path, count: u64, peers: &[&Peer], report: &mut Report) -> Outcome {
    if let Err(why) = needs("redis-server", "redis-server") {
        peers.iter().for_each(|peer| report.remark(REDIS, peer.who, CPU, &why.to_string()));
        return Ok(());
    }
    let requests = report.plan("5000", "60000");
    for (_, peer) in turns("malloc, program_redis", count, peers) {
        let ran = Server::start(dir, peer)?.asked(requests)?;
        ran.add(REDIS, peer.who, report);
    }
    Ok(())
}

struct Server {
    process: Child,
    socket: PathBuf,
    who: &'static str,
}

impl Server {
    fn start(dir: &Path, peer: &Peer) -> Outcome<Self> {
        let socket = dir.join("redis");
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket);
        command.arg("--dir").arg(dir).stdin(Stdio::null()).stdout(Stdio::null());
        peer.set(&mut command);
        let server = Self { process: command.spawn()?, socket, who: peer.who };
        let end = clock::wall() + PATIENCE;
        while server.client(&["redis-cli", "ping"]).is_err() {
            interrupt::check();
            if clock::wall() > end {
                return Err(format!("redis-server with {}: does not answer", peer.who).into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// Runs a client without the peer's allocator. Fails if the client fails or answers `ERR`.
    fn client(&self, words: &[&str]) -> Outcome<String> {
        let mut command = Command::new(words[0]);
        let output = command.arg("-s").arg(&self.socket).args(&words[1..]).output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.success() && !said.starts_with("ERR") {
            true => Ok(said),
            false => Err(format!("{} with {}: {said}", words[0], self.who).into()),
        }
    }

    fn asked(self, requests: &str) -> Outcome<Ran> {
        let begin = clock::wall();
        let options = ["-q", "-n", requests, "-r", "100000", "-P", "16", "-d", "400", "-t", TESTS];
        let words: Vec<_> = ["redis-benchmark"].into_iter().chain(options).collect();
        let said = self.client(&words)?;
        let wall_s = (clock::wall() - begin).as_secs_f64();
        if said.matches("requests per second").count() < TESTS.split(',').count() {
            return Err(format!("redis-benchmark with {}: {said}", self.who).into());
        }
        Ok(Ran { cpu_s: self.cpu()?.as_secs_f64(), wall_s, peak: self.peak()?, said })
    }

    fn cpu(&self) -> Outcome<Duration> {
        let mut nanos = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.process.id()))? {
            let text = fs::read_to_string(task?.path().join("schedstat"))?;
            nanos += text.split(' ').next().unwrap_or_default().parse::<u64>()?;
        }
        Ok(Duration::from_nanos(nanos))
    }

    fn peak(&self) -> Outcome<u64> {
        peak_in(&format!("/proc/{}/status", self.process.id()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_file(&self.socket);
    }
}
