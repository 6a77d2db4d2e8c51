//! Tests the parser (`protocol`), and a server at its sockets (other modules).

mod binary;
mod idle;
mod listing;
mod noreply;
mod protocol;
mod running;
mod serve;
mod slow;
mod stats;
