//! [`Gpu`]: the first device of the CUDA driver, by the handful of its calls that are needed here.
//!
//! The driver is loaded when it is asked for and nothing is linked: a machine without one is told
//! apart from one without a device. What a [`Gpu`] hands out borrows it, so that it is given back
//! before the context is. Units: bytes.
//! Source: the CUDA driver API reference (cuda.h), whose names with `_v2` are those that its
//! header gives the current calls.
//!
//! # Safety
//! Each function has the documented signature of the symbol that it is loaded by. Pointers passed
//! are locals, or of host memory that is borrowed exclusively until the stream was waited for.
//! A [`Gpu`] stays on the thread that made its context current, since it holds raw pointers.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::ptr;

use libloading::Library;

use crate::contig::memory::Memory;

/// The name that the driver's package installs.
pub(super) const LIBRARY: &str = "libcuda.so.1";

const SUCCESS: Status = 0;
const NAME_MAX: usize = 128;

type Status = c_int;
type Device = c_int;
type Context = *mut c_void;
type Stream = *mut c_void;
/// An address on the device.
type DevicePtr = u64;

/// Why there is no device to measure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    /// The loader has no such library.
    #[error("no CUDA driver: {0}")]
    NoDriver(String),
    /// A library by that name that is not the driver, or far too old.
    #[error("the CUDA driver has no {0}; a newer one has")]
    NoFunction(&'static str),
    /// The driver works, and has nothing to drive.
    #[error("the CUDA driver lists no device")]
    NoDevice,
    /// The driver refused a call.
    #[error("{call}: {name} ({status})")]
    Refused {
        /// Which.
        call: &'static str,
        /// The driver's number.
        status: i32,
        /// The driver's word.
        name: String,
    },
}

/// The functions, each with its symbol and its parameters; all return a status.
macro_rules! api {
    ($($field:ident = $symbol:literal ($($type:ty),*);)*) => {
        struct Api {
            $($field: unsafe extern "C" fn($($type),*) -> Status,)*
        }

        impl Api {
            /// # Safety
            /// `library` has the driver's signatures.
            unsafe fn load(library: Library) -> Result<Self, Error> {
                // SAFETY: passed on to the caller.
                $(let $field = unsafe {
                    *library.get($symbol.as_bytes()).map_err(|_| Error::NoFunction($symbol))?
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
    version = "cuDriverGetVersion" (*mut c_int);
    device_count = "cuDeviceGetCount" (*mut c_int);
    device = "cuDeviceGet" (*mut Device, c_int);
    device_name = "cuDeviceGetName" (*mut c_char, c_int, Device);
    retain = "cuDevicePrimaryCtxRetain" (*mut Context, Device);
    release = "cuDevicePrimaryCtxRelease_v2" (Device);
    set_current = "cuCtxSetCurrent" (Context);
    alloc = "cuMemAlloc_v2" (*mut DevicePtr, usize);
    free = "cuMemFree_v2" (DevicePtr);
    host_alloc = "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    host_free = "cuMemFreeHost" (*mut c_void);
    register = "cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
    unregister = "cuMemHostUnregister" (*mut c_void);
    to_device = "cuMemcpyHtoDAsync_v2" (DevicePtr, *const c_void, usize, Stream);
    to_host = "cuMemcpyDtoHAsync_v2" (*mut c_void, DevicePtr, usize, Stream);
    stream = "cuStreamCreate" (*mut Stream, c_uint);
    stream_destroy = "cuStreamDestroy_v2" (Stream);
    synchronize = "cuStreamSynchronize" (Stream);
}

/// The first device and its context, current on this thread.
pub(super) struct Gpu {
    api: Api,
    device: Device,
    stream: Stream,
    /// As the driver calls it, with the driver's version.
    pub(super) name: String,
}

impl Gpu {
    /// Loads the driver by the loader's rules and takes its first device.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn open(library: &str) -> Result<Self, Error> {
        // SAFETY: a driver's constructors are run, which is what loading it means.
        let library = unsafe { Library::new(library) };
        let library = library.map_err(|why| Error::NoDriver(why.to_string()))?;
        // SAFETY: the name is the driver's alone.
        let api = unsafe { Api::load(library)? };
        let (mut count, mut version, mut device) = (0, 0, 0);
        let mut words: [c_char; NAME_MAX] = [0; NAME_MAX];
        // SAFETY: pointers to locals; the name's length is told.
        unsafe {
            api.check("cuInit", (api.init)(0))?;
            api.check("cuDriverGetVersion", (api.version)(&raw mut version))?;
            api.check("cuDeviceGetCount", (api.device_count)(&raw mut count))?;
            if count < 1 {
                return Err(Error::NoDevice);
            }
            api.check("cuDeviceGet", (api.device)(&raw mut device, 0))?;
            let len = NAME_MAX as c_int - 1;
            let named = (api.device_name)(words.as_mut_ptr(), len, device);
            api.check("cuDeviceGetName", named)?;
        }
        // SAFETY: the last byte is a zero of ours.
        let words = unsafe { CStr::from_ptr(words.as_ptr()) }.to_string_lossy().into_owned();
        let name = format!("{words}, driver {}.{}", version / 1000, version % 1000 / 10);
        let mut context = ptr::null_mut();
        // SAFETY: a pointer to a local; a device that was listed.
        let retained = unsafe { (api.retain)(&raw mut context, device) };
        api.check("cuDevicePrimaryCtxRetain", retained)?;
        // From here on dropped, whatever fails.
        let mut gpu = Self { api, device, stream: ptr::null_mut(), name };
        // SAFETY: the context is retained until the drop.
        gpu.check("cuCtxSetCurrent", unsafe { (gpu.api.set_current)(context) })?;
        let mut stream = ptr::null_mut();
        // SAFETY: a pointer to a local.
        gpu.check("cuStreamCreate", unsafe { (gpu.api.stream)(&raw mut stream, 0) })?;
        gpu.stream = stream;
        Ok(gpu)
    }

    fn check(&self, call: &'static str, status: Status) -> Result<(), Error> {
        self.api.check(call, status)
    }

    /// Memory of the device.
    ///
    /// # Errors
    /// That the driver refuses.
    pub(super) fn alloc(&self, len: usize) -> Result<OnDevice<'_>, Error> {
        let mut at = 0;
        // SAFETY: a pointer to a local.
        self.check("cuMemAlloc", unsafe { (self.api.alloc)(&raw mut at, len) })?;
        Ok(OnDevice { gpu: self, at, len })
    }

    /// Host memory as the driver pins it itself.
    ///
    /// # Errors
    /// That the driver refuses.
    pub(super) fn host_alloc(&self, len: usize) -> Result<Host<'_>, Error> {
        let mut at = ptr::null_mut();
        // SAFETY: a pointer to a local.
        let status = unsafe { (self.api.host_alloc)(&raw mut at, len, 0) };
        self.check("cuMemHostAlloc", status)?;
        Ok(Host { gpu: self, at: at.cast(), len, registered: None })
    }

    /// Registers memory that is there already.
    ///
    /// # Errors
    /// That the driver refuses.
    pub(super) fn register(&self, mut memory: Memory) -> Result<Host<'_>, Error> {
        let bytes = memory.bytes_mut();
        let (at, len) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: the memory is kept until it is unregistered.
        let status = unsafe { (self.api.register)(at.cast(), len, 0) };
        self.check("cuMemHostRegister", status)?;
        Ok(Host { gpu: self, at, len, registered: Some(memory) })
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: the stream and the context are this one's, and nothing that it handed out lives.
        unsafe {
            if !self.stream.is_null() {
                (self.api.stream_destroy)(self.stream);
            }
            (self.api.release)(self.device);
        }
    }
}

impl Api {
    fn check(&self, call: &'static str, status: Status) -> Result<(), Error> {
        if status == SUCCESS {
            return Ok(());
        }
        let mut name = ptr::null();
        // SAFETY: a pointer to a local; what comes is a C string of the driver's, or nothing.
        let name = unsafe {
            match ((self.error_name)(status, &raw mut name), name.is_null()) {
                (SUCCESS, false) => CStr::from_ptr(name).to_string_lossy().into_owned(),
                _ => "unknown".to_string(),
            }
        };
        Err(Error::Refused { call, status, name })
    }
}

/// Memory of the device, freed when dropped.
pub(super) struct OnDevice<'a> {
    gpu: &'a Gpu,
    at: DevicePtr,
    len: usize,
}

impl Drop for OnDevice<'_> {
    fn drop(&mut self) {
        // SAFETY: allocated by this device, freed once; every copy was waited for.
        unsafe { (self.gpu.api.free)(self.at) };
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

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    ToDevice,
    ToHost,
}

impl Host<'_> {
    /// All bytes.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: owned by this, by the driver's word or as a `Memory`; no copy is under way
        // outside of `copy`.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }

    /// Copies `len` bytes between each of `places` and the start of `device`, and waits for all.
    ///
    /// # Errors
    /// That the driver refuses.
    ///
    /// # Panics
    /// If a place or the device's memory has not as many bytes.
    pub(super) fn copy(
        &mut self,
        way: Way,
        device: &mut OnDevice<'_>,
        places: &[usize],
        len: usize,
    ) -> Result<(), Error> {
        assert!(len <= device.len, "{len} bytes of {} on the device", device.len);
        let inside = |&place: &usize| place.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(places.iter().all(inside), "{len} bytes beyond {}", self.len);
        let (gpu, api) = (self.gpu, &self.gpu.api);
        let mut begun = Ok(());
        for &place in places {
            let at = self.at.wrapping_add(place).cast::<c_void>();
            // SAFETY: both sides have `len` bytes, as asserted, and are borrowed exclusively
            // until the stream was waited for below.
            begun = unsafe {
                match way {
                    Way::ToDevice => gpu.check(
                        "cuMemcpyHtoDAsync",
                        (api.to_device)(device.at, at, len, gpu.stream),
                    ),
                    Way::ToHost => gpu
                        .check("cuMemcpyDtoHAsync", (api.to_host)(at, device.at, len, gpu.stream)),
                }
            };
            if begun.is_err() {
                break;
            }
        }
        // SAFETY: the stream is this device's.
        let ended = gpu.check("cuStreamSynchronize", unsafe { (api.synchronize)(gpu.stream) });
        begun.and(ended)
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
        let no_driver = Gpu::open("libglebe-has-no-such.so.1").err();
        let Some(Error::NoDriver(why)) = no_driver else { panic!("{no_driver:?}") };
        assert!(why.contains("libglebe-has-no-such.so.1"), "{why}");
        // The C library has none of the driver's functions.
        assert_eq!(Gpu::open("libc.so.6").err(), Some(Error::NoFunction("cuInit")));
    }
}
