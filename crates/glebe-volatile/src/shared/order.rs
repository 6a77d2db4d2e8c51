//! [`Order`]: which granules of one priority are purged first.

/// The order of purges within one priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// First marked, first purged.
    #[default]
    Fifo,
    /// Last marked, first purged; all of these before those of [`Order::Fifo`].
    Lifo,
}
