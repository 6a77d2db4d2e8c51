//! The options in `GLEBE_MALLOC`, read without allocation.

pub use crate::heap::Settings;

/// The settings of the environment.
pub fn from_environment() -> Settings {
    Settings::DEFAULT
}
