//! `glebe demo`: a reserve at work on this machine, as a table and a picture.

use std::io::Write;
use std::path::PathBuf;

use glebe::units::Bytes;
use glebe_bench::interrupt;
use glebe_bench::reserve::demo::{Demo, Options};
use glebe_bench::whole_file;

use crate::{size, Outcome};

const PICTURE: &str = "demo.svg";

/// Options of `glebe demo`.
#[derive(clap::Args)]
pub struct Args {
    /// Directory of files to read through the cache
    dir: Option<PathBuf>,
    /// A small reserve and few requests: some 20 seconds
    #[arg(long)]
    quick: bool,
    /// Where to write the picture; demo.svg unless given, if that can be written
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Bytes of the reserve, with K, M or G for powers of 1024
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    size: Option<Bytes>,
}

/// Runs the demo; an error if anything failed or a check did not hold.
pub fn run(args: &Args, out: &mut dyn Write) -> Outcome {
    let svg = args.svg.clone().unwrap_or_else(|| PICTURE.into());
    let refused = whole_file::check(&svg).err();
    let svg = match refused {
        None => Some(svg),
        // Who named a file wants it; better told now than when the demo is over.
        Some(error) if args.svg.is_some() => return Err(error.into()),
        Some(error) => {
            writeln!(out, "no picture: {error}; --svg FILE names another place")?;
            None
        }
    };
    interrupt::install()?;
    let options = Options { dir: args.dir.clone(), quick: args.quick, size: args.size };
    let demo = Demo::set_up(&options)?;
    writeln!(out, "{demo}")?;
    out.flush()?;
    let outcome = demo.run()?;
    write!(out, "{outcome}")?;
    if let Some(svg) = svg {
        whole_file::write(&svg, outcome.svg().as_bytes())?;
        writeln!(out, "picture   {}", svg.display())?;
    }
    match outcome.passed() {
        true => Ok(()),
        false => Err("the demo failed: see the checks".into()),
    }
}
