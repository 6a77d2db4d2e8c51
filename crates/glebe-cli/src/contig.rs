//! `glebe contig` shows the machine's contiguous memory, sets some aside, and gives it back.

mod cost;
mod explain;
mod fragmentation;
mod map;
mod map_json;
mod nodes;
mod record;
mod release;
mod reserve;
mod shares;
mod status;

use std::io::Write;
use std::path::PathBuf;

use glebe::units::Bytes;

use crate::size::parse;
use crate::Outcome;

#[cfg(feature = "serve")]
pub use cost::{cheapest, Cost};
#[cfg(feature = "serve")]
pub use shares::free_runs;
#[cfg(any(feature = "serve", feature = "top"))]
pub use shares::{Shares, LENGTHS};

/// Options of `glebe contig`.
#[derive(clap::Args)]
pub struct ContigArgs {
    #[command(subcommand)]
    command: ContigCommand,
}

#[derive(clap::Subcommand)]
enum ContigCommand {
    /// Show pools of huge pages, how fragmented memory is, and the means to hold pages in place
    Status {
        /// Also say what one run of LEN would cost now: pages to move, pages free in pools
        #[arg(long = "for", value_name = "LEN", value_parser = parse)]
        len: Option<Bytes>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Say whether glebe can get one run of LEN now, and how; if not, what would help
    Explain(explain::ExplainArgs),
    /// Add LEN to the machine's pool of huge pages, for every program, until the next boot
    Reserve(reserve::ReserveArgs),
    /// Give free pages of the machine's pool back to the system
    Release(release::ReleaseArgs),
    /// Draw the machine's physical memory: free, pools of huge pages, other uses (root)
    Map {
        /// An SVG file to write; without one the map is text, as wide as the terminal
        file: Option<PathBuf>,
        /// Print JSON: each run of blocks of one use, with its addresses
        #[arg(long, conflicts_with = "file")]
        json: bool,
    },
}

/// Returns what `glebe contig map` prints.
#[cfg(feature = "top")]
pub fn map_text() -> Result<String, Box<dyn std::error::Error>> {
    let mut text = Vec::new();
    map::run(map::Form::Text, &mut text)?;
    Ok(String::from_utf8(text)?)
}

pub fn run(args: &ContigArgs, out: &mut dyn Write) -> Outcome {
    match &args.command {
        ContigCommand::Status { len, json } => status::run(*len, *json, out),
        ContigCommand::Explain(args) => explain::run(args, out),
        ContigCommand::Reserve(args) => reserve::run(args, out),
        ContigCommand::Release(args) => release::run(args, out),
        ContigCommand::Map { json: true, .. } => map::run(map::Form::Json, out),
        ContigCommand::Map { file, .. } => {
            map::run(file.as_deref().map_or(map::Form::Text, map::Form::Svg), out)
        }
    }
}
