//! The tests of the servers, one program: a module tests the parser, the others a server by its
//! sockets.

mod idle;
mod protocol;
mod running;
mod serve;
