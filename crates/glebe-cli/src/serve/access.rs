//! Options of `glebe serve` about who may use the server, and how.

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;

use glebe_serve::server::{Access, ClientCertificates, Tls};

use crate::usage;

/// Options about access.
#[derive(clap::Args)]
pub struct AccessArgs {
    /// File of users, a line `user:password` each: a client must first `set` any key to "user
    /// password"; SIGHUP reads the file again
    #[arg(short = 'Y', long = "auth-file", value_name = "FILE")]
    auth_file: Option<PathBuf>,
    /// Speak TLS at each TCP address without `notls:` before it; see ssl_chain_cert of --extended
    #[arg(short = 'Z', long = "enable-ssl")]
    enable_ssl: bool,
}

/// memcached's names of the oldest version of TLS.
const VERSIONS: [&str; 4] = ["tlsv1.0", "tlsv1.1", "tlsv1.2", "tlsv1.3"];

impl AccessArgs {
    /// Returns the settings. `extended` has the options whose names begin with `ssl_`.
    pub fn settings(
        &self,
        extended: &[&str],
        without_tls: Vec<SocketAddr>,
    ) -> Result<Access, Box<dyn Error>> {
        let tls = match self.enable_ssl {
            true => Some(tls(extended)?),
            false => match extended.first() {
                Some(option) => return usage(format!("-o {option} has an effect only with -Z")),
                None => None,
            },
        };
        Ok(Access { passwords: self.auth_file.clone(), tls, without_tls, ..Access::default() })
    }
}

fn tls(options: &[&str]) -> Result<Tls, Box<dyn Error>> {
    let mut tls = Tls::default();
    for option in options {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match (name, value) {
            ("ssl_chain_cert" | "ssl_key" | "ssl_ca_cert", "") => {
                return usage(format!("-o {option}: the name of a file is missing"));
            }
            ("ssl_chain_cert", _) => tls.chain = value.into(),
            ("ssl_key", _) => tls.key = Some(value.into()),
            ("ssl_ca_cert", _) => tls.authorities = Some(value.into()),
            ("ssl_verify_mode", "0") => tls.clients = ClientCertificates::Ignored,
            ("ssl_verify_mode", "1") => tls.clients = ClientCertificates::Optional,
            ("ssl_verify_mode", "2" | "3") => tls.clients = ClientCertificates::Required,
            ("ssl_verify_mode", _) => {
                return usage(format!("-o {option}: 0 none, 1 request, 2 or 3 require"));
            }
            ("ssl_session_cache", "") => tls.resume = true,
            // Buffers are rustls' own.
            ("ssl_wbuf_size", _) | ("ssl_keyformat", "PEM") => {}
            ("ssl_keyformat", _) => return usage(format!("-o {option}: keys are PEM")),
            ("ssl_min_version", _) => {
                let nth = VERSIONS.iter().position(|version| *version == value);
                match nth.or_else(|| value.parse().ok()) {
                    Some(2) => tls.only_1_3 = false,
                    Some(3) => tls.only_1_3 = true,
                    _ => return usage(format!("-o {option}: 2 (tlsv1.2) or 3 (tlsv1.3)")),
                }
            }
            _ => return usage(format!("-o {option}: there is no such thing here")),
        }
    }
    if tls.chain.as_os_str().is_empty() {
        return usage("-Z: name a certificate by -o ssl_chain_cert=FILE");
    }
    if tls.clients != ClientCertificates::Ignored && tls.authorities.is_none() {
        return usage("-o ssl_verify_mode: name who may sign, by -o ssl_ca_cert=FILE");
    }
    Ok(tls)
}
