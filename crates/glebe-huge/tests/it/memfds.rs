//! memfd_create(2) with `MFD_HUGETLB`.

use glebed::Settings;

use crate::running::Running;

const BRICKS: u64 = 24;

fn running() -> Option<Running> {
    Running::new("memfds.c", BRICKS, Settings::default())
}

fn passes(name: &str) {
    running().iter().for_each(|running| running.passes(name));
}

#[test]
fn a_file_has_huge_pages_of_its_length() {
    passes("shared");
}

#[test]
fn a_mapping_lengthens_a_file() {
    passes("unsized_file");
}

#[test]
fn private_mappings_are_copies() {
    passes("private_copy");
}

#[test]
fn a_private_mapping_has_what_was_written_late() {
    passes("late_writes");
}

#[test]
fn a_file_without_a_lease_is_the_kernels_after_a_fork() {
    passes("left");
}

#[test]
fn a_private_mapping_of_a_fresh_file_needs_its_memory_once() {
    passes("private_only");
}

#[test]
fn a_file_grows_and_shrinks_while_nobody_has_mapped_it() {
    passes("lengths");
}

#[test]
fn files_are_filled_and_emptied() {
    passes("filled");
}

#[test]
fn copies_of_a_descriptor_are_the_same_file() {
    passes("copies");
}

#[test]
fn leases_end_with_the_last_use_of_a_file() {
    passes("many");
}

#[test]
fn forked_children_share_files() {
    passes("children");
}

#[test]
fn a_child_of_vfork_closes_only_its_own() {
    passes("vforked");
}

#[test]
fn a_file_can_be_sent() {
    passes("sent");
}

#[test]
fn a_mapping_replaces_another() {
    passes("places");
}

#[test]
fn seals_keep_a_file_as_long_as_it_is() {
    passes("seals");
    passes("seals_before");
}

#[test]
fn a_file_of_a_bare_system_call_gets_its_memory_with_its_length() {
    passes("bare");
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
