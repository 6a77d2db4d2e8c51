//! Tests the heap. Each test is a process: heap, limits and filters are process-wide.

mod fork;
mod heap;
mod pressure;
mod process;
mod refused;
