//! Kills a process at every step of joins, purges, pins, marks and unmarks. Other processes are
//! never blocked, and find each granule purged or whole.

#[cfg(feature = "faults")]
mod at_every_step {
    use glebe_os::internal::sys::fault::{arm, disarm, Fault, Lasting};

    use crate::shared::*;
    use glebe_testing::steered::{Process, SteeredEnd};

    fn kill_at_every_step(
        make: impl Fn() -> Shared,
        body: impl Fn(&Shared),
        look: impl Fn(&Shared, u64),
    ) -> u64 {
        for nth in 1.. {
            let shared = make();
            let child = Process::start(|_| {
                arm(Fault { nth, choice: 0, lasting: Lasting::Kills });
                body(&shared);
                disarm();
            });
            let end = child.end();
            look(&shared, nth);
            if end == SteeredEnd::Exit(0) {
                return nth - 1;
            }
            assert_eq!(end, SteeredEnd::Signal(libc::SIGKILL), "step {nth}");
        }
        0
    }

    fn is_told_or_there(shared: &Shared, lost: &Purged, nth: u64) {
        let granules = shared.len().pages_down(page_size()).get();
        for granule in 0..granules {
            let is_lost = lost.runs().iter().any(|run| (run.start()..run.end()).contains(&granule));
            let expected = if is_lost { 0 } else { granule as u8 + 1 };
            assert_eq!(byte_of(shared, granule), expected, "step {nth}, granule {granule}");
        }
    }

    #[test]
    fn a_purge_leaves_granules_that_are_told_or_there() {
        glebe_testing::alone!();
        let make = || {
            let shared = filled(6);
            // This pin splits the granules into two runs.
            std::mem::forget(shared.pin(range(3, 1)).unwrap());
            shared
        };
        let steps = kill_at_every_step(
            make,
            |shared| _ = purge_all(shared),
            |shared, nth| {
                let lost = match nth % 3 {
                    0 => shared.pin(range(0, 6)).unwrap().lost().clone(),
                    1 => {
                        assert!(purge_all(shared) <= at(5), "step {nth}");
                        let lost = shared.unmark(range(0, 6)).unwrap();
                        assert_eq!(runs(&lost), [(0, 3), (4, 2)], "step {nth}");
                        lost
                    }
                    _ => shared.unmark(range(0, 6)).unwrap(),
                };
                is_told_or_there(shared, &lost, nth);
                assert_eq!(purger(shared).look().unwrap().holders.len(), 1, "step {nth}");
            },
        );
        // The child joins and locks, then claims, dooms and frees the granules of two runs.
        assert!(steps > 25, "{steps} steps");
    }

    #[test]
    fn a_last_user_leaves_a_file_that_can_be_used() {
        glebe_testing::alone!();
        let body = |shared: &Shared| {
            purge_all(shared);
            drop(shared.unmark(range(0, 2)).unwrap());
        };
        for nth in 1.. {
            let shared = filled(4);
            let file = shared.fd().try_clone_to_owned().unwrap();
            let child = Process::start(|link| {
                // The child joins after the parent has left.
                link.hear();
                arm(Fault { nth, choice: 0, lasting: Lasting::Kills });
                body(&shared);
                disarm();
            });
            drop(shared);
            child.link.tell(0);
            let end = child.end();
            let next = Shared::options().adopt(file).unwrap();
            assert_eq!(next.stats().marked.get(), 0, "step {nth}");
            let lost = next.unmark(range(0, 4)).unwrap();
            if end == SteeredEnd::Exit(0) {
                break;
            }
            // The child's own unmark may have reported granules 0 and 1.
            for granule in 0..4 {
                let is_lost =
                    runs(&lost).iter().any(|(at, len)| (*at..at + len).contains(&granule));
                let byte = byte_of(&next, granule);
                assert!(byte == granule as u8 + 1 || (byte == 0 && (is_lost || granule < 2)));
            }
        }
    }

    #[test]
    fn pins_and_marks_leave_nothing() {
        glebe_testing::alone!();
        let body = |shared: &Shared| {
            let pin = shared.pin(range(0, 4)).unwrap();
            pin.restored().unwrap();
            shared.mark(range(4, 2), Priority::LOWEST, Order::Lifo).unwrap();
            drop(pin);
        };
        let make = || {
            let shared = filled(6);
            shared.drop_now(range(0, 2)).unwrap();
            shared
        };
        kill_at_every_step(make, body, |shared, nth| {
            let rest = purge_all(shared);
            // Granules 0 and 1 have no pages, unless the pin gave them some.
            assert!(rest >= at(4), "step {nth}: {rest}");
            assert_eq!(runs(&shared.unmark(range(2, 4)).unwrap()), [(2, 4)], "step {nth}");
        });
    }
}
