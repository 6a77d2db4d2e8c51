//! [`Gpu`]: the first device of the CUDA driver, by the handful of its calls that are needed here.
//!
//! The driver is loaded when it is asked for and nothing is linked. What a [`Gpu`] hands out
//! borrows it, so that it is given back before the context is. Units: bytes. Source: the CUDA
//! driver API reference (cuda.h), whose header gives the current calls names with `_v2`.
//!
//! # Safety
//! Each function has the documented signature of the symbol that it is loaded by. Pointers passed
//! are locals, or of host memory that is borrowed exclusively during the call.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::marker::PhantomData;
use std::ptr;

use libloading::Library;

use crate::memory::Memory;
use crate::Outcome;

/// The name that the driver's package installs.
pub(super) const LIBRARY: &str = "libcuda.so.1";

type Status = c_int;
type Device = c_int;
/// An address on the device.
type DevicePtr = u64;

/// The functions, each with its symbol and its parameters; all return a status.
macro_rules! api {
    ($($field:ident = $symbol:literal ($($type:ty),*);)*) => {
        struct Api {
            $($field: unsafe extern "C" fn($($type),*) -> Status,)*
        }

        impl Api {
            /// # Safety
            /// `library` has the driver's signatures.
            unsafe fn load(library: Library) -> Outcome<Self> {
                // SAFETY: passed on to the caller.
                $(let $field = unsafe {
                    *library.get($symbol.as_bytes())
                        .map_err(|_| concat!("the CUDA driver has no ", $symbol))?
                };)*
                // The driver has threads of its own: it stays until the process ends.
                std::mem::forget(library);
                Ok(Self { $($field,)* })
            }
        }
    };
}

api! {
    init = "cuInit" (c_uint);
    error_name = "cuGetErrorName" (Status, *mut *const c_char);
    device_count = "cuDeviceGetCount" (*mut c_int);
    device = "cuDeviceGet" (*mut Device, c_int);
    retain = "cuDevicePrimaryCtxRetain" (*mut *mut c_void, Device);
    release = "cuDevicePrimaryCtxRelease_v2" (Device);
    set_current = "cuCtxSetCurrent" (*mut c_void);
    alloc = "cuMemAlloc_v2" (*mut DevicePtr, usize);
    free = "cuMemFree_v2" (DevicePtr);
    host_alloc = "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    host_free = "cuMemFreeHost" (*mut c_void);
    register = "cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
    unregister = "cuMemHostUnregister" (*mut c_void);
    to_device = "cuMemcpyHtoD_v2" (DevicePtr, *const c_void, usize);
    to_host = "cuMemcpyDtoH_v2" (*mut c_void, DevicePtr, usize);
}

impl Api {
    fn check(&self, call: &str, status: Status) -> Outcome {
        if status == 0 {
            return Ok(());
        }
        let mut name = ptr::null();
        // SAFETY: a pointer to a local; what comes is a C string of the driver's, or nothing.
        let name = unsafe {
            match ((self.error_name)(status, &raw mut name), name.is_null()) {
                (0, false) => CStr::from_ptr(name).to_string_lossy().into_owned(),
                _ => "unknown".to_string(),
            }
        };
        Err(format!("{call}: {name} ({status})").into())
    }
}

/// The first device and its context, current on this thread.
pub(super) struct Gpu {
    api: Api,
    device: Device,
    /// Memory of the device, which is copied to and from.
    buffer: DevicePtr,
    len: usize,
    /// Its context is this thread's alone.
    _here: PhantomData<*mut c_void>,
}

impl Gpu {
    /// Loads the driver by the loader's rules and takes its first device, with `len` bytes of its
    /// memory; an error says why there is none.
    pub(super) fn open(library: &str, len: usize) -> Outcome<Self> {
        // SAFETY: a driver's constructors are run, which is what loading it means.
        let library = unsafe { Library::new(library) };
        let library = library.map_err(|why| format!("no CUDA driver: {why}"))?;
        // SAFETY: the name is the driver's alone.
        let api = unsafe { Api::load(library)? };
        let (mut count, mut device, mut context) = (0, 0, ptr::null_mut());
        // SAFETY: pointers to locals.
        unsafe {
            api.check("cuInit", (api.init)(0))?;
            api.check("cuDeviceGetCount", (api.device_count)(&raw mut count))?;
            if count < 1 {
                return Err("the CUDA driver lists no device".into());
            }
            api.check("cuDeviceGet", (api.device)(&raw mut device, 0))?;
            let retained = (api.retain)(&raw mut context, device);
            api.check("cuDevicePrimaryCtxRetain", retained)?;
        }
        // From here on dropped, whatever fails.
        let mut gpu = Self { api, device, buffer: 0, len, _here: PhantomData };
        // SAFETY: the context is retained until the drop.
        gpu.api.check("cuCtxSetCurrent", unsafe { (gpu.api.set_current)(context) })?;
        let mut buffer = 0;
        // SAFETY: a pointer to a local.
        gpu.api.check("cuMemAlloc", unsafe { (gpu.api.alloc)(&raw mut buffer, len) })?;
        gpu.buffer = buffer;
        Ok(gpu)
    }

    /// Host memory as the driver pins it itself.
    pub(super) fn host_alloc(&self, len: usize) -> Outcome<Host<'_>> {
        let mut at = ptr::null_mut();
        // SAFETY: a pointer to a local.
        let status = unsafe { (self.api.host_alloc)(&raw mut at, len, 0) };
        self.api.check("cuMemHostAlloc", status)?;
        Ok(Host { gpu: self, at: at.cast(), len, registered: None })
    }

    /// Registers memory that is there already.
    pub(super) fn register(&self, mut memory: Memory) -> Outcome<Host<'_>> {
        let bytes = memory.bytes_mut();
        let (at, len) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: the memory is kept until it is unregistered.
        let status = unsafe { (self.api.register)(at.cast(), len, 0) };
        self.api.check("cuMemHostRegister", status)?;
        Ok(Host { gpu: self, at, len, registered: Some(memory) })
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: the buffer and the context are this one's, and nothing that it handed out lives.
        unsafe {
            if self.buffer != 0 {
                (self.api.free)(self.buffer);
            }
            (self.api.release)(self.device);
        }
    }
}

/// Host memory that is copied from and to; unregistered or freed when dropped.
pub(super) struct Host<'a> {
    gpu: &'a Gpu,
    at: *mut u8,
    len: usize,
    /// What was registered; else it is the driver's own.
    registered: Option<Memory>,
}

impl Host<'_> {
    /// All bytes.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: owned by this, by the driver's word or as a `Memory`; no copy is under way.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }

    /// Copies `len` bytes between `place` and the start of the device's memory; panics if one of
    /// them has not as many.
    pub(super) fn copy(&mut self, to_device: bool, place: usize, len: usize) -> Outcome {
        let Gpu { api, buffer, .. } = self.gpu;
        assert!(len <= self.gpu.len, "{len} bytes of {} on the device", self.gpu.len);
        let at = self.bytes_mut()[place..][..len].as_mut_ptr().cast();
        // SAFETY: both sides have `len` bytes, as asserted; nobody else uses them during the call.
        unsafe {
            match to_device {
                true => api.check("cuMemcpyHtoD", (api.to_device)(*buffer, at, len)),
                false => api.check("cuMemcpyDtoH", (api.to_host)(at, *buffer, len)),
            }
        }
    }
}

impl Drop for Host<'_> {
    fn drop(&mut self) {
        let at = self.at.cast();
        // SAFETY: registered or allocated by this device, given back once; no copy is under way.
        unsafe {
            match self.registered {
                None => (self.gpu.api.host_free)(at),
                Some(_) => (self.gpu.api.unregister)(at),
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_driver_and_no_functions_are_told_apart() {
        let why = |library| Gpu::open(library, 1).err().unwrap().to_string();
        assert!(why("libglebe-has-no-such.so.1").contains("no CUDA driver: libglebe-has-no-such"));
        // The C library has none of the driver's functions.
        assert_eq!(why("libc.so.6"), "the CUDA driver has no cuInit");
    }
}
