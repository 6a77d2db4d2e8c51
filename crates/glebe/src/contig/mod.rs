//! Physically contiguous memory, populated, pinned and proved.
