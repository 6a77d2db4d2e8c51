//! [`Order`] of purges.

/// The order of purges within one priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// First marked, first purged.
    #[default]
    Fifo,
    /// Last marked, first purged; all before [`Order::Fifo`].
    Lifo,
}
