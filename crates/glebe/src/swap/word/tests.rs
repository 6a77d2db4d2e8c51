//! Tests the steps.

use super::*;

const GENERATION: u32 = 9;

fn hole() -> Word {
    Word::hole(GENERATION)
}

fn resident() -> Word {
    hole().created().and_then(Word::released).and_then(Word::passed).unwrap()
}

fn leaving() -> Word {
    resident().chosen().and_then(Word::leaving).unwrap()
}

fn stored() -> Word {
    leaving().left().unwrap()
}

fn refused(step: Step) -> Option<Refusal> {
    step.err()
}

#[test]
fn a_life_of_a_word() {
    let word = stored();
    assert_eq!(
        (word.state(), word.generation(), word.guards()),
        (WordState::Stored, GENERATION, 0)
    );
    assert!(word.has_copy() && !word.is_used());
    let word = word.loading(GENERATION).and_then(|word| word.loaded(true)).unwrap();
    assert!(word.has_copy() && word.is_used() && word.guards() == 1);
    let word = word.pinned(GENERATION).unwrap();
    assert_eq!((word.guards(), refused(word.pinned_alone(GENERATION))), (2, Some(Pinned)));
    let at = MappedWord::new(word.0);
    assert_eq!((unpin(&at), unpin(&at).guards(), look(&at).guards()), (word, 1, 0));
    let word = look(&at).pinned_alone(GENERATION).unwrap();
    assert!(word.has_copy() && word.guards() == 1);
    let word = word.uncopied().and_then(Word::released).unwrap();
    assert!(!word.has_copy());
    let word = word.taken(GENERATION).and_then(Word::ended).unwrap();
    assert_eq!(word, Word::hole(GENERATION + 1));
    assert_eq!(refused(word.pinned(GENERATION)), Some(Stale));
}

#[test]
fn no_step_of_a_key_is_made_for_another_generation() {
    let steps: [fn(Word, u32) -> Step; 6] =
        [Word::pinned, Word::pinned_alone, Word::loading, Word::cooled, Word::taken, Word::doomed];
    for step in steps {
        for word in [resident(), stored(), leaving()] {
            for generation in [GENERATION - 1, GENERATION + 1] {
                assert_eq!(refused(step(word, generation)), Some(Stale));
            }
        }
        assert_eq!(refused(step(hole(), GENERATION)), Some(Stale), "of a hole");
    }
}

#[test]
fn who_is_at_an_object_is_waited_for() {
    let loading = stored().loading(GENERATION).unwrap();
    let taken = resident().taken(GENERATION).unwrap();
    for word in [loading, leaving(), taken] {
        assert!(word.is_in_transit());
        assert_eq!(refused(word.pinned(GENERATION)), Some(Wait));
        assert_eq!(refused(word.pinned_alone(GENERATION)), Some(Wait));
        assert_eq!(refused(word.taken(GENERATION)), Some(Wait));
        assert_eq!(refused(word.chosen()), Some(Unfit));
    }
    let busy = resident().chosen().unwrap();
    assert_eq!(refused(busy.pinned_alone(GENERATION)), Some(Wait));
    assert_eq!(refused(busy.taken(GENERATION)), Some(Wait));
    let read = busy.pinned(GENERATION).unwrap();
    assert_eq!((read.guards(), refused(read.pinned_alone(GENERATION))), (1, Some(Pinned)));
    assert_eq!(
        (refused(read.taken(GENERATION)), refused(read.leaving())),
        (Some(Pinned), Some(Pinned))
    );
    assert_eq!(read.idle(true).unwrap().guards(), 1);
}

#[test]
fn what_is_used_pinned_or_dead_is_not_chosen() {
    let pinned = resident().pinned(GENERATION).unwrap();
    let alone = resident().pinned_alone(GENERATION).unwrap();
    let dead = resident().doomed(GENERATION).unwrap();
    let used = alone.released().unwrap();
    for word in [pinned, pinned.passed().unwrap(), alone, alone.passed().unwrap(), dead, used] {
        assert_eq!(refused(word.chosen()), Some(Unfit), "{word:?}");
    }
    assert!(used.passed().and_then(Word::chosen).is_ok());
    let chosen = resident().chosen().unwrap();
    let rescued = Word(chosen.pinned(GENERATION).unwrap().0 - 1);
    assert_eq!(refused(rescued.leaving()), Some(Pinned));
}

#[test]
fn a_pinned_page_is_confirmed_and_stays_pinned() {
    let page = Word(resident().0 & !(u64::from(u32::MAX) << GENERATION_SHIFT));
    for word in [page, page.pinned(0).unwrap(), page.pinned_alone(0).unwrap()] {
        let busy = word.confirming().unwrap();
        assert_eq!((busy.guards(), busy.idle(word.has_copy())), (word.guards(), Ok(word)));
        for step in [Word::confirming, Word::moving, Word::uncopying] {
            assert_eq!(refused(step(busy)), Some(Unfit));
        }
    }
    assert_eq!(refused(Word(page.0 | PINS).confirming()), Some(Unfit));
}

#[test]
fn pins_do_not_run_over() {
    let full = Word(resident().0 | PINS);
    assert_eq!(refused(full.pinned(GENERATION)), Some(TooMany));
    assert_eq!((refused(full.uncopying()), full.guards()), (Some(Unfit), PINS_MAX));
    let last = Word(resident().0 | (PINS - 1));
    assert_eq!(last.pinned(GENERATION).unwrap().guards(), PINS_MAX);
}

#[test]
fn a_dead_object_goes_when_nobody_is_at_it() {
    let doomed = |word: Word| word.doomed(GENERATION).unwrap();
    assert_eq!(refused(doomed(stored()).pinned(GENERATION)), Some(Dead));
    assert_eq!(refused(doomed(stored()).loading(GENERATION)), Some(Dead));
    for word in [leaving(), stored().loading(GENERATION).unwrap(), resident().chosen().unwrap()] {
        assert_eq!(refused(doomed(word).reaped()), Some(Wait));
    }
    let pinned = doomed(resident().pinned(GENERATION).unwrap());
    assert_eq!(refused(pinned.reaped()), Some(Pinned));
    assert_eq!(refused(resident().reaped()), Some(Unfit));
    for word in [resident(), stored()] {
        let buried = doomed(word).reaped().and_then(Word::buried).unwrap();
        assert!(buried.is_dead() && !buried.has_copy() && buried.state() == WordState::Stored);
        assert_eq!(refused(buried.reaped()), Some(Unfit));
        assert!(buried.taken(GENERATION).and_then(Word::ended).is_ok());
    }
}

#[test]
fn what_was_taken_is_as_it_was_when_it_is_spared() {
    let failed = stored().loading(GENERATION).and_then(Word::failed).unwrap();
    for word in [resident(), stored(), failed] {
        let taken = word.taken(GENERATION).unwrap();
        assert_eq!(taken.spared(word.state(), word.has_copy()), Ok(word));
    }
    assert_eq!(refused(failed.pinned(GENERATION)), Some(Failed));
}
