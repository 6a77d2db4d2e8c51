//! [`Access`] configures who may use a server, and how.

use std::net::SocketAddr;
use std::path::PathBuf;

/// Settings of who may use a server, and how.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// File of users and passwords, a line `user:password` each. If set, a connection must log in
    /// before its first command.
    pub passwords: Option<PathBuf>,
    /// Connections over TCP use TLS, if set.
    pub tls: Option<Tls>,
    /// Refuses the command `watch`.
    pub refuse_watch: bool,
    /// Addresses of `Settings::listen` without TLS.
    pub without_tls: Vec<SocketAddr>,
}

/// Files and rules of TLS. Files are in the format PEM.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// The server's certificate, and those that signed it.
    pub chain: PathBuf,
    /// The server's private key. `None`: it is in the file of the chain.
    pub key: Option<PathBuf>,
    /// Certificates that may sign clients' certificates.
    pub authorities: Option<PathBuf>,
    /// Whether clients show certificates.
    pub clients: ClientCertificates,
    /// Refuses TLS 1.2.
    pub only_1_3: bool,
    /// Lets clients resume sessions without a full handshake.
    pub resume: bool,
}

/// Which clients of TLS show certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    /// The server asks for none.
    #[default]
    Ignored,
    /// The server asks for one, which must be right if the client has one.
    Optional,
    /// Each client must have one.
    Required,
}
