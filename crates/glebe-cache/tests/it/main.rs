//! Tests caches in files, which serve where no daemon runs.

mod files;
