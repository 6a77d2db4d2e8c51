//! Processes, threads and signals.

pub mod atfork;
pub mod children;
pub mod claim;
pub mod environment;
pub mod fork;
pub mod futex;
pub mod handler;
pub mod lean;
pub mod membarrier;
pub mod one_processor;
pub mod process;
pub mod processor_time;
pub mod rseq;
pub mod seccomp;
pub mod sigbus;
pub mod signal_frame;
pub mod signals;
pub mod stand_in;
pub mod symbols;
pub mod thread;
pub mod time_slice;
pub mod user;
