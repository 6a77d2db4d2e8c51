//! Tests the parser (`protocol`), and a server at its sockets (other modules).

mod binary;
mod flood;
mod idle;
mod listing;
mod login;
mod noreply;
mod peer;
mod protocol;
mod running;
mod serve;
mod slow;
mod stats;
#[cfg(feature = "tls")]
mod tls;
mod watch;
