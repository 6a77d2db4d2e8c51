//! [`Keys`] has the server's certificate, and [`Session`] is a connection over TLS.
//!
//! rustls does not touch sockets: a session carries records between it and the socket. It keeps at
//! most [`PENDING_MAX`] bytes of records that the socket does not take. Until the end of its
//! handshake, a client may send [`HANDSHAKE_MAX`] bytes.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use mio::net::TcpStream;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoClientAuth, NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig, ServerConnection};

use super::access::{ClientCertificates, Tls};

const PENDING_MAX: usize = 64 << 10;
const HANDSHAKE_MAX: usize = 128 << 10;
/// Most bytes without plaintext after the handshake: two of the longest records.
const SILENT_MAX: usize = 36 << 10;
/// Most bytes of records that one call of `Session::read` takes from the socket. Records without
/// contents would otherwise keep the thread from other connections.
const TURN_MAX: usize = 128 << 10;

/// The certificate, the key, and the rules of TLS.
pub(super) struct Keys {
    files: Tls,
    config: RwLock<Arc<ServerConfig>>,
    /// Seconds since 1970 when the files were read.
    read_at: AtomicU64,
}

impl Keys {
    pub(super) fn read(files: &Tls) -> Result<Self, String> {
        let config = RwLock::new(Arc::new(config(files)?));
        Ok(Self { files: files.clone(), config, read_at: AtomicU64::new(now()) })
    }

    /// Reads the files again, for connections that are accepted later. If that fails, the
    /// certificate stays as it is.
    pub(super) fn refresh(&self) -> Result<(), String> {
        let config = Arc::new(config(&self.files)?);
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        self.read_at.store(now(), Ordering::Relaxed);
        Ok(())
    }

    /// Returns the seconds since the files were read.
    pub(super) fn age(&self) -> u64 {
        now().saturating_sub(self.read_at.load(Ordering::Relaxed))
    }

    pub(super) fn files(&self) -> &Tls {
        &self.files
    }

    pub(super) fn session(&self, socket: TcpStream) -> io::Result<Session> {
        let config = Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner));
        let mut tls = ServerConnection::new(config).map_err(io::Error::other)?;
        tls.set_buffer_limit(Some(PENDING_MAX));
        Ok(Session { tls, socket, received: 0, has_more: false, records: Records::default() })
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn config(files: &Tls) -> Result<ServerConfig, String> {
    let wrong = |path: &Path, e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let provider = Arc::new(default_provider());
    let verifier: Arc<dyn ClientCertVerifier> = match files.clients {
        ClientCertificates::Ignored => Arc::new(NoClientAuth),
        which => {
            let path = files.authorities.as_deref().ok_or("no file of authorities is named")?;
            let mut roots = RootCertStore::empty();
            for one in certificates(path)? {
                roots.add(one).map_err(|e| wrong(path, &e))?;
            }
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
            let verifier = match which {
                ClientCertificates::Required => verifier,
                _ => verifier.allow_unauthenticated(),
            };
            verifier.build().map_err(|e| wrong(path, &e))?
        }
    };
    let versions: &[_] = if files.only_1_3 { &[&TLS13] } else { &[&TLS13, &TLS12] };
    let path = files.key.as_deref().unwrap_or(&files.chain);
    let text = fs::read(path).map_err(|e| wrong(path, &e))?;
    let key = PrivateKeyDer::from_pem_slice(&text).map_err(|e| match e {
        rustls::pki_types::pem::Error::NoItemsFound => wrong(path, &"no private key is in it"),
        e => wrong(path, &e),
    })?;
    let builder = ServerConfig::builder_with_provider(provider).with_protocol_versions(versions);
    let builder = builder.map_err(|e| e.to_string())?.with_client_cert_verifier(verifier);
    let chain = certificates(&files.chain)?;
    let mut config = builder.with_single_cert(chain, key).map_err(|e| wrong(&files.chain, &e))?;
    if !files.resume {
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(config)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let shown = path.display();
    let text = fs::read(path).map_err(|e| format!("{shown}: {e}"))?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let all = all.map_err(|e| format!("{shown}: {e}"))?;
    match all.is_empty() {
        true => Err(format!("{shown}: no certificate is in it")),
        false => Ok(all),
    }
}

/// Bytes of records that went through a socket.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Records {
    pub(super) received: u64,
    pub(super) sent: u64,
}

/// A connection over TLS.
#[derive(Debug)]
pub(super) struct Session {
    tls: ServerConnection,
    pub(super) socket: TcpStream,
    /// Bytes that the client sent in the handshake, and then since the last plaintext.
    received: usize,
    has_more: bool,
    records: Records,
}

/// Reads from a socket, and notes whether the socket had fewer bytes than asked.
struct Counted<'a> {
    socket: &'a mut TcpStream,
    is_short: bool,
}

impl Read for Counted<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.socket.read(buf)?;
        self.is_short = got < buf.len();
        Ok(got)
    }
}

impl Session {
    pub(super) fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// Returns true if records wait for the socket to take them.
    pub(super) fn is_pending(&self) -> bool {
        self.tls.wants_write()
    }

    /// Returns true if the last read left bytes, or the end, for the next one.
    pub(super) fn has_more(&self) -> bool {
        self.has_more
    }

    /// Returns the most bytes that are kept for a client that does not go on.
    pub(super) fn kept(&self) -> u64 {
        let of_answers = if self.is_pending() { PENDING_MAX } else { 0 };
        (self.received + of_answers) as u64
    }

    pub(super) fn records(&self) -> Records {
        self.records
    }

    /// Sends records until the socket takes no more.
    pub(super) fn push(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() != ErrorKind::Interrupted => return Err(e),
                Err(_) => {}
                Ok(sent) => self.records.sent += sent as u64,
            }
        }
        Ok(())
    }

    /// Takes records from the socket. Returns the number of bytes, and whether the socket is empty.
    fn pull(&mut self) -> io::Result<(usize, bool)> {
        let mut counted = Counted { socket: &mut self.socket, is_short: false };
        let taken = self.tls.read_tls(&mut counted)?;
        let is_empty = counted.is_short;
        let was_handshaking = self.tls.is_handshaking();
        let most = if was_handshaking { HANDSHAKE_MAX } else { SILENT_MAX };
        self.received += taken;
        self.records.received += taken as u64;
        if self.received > most {
            return Err(ErrorKind::InvalidData.into());
        }
        if let Err(e) = self.tls.process_new_packets() {
            // Sends the alert that says why.
            let _ = self.push();
            return Err(io::Error::new(ErrorKind::InvalidData, e));
        }
        if was_handshaking && !self.tls.is_handshaking() {
            self.received = 0;
        }
        self.push()?;
        Ok((taken, is_empty))
    }
}

impl Read for Session {
    /// Fills `buf`, unless the socket is empty before.
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let (mut got, mut all, mut is_empty) = (0, 0, false);
        self.has_more = false;
        loop {
            match self.tls.reader().read(&mut buf[got..]) {
                Ok(0) => {
                    // The next read tells the end.
                    self.has_more = got > 0;
                    return Ok(got);
                }
                Ok(more) => {
                    self.received = 0;
                    got += more;
                    if got == buf.len() {
                        return Ok(got);
                    }
                    continue;
                }
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => {
                    self.has_more = got > 0;
                    return Ok(got);
                }
                Err(e) if e.kind() != ErrorKind::WouldBlock => return Err(e),
                Err(_) => {}
            }
            let pulled = match is_empty {
                true => Err(ErrorKind::WouldBlock.into()),
                false if all >= TURN_MAX => Err(ErrorKind::Interrupted.into()),
                false => self.pull(),
            };
            match pulled {
                Ok((taken, was_all)) => {
                    all += taken;
                    // After the last byte, only another read says that the client has ended.
                    is_empty = was_all && taken > 0;
                }
                Err(e) if got > 0 => {
                    self.has_more = e.kind() != ErrorKind::WouldBlock;
                    return Ok(got);
                }
                Err(e) => return Err(e),
            }
        }
    }
}

impl Write for Session {
    /// Encrypts bytes, and sends what the socket takes. Encrypts nothing while earlier records
    /// wait.
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.push()?;
        if self.is_pending() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let taken = self.tls.writer().write(buf)?;
        self.push()?;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The client sees that no answer was cut off. If the socket is full, it sees only the end.
        self.tls.send_close_notify();
        let _ = self.push();
    }
}
