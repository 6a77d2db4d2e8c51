//! [`Order`]: which of several granules of one priority go first.

/// Which of the granules marked with one priority are purged first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// Those marked first.
    #[default]
    Fifo,
    /// Those marked last, and all of these before any of [`Order::Fifo`].
    Lifo,
}
