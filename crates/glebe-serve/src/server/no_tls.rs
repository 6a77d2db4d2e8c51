//! Stands for TLS in a program that was built without it: there is no session.

use std::io::{self, Read, Write};

use mio::net::TcpStream;

use super::access::Tls;

pub(super) enum Keys {}

impl Keys {
    pub(super) fn read(_: &Tls) -> Result<Self, String> {
        Err("TLS: this program was built without it (feature `tls`)".to_owned())
    }

    pub(super) fn refresh(&self) -> Result<(), String> {
        match *self {}
    }

    pub(super) fn age(&self) -> u64 {
        match *self {}
    }

    pub(super) fn files(&self) -> &Tls {
        match *self {}
    }

    pub(super) fn session(&self, _: TcpStream) -> io::Result<Session> {
        match *self {}
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Records {
    pub(super) received: u64,
    pub(super) sent: u64,
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) socket: TcpStream,
    never: std::convert::Infallible,
}

impl Session {
    pub(super) fn is_handshaking(&self) -> bool {
        match self.never {}
    }

    pub(super) fn is_pending(&self) -> bool {
        match self.never {}
    }

    pub(super) fn has_more(&self) -> bool {
        match self.never {}
    }

    pub(super) fn kept(&self) -> u64 {
        match self.never {}
    }

    pub(super) fn records(&self) -> Records {
        match self.never {}
    }

    pub(super) fn push(&mut self) -> io::Result<()> {
        match self.never {}
    }
}

impl Read for Session {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        match self.never {}
    }
}

impl Write for Session {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        match self.never {}
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.never {}
    }
}
