//! Adds to clap's help the subcommands in groups, and examples at the end.

use clap::{Command, CommandFactory};

use crate::examples::examples;
use crate::Cli;

const GROUPS: [(&str, &[&str]); 4] = [
    ("Look", &["probe", "contig", "stats", "top", "leases"]),
    ("Use", &["run", "serve", "lease", "lend", "reclaim", "demo"]),
    ("Set up", &["bank", "recall"]),
    ("Rest", &["zpool", "man", "completions", "help"]),
];

pub(crate) fn command() -> Command {
    let mut command = with_examples(Cli::command(), "glebe");
    command.build();
    let groups = groups(&command);
    let (head, end) = ("{about-with-newline}\n{usage-heading} {usage}", "{options}{after-help}");
    command.help_template(format!("{head}\n\n{groups}Options:\n{end}"))
}

fn groups(command: &Command) -> String {
    let width = command.get_subcommands().map(|of| of.get_name().len()).max().unwrap_or(0);
    let mut text = String::new();
    for (heading, names) in GROUPS {
        text += &format!("{heading}:\n");
        // A build without the server has fewer subcommands.
        for of in names.iter().filter_map(|name| command.find_subcommand(name)) {
            let about = of.get_about().map(ToString::to_string).unwrap_or_default();
            text += &format!("  {:width$}  {about}\n", of.get_name());
        }
        text += "\n";
    }
    text
}

fn with_examples(mut command: Command, page: &str) -> Command {
    let below: Vec<String> = command.get_subcommands().map(|of| of.get_name().to_owned()).collect();
    for name in below {
        let page = format!("{page}-{name}");
        command = command.mut_subcommand(name, |of| with_examples(of, &page));
    }
    let mut end = String::new();
    for (line, about) in examples(page) {
        let heading = if end.is_empty() { "Examples:\n" } else { "" };
        end += &format!("{heading}  {line}\n      {about}\n");
    }
    if let Some(more) = command.get_after_help() {
        end += &format!("\n{more}");
    }
    command.after_help(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subcommand_is_in_one_group_and_its_line_fits_80_columns() {
        let command = command();
        let mut named: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        let mut all: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
        named.sort_unstable();
        all.sort_unstable();
        assert_eq!(named, all);
        let text = command.clone().render_help().to_string();
        for of in all {
            assert!(text.contains(&format!("\n  {of}  ")), "{text}");
        }
        let list = text.split("\nOptions:").next().unwrap_or_default();
        assert!(list.lines().all(|line| line.len() <= 80), "{list}");
        assert!(text.contains("\nExamples:\n  glebe probe\n"), "{text}");
    }

    #[test]
    fn examples_stand_before_the_exit_status() {
        let mut command = command();
        let run = command.find_subcommand_mut("run").expect("glebe run").render_help().to_string();
        let place = |text| run.find(text).unwrap_or_else(|| panic!("{text}: {run}"));
        assert!(place("\nExamples:\n") < place("\nExit status: That of the program"));
    }
}
