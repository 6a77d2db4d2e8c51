//! Mapped bytes and their one owner.
