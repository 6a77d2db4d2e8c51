//! shmget(2) with `SHM_HUGETLB`.

use std::os::unix::process::ExitStatusExt;

use glebed::Settings;

use crate::running::Running;

const BRICKS: u64 = 24;

fn running() -> Option<Running> {
    Running::new("segments.c", BRICKS, Settings::default())
}

fn passes(name: &str) {
    running().iter().for_each(|running| running.passes(name));
}

#[test]
fn a_segment_is_huge_pages_of_the_length_asked_for() {
    passes("sizes");
}

#[test]
fn keys_find_segments_until_they_are_removed() {
    passes("keys");
}

#[test]
fn addresses_are_chosen_kept_or_replaced() {
    passes("places");
}

#[test]
fn a_read_only_attachment_refuses_writes() {
    passes("read_only");
}

#[test]
fn a_part_is_unmapped_or_all_moves() {
    passes("parts");
}

#[test]
fn forked_children_share_segments() {
    passes("children");
}

#[test]
fn ordinary_segments_are_the_kernels() {
    passes("ordinary");
}

#[test]
fn leases_end_with_their_segments() {
    passes("many");
}

#[test]
fn another_program_is_refused() {
    passes("stranger");
}

#[test]
fn the_key_of_a_killed_program_is_free_again() {
    let Some(running) = running() else { return };
    let key = std::process::id().to_string();
    let run = |name: &str| {
        let mut command = running.command(name, "required");
        command.env("KEY", &key);
        command
    };
    let killed = run("killed").status().expect("the program starts");
    assert_eq!(killed.signal(), Some(9));
    running.wait_until_all_is_back();
    assert!(running.told(&mut run("again")).contains("leased 4 MiB in 1 mapping"));
}

#[test]
fn what_the_daemon_lacks_the_kernel_answers() {
    let Some(running) = running() else { return };
    let told = running.holds("refused", "verbose");
    assert!(told.contains("leased nothing; refused 1, the last 1 TiB"), "{told}");
    let mut command = running.command("refused", "required");
    let output = command.output().expect("the program starts");
    assert_eq!(output.status.code(), Some(125), "{output:?}");
}
