//! shmget(2) with `SHM_HUGETLB`.

use std::os::unix::process::ExitStatusExt;

use super::running::Running;

fn passes(name: &str) {
    let Some(running) = Running::new("segments.c") else { return };
    for told in [Some(running.check(name)), running.check_as_nobody(name)].into_iter().flatten() {
        assert!(told.contains("leased") && !told.contains("refused"), "{told}");
    }
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
    let Some(running) = Running::new("segments.c") else { return };
    let key = std::process::id().to_string();
    let run = |name: &str| {
        let mut command = running.command(running.program(), "required");
        command.args([name]).env("KEY", &key);
        command
    };
    let killed = run("killed").status().expect("the program starts");
    assert_eq!(killed.signal(), Some(9));
    running.has_all_back();
    assert!(running.told(&mut run("again")).contains("leased 4 MiB in 1 mapping"));
}

#[test]
fn what_the_daemon_lacks_the_kernel_answers() {
    let Some(running) = Running::new("segments.c") else { return };
    let told = running.check("refused");
    assert!(told.contains("leased nothing; refused 1, the last 1 TiB"), "{told}");
    let mut command = running.command(running.program(), "required");
    let output = command.arg("refused").output().expect("the program starts");
    assert_eq!(output.status.code(), Some(125), "{output:?}");
}
