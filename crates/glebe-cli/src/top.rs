//! `glebe top` shows reserves, leases and the machine's memory in a terminal, again and again.
//!
//! [`Look`] reads everything once. [`Screen`] keeps what the user chose, and the looks of the last
//! minutes. [`Reader`] reads while the user presses keys. [`draw`] turns a screen into cells, the
//! same ones for a terminal and for `--once`.

mod bank;
mod draw;
mod filter;
mod key;
mod lent;
mod look;
mod machine;
mod page;
mod pick;
mod reader;
mod reserves;
mod screen;

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use ratatui::backend::TestBackend;
use ratatui::buffer::Cell;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{disable_raw_mode, LeaveAlternateScreen};
use ratatui::text::Span;
use ratatui::Terminal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::{usage, Outcome};
use bank::Bank;
use key::Key;
use look::Look;
use reader::{Reader, Told, Wanted};
use screen::Screen;

/// Time between two checks whether it is time for a look, and whether a look has come.
const STEP: Duration = Duration::from_millis(100);
const SOON: Duration = Duration::from_millis(10);
/// Columns of `--once`, if neither the environment nor a terminal gives them.
const COLUMNS: u16 = 80;

/// Options of `glebe top`.
#[derive(clap::Args)]
pub struct TopArgs {
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "2")]
    interval: Duration,
    /// Print one picture as text, and end
    #[arg(long)]
    once: bool,
    /// Use no colours, as with NO_COLOR in the environment
    #[arg(long)]
    no_color: bool,
    /// Order of the reserves
    #[arg(long, value_enum, default_value_t)]
    sort: screen::Order,
    /// Show only reserves and leases with TEXT in their command, process number or name
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    filter: String,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    Ok(Duration::from_secs_f64(seconds.ok_or("give from 0.1 to 3600 seconds")?))
}

pub fn run(args: &TopArgs, out: &mut dyn Write) -> Outcome {
    let has_colors = !args.no_color && std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty());
    let screen = Screen::new(args.interval, args.sort, has_colors && !args.once);
    let mut screen = screen.filtered(&args.filter);
    if args.once {
        screen.add(Look::now(&mut Bank::default()));
        return Ok(out.write_all(once(&screen)?.as_bytes())?);
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return usage("a live picture needs a terminal; --once prints text");
    }
    live(&mut screen)
}

/// Returns the picture as text, without the spaces at the ends of lines and the empty last lines.
fn once(screen: &Screen) -> Result<String, io::Error> {
    let of = |name: &str| std::env::var(name).ok()?.parse::<u16>().ok().filter(|it| *it > 0);
    let seen = terminal_size::terminal_size().map(|(width, _)| width.0);
    let width = of("COLUMNS").or(seen).unwrap_or(COLUMNS).min(1000);
    let rows = of("LINES").unwrap_or_else(|| draw::rows(screen)).min(1000);
    let mut terminal = Terminal::new(TestBackend::new(width, rows))?;
    terminal.draw(|frame| draw::all(screen, false, frame))?;
    let cells = terminal.backend().buffer();
    let line = |row: &[Cell]| format!("{}\n", text_of(row).trim_end());
    let text: String = cells.content().chunks(usize::from(width)).map(line).collect();
    Ok(format!("{}\n", text.trim_end()))
}

/// Returns the text of a row. A wide letter has two cells, and the second one is empty.
fn text_of(row: &[Cell]) -> String {
    let (mut text, mut rest) = (String::new(), row.iter());
    while let Some(cell) = rest.next() {
        text.push_str(cell.symbol());
        let width = Span::raw(cell.symbol()).width();
        rest.by_ref().take(width.saturating_sub(1)).for_each(drop);
    }
    text
}

/// Draws in this thread, and reads in another. A third one waits for signals, and ends the process
/// even if the terminal is gone.
fn live(screen: &mut Screen) -> Outcome {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            restore();
            std::process::exit(0);
        }
    });
    let mut reader = Reader::start();
    let mut terminal = ratatui::try_init().inspect_err(|_| ratatui::restore())?;
    let done = watch(screen, &mut terminal, &mut reader);
    let restored = ratatui::try_restore();
    done?;
    Ok(restored?)
}

/// Restores the terminal, while the main thread has the lock of standard output.
fn restore() {
    let _ = disable_raw_mode();
    if let Ok(mut terminal) = File::options().write(true).open("/dev/tty") {
        let _ = execute!(terminal, LeaveAlternateScreen, Show);
    }
}

fn watch(
    screen: &mut Screen,
    terminal: &mut ratatui::DefaultTerminal,
    reader: &mut Reader,
) -> io::Result<()> {
    let (mut next, mut age) = (Instant::now(), None);
    loop {
        let told = reader.told();
        let mut is_changed = told.is_some() || age != screen.age();
        age = screen.age();
        match told {
            Some(Told::Look(look)) => screen.add(*look),
            Some(Told::Map(map)) => screen.set_map(map),
            None => {}
        }
        if next <= Instant::now() && !reader.has_asked(Wanted::Look) && !screen.is_paused() {
            reader.ask(Wanted::Look);
            next = Instant::now() + screen.interval();
        }
        if screen.wants_map() {
            reader.ask(Wanted::Map);
        }
        if event::poll(if reader.is_busy() { SOON } else { STEP })? {
            let key = match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => {
                    Key::of(key, screen.is_typing())
                }
                _ => Key::Redraw,
            };
            match key {
                Key::End => return Ok(()),
                Key::Clear => terminal.clear()?,
                other => screen.press(other),
            }
            next = next.min(Instant::now() + screen.interval());
            is_changed = true;
        }
        if is_changed {
            terminal.draw(|frame| draw::all(screen, true, frame))?;
        }
    }
}

#[cfg(test)]
mod tests;
