//! `glebe contig` shows the machine's contiguous memory, sets some aside, and gives it back.

mod explain;
mod map;
mod record;
mod release;
mod reserve;
mod status;

use std::io::Write;
use std::path::PathBuf;

use glebe::units::Bytes;

use crate::size::parse;
use crate::Outcome;

/// Options of `glebe contig`.
#[derive(clap::Args)]
pub struct ContigArgs {
    #[command(subcommand)]
    command: ContigCommand,
}

#[derive(clap::Subcommand)]
enum ContigCommand {
    /// Show pools of huge pages, free memory in large blocks, and the means to hold pages in place
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Say whether glebe can get one run of LEN now, and how; if not, what would help
    Explain {
        /// Length of the run, for example 64M or 1G
        #[arg(value_parser = parse)]
        len: Bytes,
        /// Take the run for a moment and say what came
        #[arg(long = "try")]
        attempt: bool,
        /// With --try: write the certificate here, readable by its owner alone
        #[arg(long, value_name = "FILE", requires = "attempt")]
        certificate: Option<PathBuf>,
    },
    /// Add LEN to the machine's pool of huge pages, for every program, until the next boot
    Reserve(reserve::ReserveArgs),
    /// Give free pages of the machine's pool back to the system
    Release(release::ReleaseArgs),
    /// Draw the machine's physical memory: free, pools of huge pages, other uses (root)
    Map {
        /// An SVG file to write; without one the map is text, as wide as the terminal
        file: Option<PathBuf>,
    },
}

pub fn run(args: &ContigArgs, out: &mut dyn Write) -> Outcome {
    match &args.command {
        ContigCommand::Status { json } => status::run(*json, out),
        ContigCommand::Explain { len, attempt, certificate } => {
            explain::run(*len, *attempt, certificate.as_deref(), out)
        }
        ContigCommand::Reserve(args) => reserve::run(args, out),
        ContigCommand::Release(args) => release::run(args, out),
        ContigCommand::Map { file } => map::run(file.as_deref(), out),
    }
}
