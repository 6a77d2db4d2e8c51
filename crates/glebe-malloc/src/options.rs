//! The options in `GLEBE_MALLOC`, read without allocation.

/// What the user asks for.
#[derive(Clone, Debug, Default)]
pub struct Settings {}

/// The settings of the environment.
pub fn from_environment() -> Settings {
    Settings::default()
}
