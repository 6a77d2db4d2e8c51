//! The program `glebe-bench`: peers, workloads and measurements for glebe.
#![deny(unsafe_code)]

/// An error; only its text is used.
type Failure = Box<dyn std::error::Error + Send + Sync>;
type Outcome<T = ()> = Result<T, Failure>;

mod clock;
mod interrupt;
mod machine;
mod summary;

mod report;
mod turns;

mod child;
mod frames;
mod memory;
mod pressure;
mod zram;

mod contig;
mod hosts;
mod lease;
mod reserve;
mod run;

mod malloc;
mod python;
mod serve;
mod vmap;
mod volatile;
mod zpool;

mod swap;

mod cli;

/// Returns the value, or prints why the test is skipped.
#[cfg(test)]
fn had<T>(had: Outcome<T>) -> Option<T> {
    had.inspect_err(|why| println!("skipped: {why}")).ok()
}

fn main() -> std::process::ExitCode {
    cli::main()
}
