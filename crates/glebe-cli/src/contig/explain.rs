//! `glebe contig explain` prints whether one run of a length is available now, and what would help.

use std::io::{self, Write};
use std::path::PathBuf;

use glebe::contig::internal::{explain_on, FrameUses};
use glebe::contig::{Contig, Error, Node, Outlook, Proof, Verdict};
use glebe::internal::sys::machine::numa;
use glebe::internal::sys::memory::pagemap::frames_visible;
use glebe::page_size;
use glebe::units::Bytes;
use serde_json::{json, Value};

use crate::size::parse;
use crate::Outcome;

/// Options of `glebe contig explain`.
#[derive(clap::Args)]
pub struct ExplainArgs {
    /// Length of the run, for example 64M or 1G
    #[arg(value_parser = parse)]
    len: Bytes,
    /// Only a run on NUMA node N
    #[arg(long, value_name = "N")]
    node: Option<u32>,
    /// Take the run for a moment and say what came. The exit status is 1 if no run is as long as
    /// LEN. It is 0 if page frames are hidden from the user, because the runs are then unknown
    #[arg(long = "try")]
    attempt: bool,
    /// With --try: write the certificate here, readable by its owner alone
    #[arg(long, value_name = "FILE", requires = "attempt")]
    certificate: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The answer for the machine or one node, and for each node of several.
struct Answer {
    len: Bytes,
    node: Option<Node>,
    outlook: Outlook,
    by_node: Vec<(Node, Outlook)>,
}

/// Prints the verdict; without `--try`, `No` is an error. With `--try`, allocates memory and writes
/// the certificate if a file is given; runs that are proved shorter are an error.
pub fn run(args: &ExplainArgs, out: &mut dyn Write) -> Outcome {
    let answer = Answer::find(args.len, args.node.map(Node))?;
    if !args.json {
        answer.write_text(out)?;
    }
    if !args.attempt {
        if args.json {
            write_json(&answer.json(None), out)?;
        }
        return match answer.outlook.verdict {
            Verdict::No => Err(format!("{} cannot be had now", answer.wanted()).into()),
            _ => Ok(()),
        };
    }
    let options = Contig::options().prefer_run(args.len);
    let memory = answer.node.into_iter().fold(options, |options, node| options.node(node));
    let memory = memory.build(args.len)?;
    match args.json {
        true => write_json(&answer.json(Some(&memory)), out)?,
        false => write_tried(&memory, out)?,
    }
    if let Some(file) = &args.certificate {
        memory.certificate().write(file)?;
        if !args.json {
            writeln!(out, "    certificate in {}", file.display())?;
        }
    }
    let (len, longest) = (args.len, memory.longest_run().bytes(page_size()));
    if memory.proof() == Proof::Frames && longest < len {
        let why = format!("{len} was not had in one piece; the longest run is {longest}");
        return Err(why.into());
    }
    Ok(())
}

fn write_json(value: &Value, out: &mut dyn Write) -> Outcome {
    serde_json::to_writer_pretty(&mut *out, value).map_err(io::Error::from)?;
    Ok(writeln!(out)?)
}

fn write_tried(memory: &Contig, out: &mut dyn Write) -> io::Result<()> {
    let longest = memory.longest_run().bytes(page_size());
    writeln!(out, "tried: {} of {}, longest run {longest}", memory.len(), memory.source())?;
    writeln!(out, "    {}; held by {}", memory.proof(), memory.held_by())?;
    memory.why_not_better().iter().try_for_each(|why| writeln!(out, "    {why}"))
}

impl Answer {
    fn find(len: Bytes, node: Option<Node>) -> Result<Self, Error> {
        let frames = FrameUses::default();
        let outlook = explain_on(len, node, &frames)?;
        let nodes = match node {
            None => numa::with_memory(),
            Some(_) => Vec::new(),
        };
        // The machine's answer is that of a single node.
        let nodes = if nodes.len() > 1 { nodes } else { Vec::new() };
        let of_node = |node| Ok((node, explain_on(len, Some(node), &frames)?));
        let by_node = nodes.into_iter().map(of_node).collect::<Result<_, Error>>()?;
        Ok(Self { len, node, outlook, by_node })
    }

    fn wanted(&self) -> String {
        let on = self.node.map_or_else(String::new, |node| format!(" on {node}"));
        format!("{} in one piece{on}", self.len)
    }

    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.verdict())?;
        for line in std::iter::once(&self.outlook.why).chain(&self.outlook.helps) {
            writeln!(out, "    {line}")?;
        }
        for (node, outlook) in &self.by_node {
            writeln!(out, "on {node}: {}: {}", word(outlook.verdict), outlook.why)?;
        }
        if !frames_visible() {
            let hidden = "page frames are hidden from this process, so that contiguity is proved \
                only within one page of the source; CAP_SYS_ADMIN shows them";
            writeln!(out, "{hidden}")?;
        }
        Ok(())
    }

    fn verdict(&self) -> String {
        let (word, wanted) = (word(self.outlook.verdict), self.wanted());
        match self.outlook.verdict {
            Verdict::Now => format!("{word}: {wanted} can be had now"),
            Verdict::ByGrowth => {
                format!("{word}: {wanted} can be had if the kernel finds the pages")
            }
            Verdict::No => format!("{word}: {wanted} cannot be had now"),
            Verdict::Unknown => format!("{word}: whether {wanted} can be had"),
        }
    }

    fn json(&self, tried: Option<&Contig>) -> Value {
        let on_node = |(node, outlook): &(Node, Outlook)| {
            let mut value = judged(outlook);
            value["node"] = node.0.into();
            value
        };
        let mut value = judged(&self.outlook);
        value["len_bytes"] = self.len.get().into();
        value["node"] = self.node.map(|node| node.0).into();
        value["by_node"] = self.by_node.iter().map(on_node).collect();
        value["frames_visible"] = frames_visible().into();
        value["tried"] = tried.map(as_json).into();
        value
    }
}

fn judged(outlook: &Outlook) -> Value {
    let Outlook { verdict, why, helps } = outlook;
    json!({ "verdict": verdict.as_str(), "why": why, "helps": helps })
}

fn as_json(memory: &Contig) -> Value {
    json!({
        "len_bytes": memory.len().get(),
        "source": memory.source().to_string(),
        "longest_run_bytes": memory.longest_run().bytes(page_size()).get(),
        "proof": memory.proof().to_string(),
        "held_by": memory.held_by().as_str(),
        "why_not_better": memory.why_not_better(),
    })
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Now => "yes",
        Verdict::ByGrowth => "yes, by growth",
        Verdict::No => "no",
        Verdict::Unknown => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outlook(verdict: Verdict, why: &str) -> Outlook {
        Outlook { verdict, why: why.to_owned(), helps: vec!["help".to_owned()] }
    }

    fn answer(node: Option<Node>, by_node: Vec<(Node, Outlook)>) -> Answer {
        let outlook = outlook(Verdict::Now, "idle");
        Answer { len: Bytes::mib(64), node, outlook, by_node }
    }

    fn text(answer: &Answer) -> String {
        let mut out = Vec::new();
        answer.write_text(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_of_several_nodes_has_a_line_with_its_reason() {
        let nodes = vec![
            (Node(0), outlook(Verdict::No, "little is idle")),
            (Node(2), outlook(Verdict::ByGrowth, "much is free")),
        ];
        let both = answer(None, nodes);
        let head = "yes: 64 MiB in one piece can be had now\n    idle\n    help\n";
        let of_nodes = "on node 0: no: little is idle\non node 2: yes, by growth: much is free\n";
        assert!(text(&both).starts_with(&format!("{head}{of_nodes}")), "{}", text(&both));
        assert!(text(&answer(None, Vec::new())).starts_with(head));
        assert!(!text(&answer(None, Vec::new())).contains("node"));
        let one = text(&answer(Some(Node(1)), Vec::new()));
        assert!(one.starts_with("yes: 64 MiB in one piece on node 1 can be had now\n"), "{one}");
        let value = both.json(None);
        assert_eq!((&value["verdict"], &value["node"]), (&json!("now"), &Value::Null));
        assert_eq!(value["by_node"][1]["node"], 2);
        assert_eq!(value["by_node"][1]["verdict"], "by growth");
        assert_eq!(value["by_node"][0]["why"], "little is idle");
    }
}
