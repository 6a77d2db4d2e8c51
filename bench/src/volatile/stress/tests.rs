//! Which outcomes pass: each count that is wrong or missing turns one red.

use super::*;

fn part(which: Which, change: impl Fn(Kind, &mut Counts)) -> Part {
    let of = |kind| {
        let mut counts = Counts { purged_pages: 3, intact_pages: 5, ..Counts::default() };
        counts.refilled_pages = u64::from(kind == Kind::Refilled && which == Which::Scan);
        change(kind, &mut counts);
        (kind, counts)
    };
    let found = Found { grounds: Kind::ALL.map(of).to_vec(), ..Found::default() };
    Part { which, found: Some(found), group: Counters::default() }
}

#[test]
fn an_outcome_passes_only_if_every_region_has_shown_something() {
    type Change = fn(&mut Counts);
    let changes: [Change; 7] = [
        |counts| counts.purged_pages = 0,
        // An unmark that drops everything and says so.
        |counts| counts.intact_pages = 0,
        |counts| counts.lost_writes = 1,
        |counts| counts.stale_reads = 1,
        |counts| counts.false_intact = 1,
        |counts| counts.false_purged = 1,
        |counts| counts.error("mark", "refused"),
    ];
    for which in Which::ALL {
        assert!(part(which, |_, _| {}).passed());
        for (nth, kind) in changes.iter().flat_map(|change| Kind::ALL.map(|kind| (change, kind))) {
            let changed = part(which, |of, counts| {
                if of == kind {
                    nth(counts)
                }
            });
            let shown = Outcome { parts: vec![changed], refused: Vec::new() };
            assert!(!shown.passed() && shown.to_string().contains("WRONG"), "{kind:?}\n{shown}");
        }
    }
    let unrefilled = |_, counts: &mut Counts| counts.refilled_pages = 0;
    assert!(!part(Which::Scan, unrefilled).passed() && part(Which::Tag, unrefilled).passed());
}

#[test]
fn a_kill_or_no_part_is_no_pass() {
    let killed = Part { found: None, ..part(Which::Tag, |_, _| {}) };
    assert!(!killed.passed());
    let mut kill = part(Which::Tag, |_, _| {});
    kill.group.oom_kills = 1;
    assert!(!kill.passed());
    let mut partial = part(Which::Tag, |_, _| {});
    partial.found.iter_mut().for_each(|found| drop(found.grounds.pop()));
    assert!(!partial.passed());
    assert!(!Outcome::default().passed());
}
