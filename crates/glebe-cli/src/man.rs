//! `glebe man`: the manual pages, one for the command and one for each subcommand.
//!
//! Made from the definition of the command line, so that they say what it does.

mod sections;

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::{run, Cli, Outcome, EXIT_STATUS};

/// Of the release: changed with the version.
const DATE: &str = "2026-11-21";

/// Options of `glebe man`.
#[derive(clap::Args)]
pub struct Args {
    /// Where to; made if it is missing
    dir: PathBuf,
}

/// Writes the pages and names them.
pub fn run(args: &Args, out: &mut dyn Write) -> Outcome {
    let dir = &args.dir;
    fs::create_dir_all(dir).map_err(|e| format!("mkdir({}): {e}", dir.display()))?;
    // `help` repeats what --help says.
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    for page in all(&command) {
        let man = man(page.clone());
        let mut text = Vec::new();
        man.render(&mut text)?;
        let text = String::from_utf8(text)?.replace(".SH EXTRA\n", ".SH \"EXIT STATUS\"\n");
        // An empty line with breaks around it is one break too many for some formatters.
        let text = text.replace("\n.br\n\n.br\n", "\n.sp\n");
        let file = man.get_filename();
        let text = text + &sections::of(file.trim_end_matches(".1"), &command);
        let path = dir.join(file);
        fs::write(&path, text).map_err(|e| format!("write({}): {e}", path.display()))?;
        writeln!(out, "{}", path.display())?;
    }
    Ok(())
}

/// A command and those below it, but for hidden ones and `help`.
fn all(command: &Command) -> Vec<&Command> {
    let shown = |page: &&Command| !page.is_hide_set() && page.get_name() != "help";
    let below = command.get_subcommands().filter(shown).flat_map(all);
    [command].into_iter().chain(below).collect()
}

fn man(page: Command) -> Man {
    let release = format!("glebe {}", env!("CARGO_PKG_VERSION"));
    let exit_status = match page.get_name() {
        "run" => run::EXIT_STATUS,
        _ => EXIT_STATUS,
    };
    // What stands after the help becomes a section of its own.
    Man::new(page.after_help(exit_status)).date(DATE).source(release).manual("User Commands")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn every_example_is_a_command_line_of_its_page() {
        let mut command = Cli::command().disable_help_subcommand(true);
        command.build();
        for page in all(&command) {
            let name = man(page.clone()).get_filename();
            let name = name.trim_end_matches(".1");
            let examples = sections::examples(name);
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
