//! [`SignalStack`]: room for a touch in a signal handler, whatever the processor saves of itself.

use std::ptr;

/// What a handler may use beside what the kernel puts there.
const ROOM: usize = 64 << 10;

/// A large alternate stack of the calling thread until this is dropped. The one that the runtime
/// makes is as small as the kernel allows where a processor has much to save.
pub struct SignalStack {
    before: libc::stack_t,
    _bytes: Vec<u8>,
}

impl SignalStack {
    pub fn set() -> Self {
        // SAFETY: takes a number.
        let least = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) as usize };
        let mut bytes = vec![0; least + ROOM];
        let mut before = alternate(ptr::null_mut(), 0, libc::SS_DISABLE);
        let stack = alternate(bytes.as_mut_ptr(), bytes.len(), 0);
        // SAFETY: the bytes live until the stack of before is set again.
        assert_eq!(unsafe { libc::sigaltstack(&raw const stack, &raw mut before) }, 0);
        Self { before, _bytes: bytes }
    }
}

impl Drop for SignalStack {
    fn drop(&mut self) {
        // SAFETY: that of the runtime, which frees it later.
        unsafe { libc::sigaltstack(&raw const self.before, ptr::null_mut()) };
    }
}

pub fn alternate(ss_sp: *mut u8, ss_size: usize, ss_flags: i32) -> libc::stack_t {
    libc::stack_t { ss_sp: ss_sp.cast(), ss_flags, ss_size }
}
