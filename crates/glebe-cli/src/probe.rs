//! `glebe probe` prints which uses of glebe work here, then the rows of [`Support`], as aligned
//! text or as JSON.
//!
//! Text is at most [`WIDTH`] columns wide, unless one word (a path) is longer than its column.

mod uses;

use std::io::{self, Write};

use glebe::page_size;
use glebe::probe::{Mechanism, State, Support};
use serde_json::{json, Value};

use crate::Outcome;

const WIDTH: usize = 100;

/// Options of `glebe probe`.
#[derive(clap::Args)]
pub struct ProbeArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &ProbeArgs, out: &mut dyn Write) -> Outcome {
    let support = Support::probe();
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &to_json(&support)).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        write_text(&support, out)?;
    }
    Ok(())
}

fn to_json(support: &Support) -> Value {
    let rows: Vec<Value> = support.mechanisms().iter().map(row_to_json).collect();
    let uses = uses::of(support.mechanisms());
    let uses = uses.map(|of| json!({"name": of.name, "state": of.state.as_str(), "text": of.text}));
    json!({
        "kernel_release": support.release(),
        "page_size_bytes": page_size().bytes().get(),
        "uses": uses,
        "mechanisms": rows,
    })
}

fn row_to_json(row: &Mechanism) -> Value {
    json!({
        "key": row.key,
        "name": row.name,
        "state": row.state.as_str(),
        "detail": row.detail,
        "reason": row.reason,
        "remedy": row.remedy,
    })
}

fn write_text(support: &Support, out: &mut dyn Write) -> io::Result<()> {
    let rows = support.mechanisms();
    let uses = uses::of(support.mechanisms());
    let width = uses.iter().map(|of| of.name.len()).max().unwrap_or_default();
    for uses::Use { name, state, text } in &uses {
        write!(out, "{name:width$}  {state:6}  ")?;
        write_wrapped(out, width + "  partly  ".len(), "", text)?;
    }
    let count = |state: State| rows.iter().filter(|row| row.state == state).count();
    writeln!(
        out,
        "\nLinux {}, {} pages: {} of {} mechanisms, {} in part",
        support.release(),
        page_size().bytes(),
        count(State::Yes),
        rows.len(),
        count(State::Partly),
    )?;
    let key_width = rows.iter().map(|row| row.key.len()).max().unwrap_or_default();
    let indent = key_width + "  partly  ".len();
    for row in rows {
        write!(out, "{:key_width$}  {:6}  ", row.key, row.state)?;
        let text = match &*row.detail {
            "" => row.name.clone(),
            detail => format!("{}: {detail}", row.name),
        };
        write_wrapped(out, indent, "", &text)?;
        if row.state != State::Yes {
            write!(out, "{:indent$}", "")?;
            write_wrapped(out, indent, "why: ", &row.reason)?;
            write!(out, "{:indent$}", "")?;
            write_wrapped(out, indent, "how: ", &row.remedy)?;
        }
    }
    Ok(())
}

/// Writes `label` and `text` from column `indent` on, and aligns later lines with the first word of
/// `text`.
fn write_wrapped(out: &mut dyn Write, indent: usize, label: &str, text: &str) -> io::Result<()> {
    write!(out, "{label}")?;
    let hang = indent + label.len();
    let mut column = hang;
    for (i, word) in text.split_whitespace().enumerate() {
        let width = word.chars().count();
        if i > 0 && column + 1 + width > WIDTH {
            write!(out, "\n{:hang$}", "")?;
            column = hang;
        } else if i > 0 {
            write!(out, " ")?;
            column += 1;
        }
        write!(out, "{word}")?;
        column += width;
    }
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapped(label: &str, text: &str) -> String {
        let mut out = Vec::new();
        write_wrapped(&mut out, 10, label, text).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn wraps_at_the_width_and_keeps_every_word() {
        let text = "word ".repeat(100);
        let out = wrapped("why: ", &text);
        assert!(out.lines().skip(1).all(|line| line.len() <= WIDTH && line.starts_with("     ")));
        assert_eq!(out.matches("word").count(), 100);
        assert!(out.lines().nth(1).unwrap().len() > WIDTH - 5, "{out}");
    }

    #[test]
    fn a_word_longer_than_the_column_stands_whole() {
        let path = "/x".repeat(WIDTH);
        assert!(wrapped("", &format!("a {path} b")).contains(&path));
    }
}
