//! Compares what the allocator marks with the kernel's counts. The kernel must not move memory
//! meanwhile, which it does for pools of huge pages: pages that it moves are not marked.

use super::days::{program, said, MIB};

#[test]
fn what_the_kernel_may_take_and_took_is_as_it_says() {
    let Some(program) = program() else { return };
    for options in ["", "huge=off"] {
        let said = said(&program, "", options, &["volatile"]);
        if said.get("volatile_bytes") == 0 {
            return println!("skipped: memory is short, and nothing is marked");
        }
        said.is_about("resident_before", said.get("lazy"));
        said.is_about("less_before", said.get("rss") - said.get("lazy"));
        said.is_about("purged_bytes", said.get("lazy") - said.get("lazy_after"));
        assert!(said.get("resident_before") > 150 * MIB, "{:?}", said.0);
        said.are(&[("audit", 1)]);
    }
}
