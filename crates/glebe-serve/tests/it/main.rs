//! The tests of the servers, one program: a module tests the parser, the others a server by its
//! sockets.

mod binary;
mod idle;
mod listing;
mod noreply;
mod protocol;
mod running;
mod serve;
mod slow;
mod stats;
