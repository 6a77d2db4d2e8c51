//! `glebe bank` manages movable memory blocks, which programs use until a contiguous run is drawn
//! from them.

use std::io::{self, Write};

use glebe::contig::bank::{self, Block, Change};
use glebe::units::Bytes;
use serde_json::{json, Value};

use crate::size::parse;
use crate::Outcome;

/// Options of `glebe bank`.
#[derive(clap::Args)]
pub struct BankArgs {
    #[command(subcommand)]
    command: BankCommand,
}

#[derive(clap::Subcommand)]
enum BankCommand {
    /// Make LEN of memory movable and keep it so: programs and page cache use it meanwhile (root)
    Add {
        /// How much, rounded up to whole memory blocks
        #[arg(value_parser = parse)]
        len: Bytes,
        /// Print the blocks that would be taken, and touch none
        #[arg(long)]
        dry_run: bool,
    },
    /// Show what the bank has, who uses it, and what is on record without an owner (root)
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Give LEN of the bank back to the kernel, or all of it; blocks that are drawn on stay (root)
    Drop {
        /// How much, rounded up to whole memory blocks; all unless given
        #[arg(value_parser = parse)]
        len: Option<Bytes>,
    },
}

pub fn run(args: &BankArgs, out: &mut dyn Write) -> Outcome {
    match &args.command {
        BankCommand::Add { len, dry_run } => add(*len, *dry_run, out),
        BankCommand::Status { json } => status(*json, out),
        BankCommand::Drop { len } => drop_some(*len, out),
    }
}

fn add(len: Bytes, dry_run: bool, out: &mut dyn Write) -> Outcome {
    let Change { blocks, len, notes } = bank::add(len, dry_run)?;
    print_notes(&notes, out)?;
    let verb = if dry_run { "would add" } else { "added" };
    writeln!(out, "{verb} {len}: memory blocks {}", ranges(blocks))?;
    if !dry_run {
        writeln!(out, "they are movable memory until `glebe bank drop` or the next boot")?;
    }
    Ok(())
}

fn drop_some(wanted: Option<Bytes>, out: &mut dyn Write) -> Outcome {
    let Change { blocks, len, notes } = bank::drop(wanted)?;
    print_notes(&notes, out)?;
    match blocks.is_empty() {
        true => writeln!(out, "dropped nothing")?,
        false => writeln!(out, "dropped {len}: memory blocks {}", ranges(blocks))?,
    }
    match wanted {
        Some(wanted) if len < wanted => Err(format!("{len} of {wanted} could go").into()),
        None if !bank::status()?.blocks.is_empty() => Err("some blocks could not go".into()),
        _ => Ok(()),
    }
}

fn status(as_json: bool, out: &mut dyn Write) -> Outcome {
    let status = bank::status()?;
    let bank::Status { block, blocks, processes, ownerless, movable, memory, notes } = &status;
    if as_json {
        let value = json!({
            "block_bytes": block.get(),
            "bank": sums(blocks, *block),
            "processes": sums(processes, *block),
            "ownerless": sums(ownerless, *block),
            "movable_bytes": movable.get(),
            "memory_bytes": memory.get(),
            "mended": notes,
        });
        serde_json::to_writer_pretty(&mut *out, &value).map_err(io::Error::from)?;
        return Ok(writeln!(out)?);
    }
    print_notes(notes, out)?;
    if blocks.is_empty() {
        writeln!(out, "no bank: nothing is set aside (to make one: glebe bank add 4G)")?;
    }
    let rows = [("bank", blocks), ("of processes", processes), ("without owner", ownerless)];
    for (name, blocks) in rows.into_iter().filter(|(_, blocks)| !blocks.is_empty()) {
        let len = Bytes::new(blocks.len() as u64 * block.get());
        let [free, used, drawn] = parts(blocks);
        let numbers = ranges(blocks.iter().map(|block| block.number).collect());
        let which = format!("memory blocks {numbers}");
        writeln!(out, "{name:<14} {len}: {free} free, {used} in use, {drawn} drawn; {which}")?;
    }
    writeln!(out, "movable        {movable} of {memory}, in blocks of {block}")?;
    Ok(())
}

fn print_notes(notes: &[String], out: &mut dyn Write) -> io::Result<()> {
    notes.iter().try_for_each(|note| writeln!(out, "note: {note}"))
}

fn parts(blocks: &[Block]) -> [Bytes; 3] {
    let sum = |of: fn(&Block) -> Bytes| blocks.iter().fold(Bytes::ZERO, |sum, b| sum + of(b));
    [sum(|block| block.free), sum(|block| block.used), sum(|block| block.drawn)]
}

fn sums(blocks: &[Block], block: Bytes) -> Value {
    let [free, used, drawn] = parts(blocks);
    json!({
        "bytes": blocks.len() as u64 * block.get(),
        "free_bytes": free.get(),
        "used_bytes": used.get(),
        "drawn_bytes": drawn.get(),
        "blocks": blocks.iter().map(|block| block.number).collect::<Vec<_>>(),
    })
}

/// Formats numbers as ranges: `3, 7-9`.
fn ranges(mut numbers: Vec<u64>) -> String {
    numbers.sort_unstable();
    let runs = numbers.chunk_by(|a, b| a + 1 == *b).filter_map(|run| match run {
        [] => None,
        [one] => Some(one.to_string()),
        [first, .., last] => Some(format!("{first}-{last}")),
    });
    runs.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_side_by_side_are_one_range() {
        assert_eq!(ranges(vec![9, 3, 8, 7, 20]), "3, 7-9, 20");
        assert_eq!(ranges(vec![]), "");
    }
}
