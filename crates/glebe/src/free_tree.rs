//! Free extents in address order.
