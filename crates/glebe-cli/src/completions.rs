//! `glebe completions` prints the completion script of a shell.

use std::io::Write;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::{Cli, Outcome};

/// Options of `glebe completions`.
#[derive(clap::Args)]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

pub fn run(args: &CompletionsArgs, out: &mut dyn Write) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "glebe", &mut script);
    Ok(out.write_all(&script)?)
}
