//! [`BigFile`] is a peer: a server that answers each request with one file for everybody.

use std::fs::File;
use std::os::fd::AsFd;

use glebe_lease::socket::{bound, Packets};
use glebe_testing::Scratch;
use memmap2::{Advice, MmapOptions};
use rustix::fs::{memfd_create, MemfdFlags};

use super::PAGE;
use crate::clock::timed;
use crate::Outcome;

pub(crate) struct BigFile {
    client: Packets,
    _scratch: Scratch,
}

impl BigFile {
    /// Starts a thread that serves a populated file of `pages`, which it has mapped. The pages come
    /// from the pool.
    pub(crate) fn start(pages: u64) -> Outcome<Self> {
        let scratch = Scratch::new("big-file");
        let path = scratch.path().join("socket");
        let listener = bound(&path)?;
        rustix::net::listen(&listener, 1)?;
        let len = pages * PAGE.bytes().get();
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let file = File::from(memfd_create("big", flags)?);
        file.set_len(len)?;
        let map = MmapOptions::new().len(len as usize).map_raw(&file)?;
        map.advise(Advice::PopulateWrite)?;
        let client = Packets::connect(&path, None)?;
        let server = Packets::accept(&listener)?;
        rustix::io::ioctl_fionbio(&server, false)?;
        std::thread::spawn(move || {
            let (mut bytes, mut files) = ([0; 8], Vec::new());
            while server.receive(&mut bytes, &mut files).is_ok_and(|len| len > 0) {
                if server.send(&bytes, &[file.as_fd()]).is_err() {
                    break;
                }
            }
            drop(map);
        });
        Ok(Self { client, _scratch: scratch })
    }

    /// Returns the time to request, receive, map and touch a range, in microseconds.
    pub(crate) fn map(&self, pages: u64) -> Outcome<f64> {
        let len = (pages * PAGE.bytes().get()) as usize;
        let (mut bytes, mut files) = ([0; 8], Vec::new());
        let (map, took) = timed(|| {
            self.client.send(&[1; 8], &[])?;
            self.client.receive(&mut bytes, &mut files)?;
            let file = files.pop().map(File::from).ok_or(std::io::ErrorKind::NotFound)?;
            let map = MmapOptions::new().len(len).map_raw(&file)?;
            let touched = (0..pages).map(|nth| (nth * PAGE.bytes().get()) as usize);
            touched.for_each(|at| map.advise_range(Advice::PopulateWrite, at, 1).map_or((), drop));
            Ok::<_, std::io::Error>(map)
        });
        map?;
        Ok(took.wall_us)
    }
}
