//! Tests of the picture, in terminals of several sizes.

use std::time::{Duration, Instant};

use glebe::lease::wire::{Flags, Name, Row};
use glebe::units::Bytes;
use ratatui::backend::TestBackend;
use ratatui::Terminal;

use super::look::{LentNow, Look, Seen};
use super::machine::MachineNow;
use super::reserves::Numbers;
use super::screen::{Key, Order, Screen};
use super::{draw, once};

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
    Seen { path, at: Instant::now(), pid, number: 0, command, numbers }
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
    let lent = LentNow { path: "/run/leases".to_owned(), rows, bytes };
    Look {
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
        "30 blocks given, half within 1.4 us, 99 % within 17.3 us, all within 20.0 ms",
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
    assert!(small.contains("more, "), "not all leases fit\n{small}");
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
    let picked = |screen: &Screen| {
        screen.ordered().iter().find(|(it, _)| screen.is_picked(it)).map(|(it, _)| it.pid)
    };
    assert_eq!(picked(&screen), Some(1));
    screen.press(Key::Sort);
    assert_eq!((screen.order(), pids(&screen)), (Order::Size, vec![2, 3, 1]));
    assert_eq!(picked(&screen), Some(1), "the choice stays with the reserve");
    screen.press(Key::Up);
    assert_eq!(picked(&screen), Some(3));
    (0..5).for_each(|_| screen.press(Key::Down));
    assert_eq!(picked(&screen), Some(1));
    // A reserve that has gone leaves the choice to the first one.
    screen.add(look(vec![seen(2, 30, 0)], 0));
    assert_eq!(picked(&screen), Some(2));
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
        assert!(!once(&screen).unwrap().contains("more, "), "all leases");
    }
    screen.press(Key::Help);
    assert!(drawn(&screen, 80, 24).contains("TAKEN/s  pages that left"));
    screen.press(Key::Help);
    let text = once(&screen).unwrap();
    assert!(text.lines().all(|line| !line.ends_with(' ')) && !text.ends_with("\n\n"), "{text}");
    assert!(text.starts_with("glebe top"), "{text}");
}
