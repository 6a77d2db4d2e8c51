#![allow(unsafe_code)] // Safety: each module states its reasons.

mod accounting;
mod adopted;
pub mod children;
mod filtered;
mod fork;
mod kept;
mod memory;
mod refill;
mod refilled;
mod refused;
mod system_calls;
