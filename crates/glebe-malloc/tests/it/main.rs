//! The tests of the heap. Each runs as a process of its own: a process has one heap, and limits and
//! filters are the whole process's.

mod fork;
mod heap;
mod pressure;
mod process;
mod refused;
