//! Tests the server over TLS, with certificates that end in 2126.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use glebe_serve::server::{ClientCertificates, Settings, Tls};
use glebe_testing::time::wait_until;
use glebe_testing::Scratch;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, ProtocolVersion, RootCertStore, StreamOwned};

use crate::running::{dialogue, exactly, stat, value, Running};

type Client = StreamOwned<ClientConnection, TcpStream>;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/certificates").join(name)
}

fn keys_of(name: &str) -> Tls {
    Tls {
        chain: file(&format!("{name}.pem")),
        key: Some(file(&format!("{name}.key"))),
        ..Tls::default()
    }
}

fn start(tls: Tls) -> Running {
    Running::start(|settings: &mut Settings| settings.access.tls = Some(tls))
}

fn certificate(name: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(file(&format!("{name}.pem"))).expect("a certificate")
}

/// Returns a client that has `name` as its own certificate.
fn client(server: &Running, version: ProtocolVersion, name: Option<&str>) -> Client {
    let mut roots = RootCertStore::empty();
    roots.add(certificate("ca")).expect("a certificate");
    let versions = match version {
        ProtocolVersion::TLSv1_2 => [&TLS12],
        _ => [&TLS13],
    };
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&versions)
        .expect("a version")
        .with_root_certificates(roots);
    let config = match name {
        None => config.with_no_client_auth(),
        Some(name) => {
            let key = PrivateKeyDer::from_pem_file(file(&format!("{name}.key"))).expect("a key");
            config.with_client_auth_cert(vec![certificate(name)], key).expect("a pair")
        }
    };
    let host = ServerName::try_from("localhost").expect("a name");
    let session = ClientConnection::new(Arc::new(config), host).expect("a client");
    StreamOwned::new(session, server.connect())
}

fn usual(server: &Running) -> Client {
    client(server, ProtocolVersion::TLSv1_3, None)
}

/// Returns the certificate that the server shows.
fn shown(client: &mut Client) -> CertificateDer<'static> {
    dialogue(client, "mn\n", "MN\n");
    let chain = client.conn.peer_certificates().expect("a certificate");
    chain[0].clone().into_owned()
}

#[test]
fn commands_and_values_over_both_versions() {
    let server = start(keys_of("server"));
    for version in [ProtocolVersion::TLSv1_2, ProtocolVersion::TLSv1_3] {
        let mut stream = client(&server, version, None);
        dialogue(&mut stream, "set k 0 0 1\nx\nget k\n", "STORED\nVALUE k 0 1\nx\nEND\n");
        assert_eq!(stream.conn.protocol_version(), Some(version));
        for byte in b"get k\r\n" {
            stream.write_all(&[*byte]).expect("taken");
            stream.flush().expect("taken");
        }
        dialogue(&mut stream, "", "VALUE k 0 1\nx\nEND\n");
        for (seed, len) in [0, 4095, 16_384, 65_536, 70_000, 1_000_000].into_iter().enumerate() {
            let bytes = value(len, seed);
            let says = [format!("set v 0 0 {len}\r\n").as_bytes(), &bytes, b"\r\n"].concat();
            stream.write_all(&says).expect("taken");
            dialogue(&mut stream, "", "STORED\n");
            dialogue(&mut stream, "get v v\n", "");
            let one = [format!("VALUE v 0 {len}\r\n").as_bytes(), &bytes, b"\r\n"].concat();
            exactly(&mut stream, &[&one[..], &one, b"END\r\n"].concat());
        }
    }
}

#[test]
fn many_commands_in_one_write_are_all_answered() {
    let server = start(keys_of("server"));
    let mut stream = usual(&server);
    // More than a record, and more than a turn of a connection.
    let says = "set key 0 0 5\nvalue\nget key\n".repeat(3000);
    let hears = "STORED\nVALUE key 0 5\nvalue\nEND\n".repeat(3000);
    dialogue(&mut stream, &says, &hears);
    dialogue(&mut stream, "quit\n", "");
    // The server says that it ends, so this is not an error.
    assert_eq!(stream.read(&mut [0; 9]).expect("a clean end"), 0);
}

#[test]
fn a_new_certificate_is_for_new_connections_and_a_bad_one_for_none() {
    let scratch = Scratch::new("certificates");
    let chain = scratch.path().join("chain.pem");
    let put = |name: &str| {
        let text = |end: &str| fs::read_to_string(file(&format!("{name}.{end}"))).expect("text");
        fs::write(&chain, text("pem") + &text("key")).expect("written");
    };
    put("server");
    let server = start(Tls { chain: chain.clone(), ..Tls::default() });
    let mut old = usual(&server);
    assert_eq!(shown(&mut old), certificate("server"));
    put("other");
    assert_eq!(shown(&mut usual(&server)), certificate("server"));
    dialogue(&mut old, "refresh_certs\n", "OK\n");
    assert_eq!(shown(&mut usual(&server)), certificate("other"));
    dialogue(&mut old, "mn\n", "MN\n");
    fs::write(&chain, "no certificate").expect("written");
    let why = format!("Error {}: no private key is in it\n", chain.display());
    dialogue(&mut old, "refresh_certs\n", &why);
    assert_eq!(shown(&mut usual(&server)), certificate("other"));
    let plain = Running::start(|_| {});
    dialogue(&mut plain.connect(), "refresh_certs\n", "Error TLS not enabled\n");
}

#[test]
fn clients_without_a_certificate_are_refused_if_each_must_have_one() {
    for (clients, serves_all) in
        [(ClientCertificates::Optional, true), (ClientCertificates::Required, false)]
    {
        let authorities = Some(file("ca.pem"));
        let server = start(Tls { authorities, clients, ..keys_of("server") });
        let mut known = client(&server, ProtocolVersion::TLSv1_3, Some("client"));
        dialogue(&mut known, "mn\n", "MN\n");
        let mut unknown = usual(&server);
        let done = unknown.write_all(b"mn\r\n").and_then(|()| unknown.read(&mut [0; 4]));
        assert_eq!(done.is_ok(), serves_all, "{done:?}");
    }
    let only_new = start(Tls { only_1_3: true, ..keys_of("server") });
    let mut old = client(&only_new, ProtocolVersion::TLSv1_2, None);
    assert!(old.write_all(b"mn\r\n").is_err());
    dialogue(&mut usual(&only_new), "mn\n", "MN\n");
}

#[test]
fn handshakes_that_do_not_end_hold_up_nobody_and_are_ended() {
    let server = Running::start(|settings| {
        settings.access.tls = Some(keys_of("server"));
        settings.idle = Some(Duration::from_secs(600));
        settings.debug_time = true;
        settings.conns = 400;
    });
    let mut honest = usual(&server);
    // Stops the clock, so that no handshake ends early on a busy machine.
    dialogue(&mut honest, "debugtime p\n", "OK\n");
    // The header of a handshake message of 16 KiB, which never comes.
    let half = [22, 3, 1, 64, 0, 1, 0, 63, 0xfc, 3, 3];
    let texts: [&[u8]; 3] = [b"", &half, b"GET / HTTP/1.1\r\n\r\n"];
    let open = |nth: usize| {
        let mut stream = server.connect();
        stream.write_all(texts[nth % texts.len()]).expect("taken");
        stream
    };
    let mut silent: Vec<TcpStream> = (0..300).map(open).collect();
    dialogue(&mut usual(&server), "mn\n", "MN\n");
    wait_until("a third of the handshakes fail", Duration::from_secs(20), || {
        // The honest connection and the listening socket count too.
        let is_third = stat(&mut honest, "ssl_handshake_errors") == 100;
        is_third && stat(&mut honest, "curr_connections") == 202
    });
    wait_until("the handshakes that do not end are ended", Duration::from_secs(20), || {
        // A handshake may take 10 seconds.
        dialogue(&mut honest, "debugtime 20\n", "OK\n");
        stat(&mut honest, "idle_kicks") == 200
    });
    assert_eq!(stat(&mut honest, "ssl_handshake_errors"), 100);
    for stream in &mut silent {
        let mut rest = Vec::new();
        // The kernel may tell of the end as a reset.
        if let Err(e) = stream.read_to_end(&mut rest) {
            assert_eq!(e.kind(), ErrorKind::ConnectionReset);
        }
        assert!(rest.len() < 100, "an alert at most: {rest:?}");
    }
}

#[test]
fn clients_that_do_not_read_are_bounded_and_harm_nobody() {
    let server = Running::start(|settings| {
        settings.access.tls = Some(keys_of("server"));
        settings.memory = 32 << 20;
    });
    let mut honest = usual(&server);
    let bytes = value(500_000, 1);
    honest.write_all(b"set k 0 0 500000\r\n").expect("taken");
    honest.write_all(&bytes).expect("taken");
    dialogue(&mut honest, "\n", "STORED\n");
    // Each keeps a buffer of TLS for one that the kernel has taken; two threads may keep 3 MiB.
    let asks = "get k k k k k k k k\r\n".repeat(20);
    let deaf: Vec<Client> = (0..80)
        .map(|_| {
            let mut client = usual(&server);
            // Makes the handshake too, before the server is busy with the others.
            client.write_all(asks.as_bytes()).expect("taken");
            client
        })
        .collect();
    wait_until("the slowest are ended", Duration::from_secs(60), || {
        stat(&mut honest, "response_obj_oom") > 0
    });
    drop(deaf);
    // One that reads gets all of its answer.
    dialogue(&mut honest, "get k\n", "VALUE k 0 500000\n");
    exactly(&mut honest, &bytes);
    dialogue(&mut honest, "", "\nEND\n");
}

#[test]
fn connections_that_end_in_the_middle_of_a_record_are_forgotten() {
    let server = Running::start(|settings| {
        settings.access.tls = Some(keys_of("server"));
        settings.memory = 64 << 20;
    });
    let mut honest = usual(&server);
    for nth in 0..100 {
        let mut stream = usual(&server);
        dialogue(&mut stream, "mn\n", "MN\n");
        if nth % 2 == 0 {
            stream.write_all(b"set k 0 0 1000000\r\nxxxx").expect("taken");
        }
        // The end usually arrives before the server has read the part of a record.
        stream.sock.write_all(&[23, 3, 3, 0, 100, 1, 2, 3]).expect("taken");
    }
    wait_until("they are forgotten", Duration::from_secs(20), || {
        // The listening socket counts too.
        let is_over = stat(&mut honest, "read_buf_bytes") == 0;
        is_over && stat(&mut honest, "curr_connections") == 2
    });
}
