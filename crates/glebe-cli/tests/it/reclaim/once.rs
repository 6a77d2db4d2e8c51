//! Tests the order of purges in several files by `--once`, and that `--dry-run` predicts it.

use std::thread::sleep;
use std::time::Duration;

use glebe::units::Bytes;
use glebe::volatile::{Order, Priority};

use super::purging::output;
use super::{lost, mark, mib, Tmpfs};

fn told(args: &[&str]) -> String {
    let output = output(args);
    assert!(output.status.success() && output.stderr.is_empty(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_lowest_priority_of_all_files_goes_first_and_in_it_the_oldest() {
    let Some(dir) = Tmpfs::new() else { return };
    let (one, two) = (dir.shared("one", 8), dir.shared("two", 8));
    mark(&one, mib(0, 1), 4);
    mark(&two, mib(0, 1), 4);
    mark(&one, mib(1, 1), 4);
    mark(&two, mib(1, 1), 4);
    mark(&one, mib(7, 1), 0);
    mark(&two, mib(4, 2), 7);
    // A `Lifo` mark is purged before the other marks of its priority.
    two.mark(mib(7, 1), Priority::NORMAL, Order::Lifo).unwrap();
    let (a, b) = (dir.join("one"), dir.join("two"));
    let (a, b) = (a.to_str().unwrap(), b.to_str().unwrap());

    let all = told(&["--dry-run", a, b]);
    assert_eq!(
        all,
        format!(
            "{a}: 3 MiB: 1 MiB of priority 0, 2 MiB of priority 4\n\
            {b}: 5 MiB: 3 MiB of priority 4, 2 MiB of priority 7\n8 MiB would be freed\n"
        )
    );
    let four = format!(
        "{a}: 2 MiB: 1 MiB of priority 0, 1 MiB of priority 4\n{b}: 1 MiB: 1 MiB of priority 4\n"
    );
    let would = told(&["--dry-run", "--once", "3M", a, b]);
    assert_eq!(would, format!("{four}3 MiB would be freed\n"));
    let done = told(&["--once", "3M", a, b]);
    assert_eq!(done, format!("{four}3 MiB freed\n"));
    let is_lost = |shared: &glebe::volatile::Shared, at| {
        let purged = shared.unmark(mib(at, 1)).unwrap();
        !purged.is_empty()
    };
    assert!(is_lost(&one, 7) && is_lost(&two, 7) && is_lost(&one, 0));
    assert!(!is_lost(&two, 0) && !is_lost(&one, 1) && !is_lost(&two, 1) && !is_lost(&two, 4));
}

#[test]
fn ages_alternate_between_files_to_the_granule() {
    let Some(dir) = Tmpfs::new() else { return };
    let (one, two) = (dir.shared("one", 4), dir.shared("two", 4));
    let granules = one.len().get() / super::GRANULE.get();
    for granule in 0..granules {
        let range = |granule| {
            let at = Bytes::new(granule * super::GRANULE.get());
            at..at + super::GRANULE
        };
        // In `one`, younger marks have lower offsets.
        mark(&one, range(granules - 1 - granule), 4);
        // Ages are microseconds, and must differ.
        sleep(Duration::from_micros(2));
        mark(&two, range(granule), 4);
        sleep(Duration::from_micros(2));
    }
    let (a, b) = (dir.join("one"), dir.join("two"));
    let done = told(&["--once", "3M", a.to_str().unwrap(), b.to_str().unwrap()]);
    assert!(done.ends_with("3 MiB freed\n"), "{done}");
    assert_eq!((lost(&one), lost(&two)), (Bytes::new(3 << 19), Bytes::new(3 << 19)));
}

#[test]
fn pins_and_files_without_users_are_left() {
    let Some(dir) = Tmpfs::new() else { return };
    let (one, two) = (dir.shared("one", 4), dir.shared("two", 4));
    mark(&one, mib(0, 4), 0);
    mark(&two, mib(0, 4), 4);
    let pin = one.pin(mib(1, 3)).unwrap();
    let (a, b) = (dir.join("one"), dir.join("two"));
    let (a, b) = (a.to_str().unwrap(), b.to_str().unwrap());
    let would = told(&["--dry-run", "--once", "2M", a, b]);
    let done = told(&["--once", "2M", a, b]);
    assert_eq!(would.replace("would be ", ""), done);
    let lines = format!("{a}: 1 MiB: 1 MiB of priority 0\n{b}: 1 MiB: 1 MiB of priority 4\n");
    assert_eq!(done, format!("{lines}2 MiB freed\n"));
    drop((pin, two));
    assert_eq!(told(&["--once", "1G", b]), "0 B freed\n");
    assert_eq!(
        told(&["--once", "1G", a]),
        format!("{a}: 3 MiB: 3 MiB of priority 0\n3 MiB freed\n")
    );
}

#[test]
fn a_descriptor_of_a_process_names_a_memfd() {
    use std::os::fd::AsRawFd;
    let made = glebe::volatile::Shared::options().granule(super::GRANULE).create(Bytes::mib(2));
    let shared = super::filled(made);
    mark(&shared, mib(0, 2), 3);
    let path = format!("/proc/{}/fd/{}", std::process::id(), shared.fd().as_raw_fd());
    let done = told(&["--once", "1M", &path]);
    assert_eq!(done, format!("{path}: 1 MiB: 1 MiB of priority 3\n1 MiB freed\n"));
    assert_eq!(lost(&shared), Bytes::mib(1));
}
