//! `glebe man` writes the manual pages of `glebe` and its subcommands, generated from the clap
//! definition.

mod sections;

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::{run, Cli, Outcome, EXIT_STATUS};

const DATE: &str = "2026-11-21";

/// Options of `glebe man`.
#[derive(clap::Args)]
pub struct ManArgs {
    /// Directory to write to; made if it is missing
    dir: PathBuf,
}

pub fn run(args: &ManArgs, out: &mut dyn Write) -> Outcome {
    let dir = &args.dir;
    fs::create_dir_all(dir).map_err(|e| format!("mkdir({}): {e}", dir.display()))?;
    // `--help` prints the same text as `help`.
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    for page in all(&command) {
        let man = man(page.clone());
        let mut text = Vec::new();
        man.render(&mut text)?;
        let text = String::from_utf8(text)?.replace(".SH EXTRA\n", ".SH \"EXIT STATUS\"\n");
        // `.sp` replaces an empty line between breaks, because some formatters break twice there.
        let text = text.replace("\n.br\n\n.br\n", "\n.sp\n");
        let file = man.get_filename();
        let text = text + &sections::of(file.trim_end_matches(".1"), &command);
        let path = dir.join(file);
        fs::write(&path, text).map_err(|e| format!("write({}): {e}", path.display()))?;
        writeln!(out, "{}", path.display())?;
    }
    Ok(())
}

fn all(command: &Command) -> Vec<&Command> {
    let shown = |page: &&Command| !page.is_hide_set() && page.get_name() != "help";
    let below = command.get_subcommands().filter(shown).flat_map(all);
    [command].into_iter().chain(below).collect()
}

fn man(page: Command) -> Man {
    let release = format!("glebe {}", env!("CARGO_PKG_VERSION"));
    let exit_status = match page.get_name() {
        "run" => run::EXIT_STATUS,
        #[cfg(feature = "serve")]
        "lease" => crate::lease::EXIT_STATUS,
        _ => EXIT_STATUS,
    };
    // clap_mangen puts the text after the help into a section `EXTRA`, which `run` renames.
    Man::new(page.after_help(exit_status)).date(DATE).source(release).manual("User Commands")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::examples;
    use clap::Parser;

    #[test]
    fn every_example_is_a_command_line_of_its_page() {
        let mut command = Cli::command().disable_help_subcommand(true);
        command.build();
        for page in all(&command) {
            let name = man(page.clone()).get_filename();
            let name = name.trim_end_matches(".1");
            let examples = examples(name);
            assert!(!examples.is_empty(), "{name}");
            for (line, _) in examples {
                let own = line.split(['|', '>']).next().unwrap_or_default();
                let parsed = Cli::try_parse_from(own.split_whitespace());
                assert!(parsed.is_ok(), "{line}: {:?}", parsed.err());
                assert!(own.replace(' ', "-").starts_with(name), "{line} in {name}");
            }
        }
    }
}
