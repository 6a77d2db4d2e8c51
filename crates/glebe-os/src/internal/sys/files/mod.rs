//! Files, sockets and descriptors to wait on.

pub mod bounded_write;
pub mod broken_pipe;
pub mod epoll;
pub mod event_fd;
pub mod file;
pub mod handed_over;
pub mod lock_file;
pub mod ofd_lock;
pub mod own_files;
pub mod plain_file;
pub mod private;
pub mod scratch_file;
pub mod signal_fd;
pub mod socket;
pub mod stream;
pub mod unread;
