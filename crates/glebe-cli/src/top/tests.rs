//! Tests of the picture, in terminals of several sizes.

use std::time::{Duration, Instant};

use glebe::lease::wire::{Flags, Name, Row};
use glebe::units::Bytes;
use ratatui::backend::TestBackend;
use ratatui::buffer::Cell;
use ratatui::style::Modifier;
use ratatui::text::Span;
use ratatui::Terminal;

use super::key::Key;
use super::lent::LentNow;
use super::look::{plain, Look, Seen};
use super::machine::MachineNow;
use super::pick::Step;
use super::reserves::Numbers;
use super::screen::{Order, Screen};
use super::{draw, once, text_of};

/// No process has this number.
const DAEMON: u32 = u32::MAX;

fn seen(pid: u32, total: u64, given: u64) -> Seen {
    let numbers = Numbers {
        total,
        held: total / 4,
        cached: total / 2,
        free: total / 4,
        given,
        given_ns: given * 2000,
        hits: 3 * given,
        misses: given,
        recalled: 7 * given,
        p50: 1400,
        p99: 17_300,
        max: 20_000_000,
        ..Numbers::default()
    };
    let (path, command) = (format!("{pid}.0.sock").into(), format!("tool-{pid}"));
    Seen { path, at: Instant::now(), pid, number: 0, command, is_own: true, numbers }
}

fn look(reserves: Vec<Seen>, leases: u64) -> Look {
    let row = |nth| Row {
        lease: nth,
        bytes: nth << 21,
        uid: 1000,
        pid: 70 + nth as u32,
        flags: Flags { revocable: nth % 2 == 0, ..Flags::default() },
        is_cache: false,
        name: Name::new(&format!("tenant {nth}")),
    };
    let rows: Vec<Row> = (1..=leases).map(row).collect();
    let bytes = [6 << 20, 0, 0, 0, 0, 1 << 20];
    let lent = LentNow { path: "/run/leases".to_owned(), pid: DAEMON, rows, bytes };
    Look {
        at: Instant::now(),
        machine: MachineNow { total: Some(Bytes::gib(24)), ..MachineNow::default() },
        reserves,
        lent: (leases > 0).then_some(lent),
        notes: Vec::new(),
    }
}

fn screen(order: Order) -> Screen {
    Screen::new(Duration::from_secs(2), order, false)
}

fn drawn(screen: &Screen, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw::all(screen, true, frame)).unwrap();
    terminal.backend().to_string()
}

#[test]
fn one_picture_has_reserves_leases_and_the_machine() {
    let mut screen = screen(Order::Size);
    let (before, now) = (vec![seen(7, 4096, 10)], vec![seen(7, 4096, 30), seen(8, 1024, 5)]);
    let mut first = look(before, 0);
    first.reserves[0].at = Instant::now() - Duration::from_secs(10);
    screen.add(first);
    screen.add(look(now, 3));
    let text = drawn(&screen, 80, 24);
    for wanted in [
        "memory 24 GiB, ? available",
        "tool-7",
        "30 blocks given: half within 1.4 us, 99 % within 17.3 us, the slowest 20.0 ms",
        "leases at /run/leases: 6 MiB leased, 1 MiB on the way back",
        "6 MiB     1000       73  lease      tenant 3",
        "4 MiB     1000       72  revocable  tenant 2",
        "q quit",
    ] {
        assert!(text.contains(wanted), "{wanted}\n{text}");
    }
    // 20 blocks and 140 pages in 10 s, three hits of four gets.
    let line = text.lines().find(|line| line.contains("tool-7")).unwrap();
    let words: Vec<&str> = line.trim_matches(['"', ' ']).split_whitespace().collect();
    assert_eq!(words[words.len() - 3..], ["2", "75", "14"], "{line}");
}

#[test]
fn every_size_of_a_terminal_has_a_picture() {
    let mut screen = screen(Order::Size);
    for _ in 0..3 {
        screen.add(look((0..50).map(|pid| seen(pid, 1 << 40, 1 << 40)).collect(), 50));
    }
    for (width, height) in [(80, 24), (1, 1), (20, 5), (40, 10), (200, 60), (300, 3)] {
        let text = drawn(&screen, width, height);
        assert_eq!(text.lines().count(), usize::from(height));
    }
    let small = drawn(&screen, 80, 24);
    assert!(small.contains("leases 1 to 2 of 50; the others have 2.3 GiB"), "{small}");
    assert!(small.contains("reserves 1 to 5 of 50; the others have "), "{small}");
    let all = drawn(&screen, 80, draw::rows(&screen) + 3);
    for nth in 0..50 {
        assert!(all.contains(&format!("tool-{nth} ")), "{nth}\n{all}");
        assert!(all.contains(&format!("tenant {}", nth + 1)), "{nth}\n{all}");
    }
}

#[test]
fn keys_sort_and_pick() {
    let mut screen = screen(Order::Pid);
    let all = || look(vec![seen(1, 10, 0), seen(2, 30, 0), seen(3, 20, 0)], 0);
    screen.add(all());
    let pids = |screen: &Screen| screen.ordered().iter().map(|(it, _)| it.pid).collect::<Vec<_>>();
    assert_eq!(pids(&screen), [1, 2, 3]);
    let picked = |screen: &Screen| screen.picked().map(|nth| screen.ordered()[nth].0.pid);
    assert_eq!(picked(&screen), Some(1));
    screen.press(Key::Sort);
    assert_eq!((screen.order(), pids(&screen)), (Order::Size, vec![2, 3, 1]));
    assert_eq!(picked(&screen), Some(1), "the choice stays with the reserve");
    screen.press(Key::Move(Step::Up));
    assert_eq!(picked(&screen), Some(3));
    (0..5).for_each(|_| screen.press(Key::Move(Step::Down)));
    assert_eq!(picked(&screen), Some(1));
    // One look misses the picked reserve.
    screen.add(look(vec![seen(2, 30, 0), seen(3, 20, 0)], 0));
    assert_eq!(picked(&screen), Some(2), "the first, meanwhile");
    assert!(drawn(&screen, 80, 24).contains("process 2, reserve 0"));
    screen.add(all());
    assert_eq!(picked(&screen), Some(1), "the choice is kept");
    screen.add(look(Vec::new(), 0));
    assert_eq!(picked(&screen), None);
    assert!(drawn(&screen, 80, 24).contains("No reserve of yours"));
    let before = screen.interval();
    screen.press(Key::Slower);
    assert_eq!(screen.interval(), before * 2);
    screen.press(Key::Pause);
    assert!(drawn(&screen, 80, 24).contains("paused"));
}

#[test]
fn a_picture_as_text_has_no_spaces_at_the_ends() {
    let mut screen = screen(Order::Size);
    screen.add(look(vec![seen(7, 1024, 10)], 1));
    for leases in [2, 10] {
        screen.add(look(vec![seen(7, 1024, 10)], leases));
        assert!(!once(&screen).unwrap().contains("others"), "all leases");
    }
    screen.press(Key::Help);
    assert!(drawn(&screen, 80, 24).contains("TAKEN/s  pages that left"));
    screen.press(Key::Help);
    let text = once(&screen).unwrap();
    assert!(text.lines().all(|line| !line.ends_with(' ')) && !text.ends_with("\n\n"), "{text}");
    assert!(text.starts_with("glebe top"), "{text}");
}

/// Returns the lines that are drawn in reverse.
fn reversed(screen: &Screen, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(80, height)).unwrap();
    terminal.draw(|frame| draw::all(screen, true, frame)).unwrap();
    let rows = terminal.backend().buffer().content().chunks(80);
    let rows = rows.filter(|row| row[6].modifier.contains(Modifier::REVERSED));
    rows.map(|row| row.iter().map(Cell::symbol).collect()).collect()
}

#[test]
fn a_table_shows_the_picked_row_of_a_thousand() {
    let mut screen = screen(Order::Pid);
    let many = || look((0..1000).map(|pid| seen(pid, 1 << 20, 0)).collect(), 1000);
    screen.add(many());
    screen.add(many());
    let steps = [
        (Step::Down, 1),
        (Step::PageDown, 11),
        (Step::Last, 999),
        (Step::PageUp, 989),
        (Step::Up, 988),
        (Step::First, 0),
    ];
    for (step, pid) in steps {
        screen.press(Key::Move(step));
        for height in [10, 24, 60] {
            let text = drawn(&screen, 80, height);
            assert!(text.contains(&format!(" {pid} tool-")), "{step:?}\n{text}");
            let detail = format!("process {pid}, reserve 0: tool-{pid} ");
            assert!(text.contains(&detail), "{step:?}\n{text}");
        }
        let marked = reversed(&screen, 24);
        assert!(marked.len() == 1 && marked[0].contains(&format!(" {pid} tool-")), "{marked:?}");
    }
    screen.press(Key::Table);
    // The longest lease comes first.
    for (step, lease) in steps.map(|(step, nth)| (step, 1000 - nth)) {
        screen.press(Key::Move(step));
        for (width, height) in [(80, 24), (40, 10), (80, 60)] {
            let text = drawn(&screen, width, height);
            assert!(text.contains(&format!(" {} ", 70 + lease)), "{step:?}\n{text}");
            assert!(text.contains(" of 1000; "), "{text}");
        }
        let marked = reversed(&screen, 24);
        let name = format!("tenant {lease} ");
        assert!(marked.len() == 1 && marked[0].contains(&name), "{marked:?}");
    }
    assert!(drawn(&screen, 80, 24).contains("leases 1 to 5 of 1000; the others have "));
    assert!(drawn(&screen, 80, 24).contains(" 0 tool-0 "), "the other table stays");
    screen.press(Key::Table);
    screen.press(Key::Move(Step::Down));
    assert!(drawn(&screen, 80, 24).contains("process 1, reserve 0"));
    // Without leases their table cannot be in use.
    screen.press(Key::Table);
    screen.add(look(vec![seen(1, 10, 0), seen(2, 10, 0)], 0));
    screen.press(Key::Move(Step::Down));
    assert!(drawn(&screen, 80, 24).contains("process 2, reserve 0"));
}

fn write(screen: &mut Screen, text: &str) {
    screen.press(Key::Filter);
    text.chars().for_each(|letter| screen.press(Key::Type(letter)));
}

#[test]
fn a_filter_hides_other_reserves_and_leases() {
    let mut screen = screen(Order::Pid);
    screen.add(look((0..30).map(|pid| seen(pid, 1 << 20, 0)).collect(), 12));
    write(&mut screen, "OOL-2");
    assert!(screen.is_typing());
    let text = drawn(&screen, 80, 24);
    assert!(text.contains("filter: OOL-2_   Enter keep, Esc show all"), "{text}");
    screen.press(Key::Enter);
    let pids: Vec<u32> = screen.ordered().iter().map(|(seen, _)| seen.pid).collect();
    assert_eq!(pids, [2, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29]);
    let text = drawn(&screen, 80, 24);
    assert!(text.contains("by pid; filter OOL-2 "), "{text}");
    assert!(text.contains("process 2, reserve 0") && text.contains("q quit"), "{text}");
    assert!(text.contains("leases at /run/leases: 6 MiB leased") && !text.contains("tenant"));
    screen.press(Key::Escape);
    assert_eq!(screen.ordered().len(), 30);
    for (filter, leases) in [("tenant 1", 4), ("82", 1), ("nobody", 0)] {
        write(&mut screen, filter);
        assert_eq!(screen.leases().len(), leases, "{filter}");
        assert!(drawn(&screen, 80, 24).contains("No reserve matches the filter"));
        screen.press(Key::Escape);
    }
    let screen = Screen::new(Duration::from_secs(2), Order::Pid, false).filtered("tool-29");
    let mut screen = screen;
    screen.add(look((0..30).map(|pid| seen(pid, 1 << 20, 0)).collect(), 12));
    let text = once(&screen).unwrap();
    assert!(text.contains("filter tool-29\n") && text.contains("process 29, "), "{text}");
    assert!(!text.contains("tool-28"), "{text}");
}

#[test]
fn leases_have_a_sign_in_the_bar_of_their_reserve_only() {
    let mut screen = screen(Order::Size);
    let pages = Bytes::mib(40).pages_down(glebe::page_size()).get();
    let with = |change: fn(&mut Look)| {
        let mut look = look(vec![seen(7, pages, 0), seen(8, 1, 0)], 2);
        let lent = look.lent.as_mut().unwrap();
        (lent.pid, lent.bytes) = (7, [6 << 20, 2 << 20, 0, 0, 0, 0]);
        change(&mut look);
        look
    };
    screen.add(with(|_| {}));
    let text = drawn(&screen, 80, 24);
    let legend = "\n\"= leases 6 MiB  # blocks 4 MiB  : caches 20 MiB  . free 10 MiB ";
    assert!(text.contains(legend), "{text}");
    assert!(text.contains("reserve 0: tool-7; promised 2 MiB "), "{text}");
    let bar = text.lines().find(|line| line.contains("[=")).unwrap();
    let counts = ['=', '#', ':', '.'].map(|sign| bar.matches(sign).count());
    assert_eq!(counts, [11, 7, 41, 19], "{bar}");
    let changes: [fn(&mut Look); 4] = [
        |look| look.lent.as_mut().unwrap().pid = 0,
        |look| look.reserves[0].is_own = false,
        |look| look.reserves[1].pid = 7,
        |look| look.lent = None,
    ];
    for change in changes {
        screen.add(with(change));
        let text = drawn(&screen, 80, 24);
        let legend = "\n\"# blocks 10 MiB  : caches 20 MiB  . free 10 MiB ";
        assert!(text.contains(legend) && !text.contains("tool-7; promised"), "{text}");
    }
    // The daemon took over leases of an earlier one.
    screen.add(with(|look| look.lent.as_mut().unwrap().bytes[0] = u64::MAX));
    let text = drawn(&screen, 80, 24);
    assert!(text.contains("= leases 10 MiB  # blocks 0 B  "), "{text}");
}

#[test]
fn hostile_names_leave_the_picture_as_it_is() {
    let names = [
        "\x1b[2J\x07\r\n",
        "\u{202e}gnp.exe\u{200b}",
        "文字文字文字文字文字文字",
        "👩‍👩‍👧‍👦e\u{301}\u{301}",
        &"x".repeat(9999),
    ];
    let mut screen = screen(Order::Pid);
    let mut look = look((0..5).map(|pid| seen(pid, 1 << 20, 0)).collect(), 5);
    for (nth, name) in names.iter().enumerate() {
        look.reserves[nth].command = plain(name);
        // A stranger's command line is no name.
        let lent = look.lent.as_mut().unwrap();
        lent.rows[nth].name = Name::new(name);
        lent.rows[nth].uid = u32::MAX;
        lent.rows[nth].bytes = u64::MAX;
    }
    screen.add(look);
    for (width, height) in [(80, 24), (40, 10), (120, 60)] {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw::all(&screen, true, frame)).unwrap();
        for row in terminal.backend().buffer().content().chunks(usize::from(width)) {
            let line = text_of(row);
            assert_eq!(Span::raw(&line).width(), usize::from(width), "{line:?}");
            assert_eq!(plain(&line), line);
        }
    }
    let text = once(&screen).unwrap();
    assert!(text.contains("?[2J???") && text.contains("?gnp.exe?"), "{text}");
    assert!(text.contains("文字文字文字文字文字"), "no space within wide letters\n{text}");
    for (filter, rows) in [("文字", 1), ("[2j", 1), ("\u{202e}", 0)] {
        write(&mut screen, filter);
        drawn(&screen, 80, 24);
        assert_eq!((screen.ordered().len(), screen.leases().len()), (rows, rows), "{filter:?}");
        screen.press(Key::Escape);
    }
}

#[test]
fn the_help_fits_the_usual_terminal() {
    let mut screen = screen(Order::Size);
    screen.add(look(vec![seen(7, 1024, 10)], 3));
    screen.press(Key::Help);
    let text = drawn(&screen, 80, 24);
    assert!(text.contains("^L draw again    h, Esc back"), "{text}");
    assert!(!text.contains("tenant"), "{text}");
    screen.press(Key::Escape);
    assert!(drawn(&screen, 80, 24).contains("tenant"));
}

#[test]
fn a_small_terminal_scrolls_a_page() {
    let mut screen = screen(Order::Pid);
    screen.add(look(vec![seen(1, 1024, 10), seen(2, 1024, 10)], 3));
    screen.press(Key::Help);
    let top = drawn(&screen, 40, 10);
    assert!(top.contains("SIZE ") && top.contains("HIT% "), "{top}");
    assert!(top.contains("glebe top") && top.contains("Esc back"), "{top}");
    assert!(!top.contains("Yellow") && !top.contains("pressure"), "{top}");
    screen.press(Key::Move(Step::Last));
    let end = drawn(&screen, 40, 10);
    assert!(end.contains("m map of physical") && !end.contains("SIZE "), "{end}");
    screen.press(Key::Move(Step::Up));
    let up = drawn(&screen, 40, 10);
    assert!(!up.contains("m map of physical") && up.contains("/ show only"), "{up}");
    screen.press(Key::Help);
    assert_eq!(screen.picked(), Some(0), "the keys moved no row");
}

#[test]
fn the_reader_has_to_read_a_map() {
    let mut screen = screen(Order::Pid);
    screen.add(look(Vec::new(), 0));
    assert!(!screen.wants_map());
    screen.press(Key::Pause);
    screen.press(Key::Map);
    assert!(screen.wants_map() && drawn(&screen, 80, 24).contains("The map comes when"));
    screen.set_map("0 GiB ####\n".to_owned());
    assert!(!screen.wants_map() && drawn(&screen, 80, 24).contains("0 GiB ####"));
    screen.press(Key::Help);
    screen.set_map("late".to_owned());
    assert!(drawn(&screen, 80, 24).contains("Yellow bars"), "another page is open");
}

#[test]
fn escape_ends_one_thing_at_a_time() {
    let mut screen = screen(Order::Pid);
    screen.add(look(vec![seen(1, 10, 0), seen(2, 10, 0)], 0));
    write(&mut screen, "tool-2");
    screen.press(Key::Enter);
    screen.press(Key::Help);
    screen.press(Key::Filter);
    screen.press(Key::Enter);
    assert!(screen.page().is_some());
    screen.press(Key::Escape);
    assert!(screen.page().is_none());
    assert_eq!(screen.ordered().len(), 1, "the filter stays");
    screen.press(Key::Escape);
    assert_eq!(screen.ordered().len(), 2);
    screen.press(Key::Help);
    write(&mut screen, "tool-1");
    screen.press(Key::Escape);
    assert!(!screen.is_typing() && screen.page().is_some());
    assert_eq!(screen.ordered().len(), 2);
}

#[test]
fn numbers_are_whole_or_not_there() {
    let mut screen = screen(Order::Pid);
    let total = Bytes::mib(1000).pages_down(glebe::page_size()).get();
    let all = |given| {
        let mut look = look(vec![seen(1_234_567, total, given)], 0);
        look.reserves[0].at = Instant::now() - Duration::from_secs(10);
        look.reserves[0].numbers.held = total;
        look
    };
    screen.add(all(0));
    let mut now = all(98_760);
    now.reserves[0].at = Instant::now();
    screen.add(now);
    let wholes = ["1234567", "1000 MiB", "1000 MiB", "500 MiB", "250 MiB", "9876", "75", "69.1k"];
    for width in 1..90 {
        let text = drawn(&screen, width, 24);
        let mut lines = text.lines().skip_while(|line| !line.starts_with("\"    PID"));
        let (Some(head), Some(row)) = (lines.next(), lines.next()) else {
            assert!(width < 7, "{text}");
            continue;
        };
        let head: Vec<&str> = head.trim_matches(['"', ' ']).split_whitespace().collect();
        let units = |word: &&str| *word == "MiB" || word.starts_with("tool");
        let shown = row.trim_matches(['"', ' ']).split_whitespace().filter(|word| !units(word));
        let wholes = wholes.iter().map(|whole| whole.split(' ').next().unwrap());
        let count = if head.len() == 1 { 1 } else { head.len() - 1 };
        assert_eq!(shown.collect::<Vec<_>>(), wholes.take(count).collect::<Vec<_>>(), "{text}");
    }
}

#[test]
fn bars_and_an_old_look_are_told_only_if_they_are_there() {
    let mut screen = screen(Order::Pid);
    let mut before = look(vec![seen(1, 10, 0)], 9);
    before.reserves[0].at = Instant::now() - Duration::from_secs(10);
    screen.add(before);
    screen.add(look(vec![seen(1, 10, 50)], 9));
    assert!(drawn(&screen, 80, 24).contains("; bars: means up to 2.0 us"));
    assert!(!drawn(&screen, 80, 12).contains("bars: "), "no row has bars");
    assert!(!drawn(&screen, 80, 24).contains("s old"));
    let mut old = look(Vec::new(), 0);
    old.at = Instant::now() - Duration::from_secs(3000);
    screen.add(old);
    assert!(drawn(&screen, 80, 24).contains("; by pid; 3000 s old"));
    assert!(!once(&screen).unwrap().contains("s old"));
}
