//! The program `glebe-bench`: its command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    glebe_bench::cli::main()
}
