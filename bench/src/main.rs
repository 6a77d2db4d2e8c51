//! The program `glebe-bench`: peers, workloads and measurements for glebe.
//!
//! Modules use only those listed above them.
#![deny(unsafe_code)]

/// Why something failed; only its text is used.
type Failure = Box<dyn std::error::Error + Send + Sync>;
type Outcome<T = ()> = Result<T, Failure>;

// Measuring and reporting.
mod clock;
mod interrupt;
mod machine;
mod summary;

mod report;
mod turns;

// Workloads and peers.
mod child;
mod frames;
mod memory;
mod pressure;
mod zram;

mod contig;
mod reserve;

mod malloc;
mod python;
mod serve;
mod vmap;
mod volatile;
mod zpool;

mod swap;

mod cli;

/// Returns what a test needs, or prints why it is missing.
#[cfg(test)]
fn had<T>(had: Outcome<T>) -> Option<T> {
    had.inspect_err(|why| println!("skipped: {why}")).ok()
}

fn main() -> std::process::ExitCode {
    cli::main()
}
