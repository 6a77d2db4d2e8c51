//! Peers, workloads and measurements for glebe: the program `glebe-bench`.
//!
//! The modules form an ordered list; each uses only those above it in this list.
#![deny(unsafe_code)]

/// Why something cannot be had or done; its text is all that anybody looks at.
type Failure = Box<dyn std::error::Error + Send + Sync>;
type Outcome<T = ()> = Result<T, Failure>;

// Measuring, and telling people.
mod clock;
mod interrupt;
mod machine;
mod summary;

mod report;
mod turns;

// What a run works on, and against whom.
mod child;
mod frames;
mod memory;
mod pressure;
mod zram;

// The benchmarks.
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

/// What a test needs; nothing where it cannot be had, and says so.
#[cfg(test)]
fn had<T>(had: Outcome<T>) -> Option<T> {
    had.inspect_err(|why| println!("skipped: {why}")).ok()
}

fn main() -> std::process::ExitCode {
    cli::main()
}
