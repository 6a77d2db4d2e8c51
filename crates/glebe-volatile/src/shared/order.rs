//! [`Order`]: which granules of one priority are purged first.

/// The order in which granules of one priority are purged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// First marked, first purged.
    #[default]
    Fifo,
    /// Last marked, first purged, and before any of [`Order::Fifo`].
    Lifo,
}
