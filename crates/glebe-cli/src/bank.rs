//! `glebe bank` manages movable memory blocks. Programs use them until glebe allocates a contiguous
//! run from them.

use std::io::{self, Write};

use glebe::contig::bank::{self, Block, Change, Movable};
use glebe::contig::Error;
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
    /// Make LEN of memory movable; programs and page cache use it meanwhile (root)
    Add {
        /// Length, rounded up to whole memory blocks
        #[arg(value_parser = parse)]
        len: Bytes,
        /// Print the blocks that would be taken, and touch none
        #[arg(long)]
        dry_run: bool,
    },
    /// Show the bank and its use; users other than root see only how much memory is movable
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Give LEN of the bank back to the kernel, or all; blocks with drawn pages stay (root)
    Drop {
        /// Length, rounded up to whole memory blocks; all if not given
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
    let (machine, status) = match bank::status() {
        Ok(status) => (status.machine, Some(status)),
        // Only root can read the record of the bank's owners; all can read the kernel's list of
        // blocks.
        Err(Error::NoBlocks { .. }) => (bank::movable()?, None),
        Err(error) => return Err(error.into()),
    };
    let Movable { block, movable, memory } = machine;
    if as_json {
        let mut value = json!({
            "block_bytes": block.get(),
            "movable_bytes": movable.get(),
            "memory_bytes": memory.get(),
        });
        if let Some(bank::Status { blocks, processes, ownerless, notes, .. }) = &status {
            value["bank"] = sums(blocks, block);
            value["processes"] = sums(processes, block);
            value["ownerless"] = sums(ownerless, block);
            value["mended"] = json!(notes);
        }
        serde_json::to_writer_pretty(&mut *out, &value).map_err(io::Error::from)?;
        return Ok(writeln!(out)?);
    }
    if let Some(status) = &status {
        print_notes(&status.notes, out)?;
    }
    // Without movable memory there is no bank.
    if status.as_ref().map_or(movable == Bytes::ZERO, |status| status.blocks.is_empty()) {
        writeln!(out, "no bank: nothing is set aside (to make one, as root: glebe bank add 4G)")?;
    } else if status.is_none() {
        writeln!(out, "{movable} may be a bank: only root can read how much of it is one")?;
    }
    if let Some(bank::Status { blocks, processes, ownerless, .. }) = &status {
        let rows = [("bank", blocks), ("of processes", processes), ("without owner", ownerless)];
        for (name, blocks) in rows.into_iter().filter(|(_, blocks)| !blocks.is_empty()) {
            row(name, blocks, block, out)?;
        }
    }
    writeln!(out, "movable        {movable} of {memory}, in blocks of {block}")?;
    Ok(())
}

fn row(name: &str, blocks: &[Block], block: Bytes, out: &mut dyn Write) -> io::Result<()> {
    let len = Bytes::new(blocks.len() as u64 * block.get());
    let [free, used, drawn] = parts(blocks);
    let numbers = ranges(blocks.iter().map(|block| block.number).collect());
    let which = format!("memory blocks {numbers}");
    writeln!(out, "{name:<14} {len}: {free} free, {used} in use, {drawn} drawn; {which}")
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
