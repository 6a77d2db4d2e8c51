//! The glebe command.
fn main() {}
