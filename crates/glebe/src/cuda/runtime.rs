//! [`Runtime`] has the functions of the CUDA runtime, `libcudart`, which is loaded at run time.
//!
//! The runtime keeps a current device and a last error for each thread. A failed call here takes
//! the error back, because otherwise a later call of the thread would report it as its own.
//!
//! # Safety
//! The functions have the types of the CUDA runtime's reference, and the library is never unloaded.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint, c_void, CStr, OsStr};
use std::path::Path;

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL, RTLD_NOW};

use super::error::{CudaError, CudaFailure};
use glebe_os::units::Bytes;

/// The newest first.
const NAMES: [&str; 3] = ["libcudart.so", "libcudart.so.13", "libcudart.so.12"];
/// Finds only a library that is loaded already. Source: dlopen(3).
const RTLD_NOLOAD: c_int = 4;
/// `cudaStreamCaptureModeRelaxed`
const RELAXED: c_int = 2;

/// `cudaErrorCudartUnloading`: the process ends, and the driver drops all registrations.
pub(super) const UNLOADING: i32 = 4;
/// `cudaErrorHostMemoryNotRegistered`
pub(super) const NOT_REGISTERED: i32 = 713;

/// The CUDA runtime of this process, as far as glebe calls it.
#[derive(Clone, Copy, Debug)]
pub struct Runtime {
    host_register: unsafe extern "C" fn(*mut c_void, usize, c_uint) -> c_int,
    host_unregister: unsafe extern "C" fn(*mut c_void) -> c_int,
    get_device: unsafe extern "C" fn(*mut c_int) -> c_int,
    set_device: unsafe extern "C" fn(c_int) -> c_int,
    synchronize: unsafe extern "C" fn() -> c_int,
    last_error: unsafe extern "C" fn() -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    /// Missing in old versions.
    exchange_capture_mode: Option<unsafe extern "C" fn(*mut c_int) -> c_int>,
}

fn open(name: &OsStr, flags: c_int) -> Result<Library, String> {
    // SAFETY: the library's initializers run. The library is the CUDA runtime, or the caller of
    // `load_from` vouches for it.
    unsafe { Library::open(Some(name), flags) }.map_err(|error| error.to_string())
}

impl Runtime {
    /// Loads the CUDA runtime: the `libcudart` that is loaded already, or else the first of
    /// `libcudart.so`, `libcudart.so.13` and `libcudart.so.12` that the dynamic loader finds and
    /// that has all functions.
    ///
    /// # Errors
    /// [`CudaError::NoRuntime`], [`CudaError::NotARuntime`].
    pub fn load() -> Result<Self, CudaError> {
        let asked = NAMES.join(" or ");
        let mut why = String::new();
        let mut other = None;
        for flags in [RTLD_NOLOAD | RTLD_LAZY, RTLD_NOW | RTLD_LOCAL] {
            for name in NAMES {
                match open(name.as_ref(), flags) {
                    // SAFETY: a library of this name is the CUDA runtime, as for any program that
                    // links it.
                    Ok(library) => match unsafe { Self::of(library, name) } {
                        Ok(runtime) => return Ok(runtime),
                        Err(error) => other = other.or(Some(error)),
                    },
                    Err(error) => why = error,
                }
            }
        }
        Err(other.unwrap_or(CudaError::NoRuntime { asked, why }))
    }

    /// Loads the CUDA runtime from the file `path`.
    ///
    /// # Errors
    /// As [`Runtime::load`].
    ///
    /// # Safety
    /// The functions of the library that have the names of CUDA's have CUDA's types and meaning.
    pub unsafe fn load_from(path: &Path) -> Result<Self, CudaError> {
        let asked = path.display().to_string();
        match open(path.as_os_str(), RTLD_NOW | RTLD_LOCAL) {
            // SAFETY: passed on to the caller.
            Ok(library) => unsafe { Self::of(library, &asked) },
            Err(why) => Err(CudaError::NoRuntime { asked, why }),
        }
    }

    /// # Safety
    /// As [`Runtime::load_from`].
    unsafe fn of(library: Library, asked: &str) -> Result<Self, CudaError> {
        let missing = |why: libloading::Error| CudaError::NotARuntime {
            asked: asked.to_owned(),
            why: why.to_string(),
        };
        // SAFETY: the caller vouches for the types.
        let runtime = unsafe {
            Self {
                host_register: *library.get(b"cudaHostRegister\0").map_err(missing)?,
                host_unregister: *library.get(b"cudaHostUnregister\0").map_err(missing)?,
                get_device: *library.get(b"cudaGetDevice\0").map_err(missing)?,
                set_device: *library.get(b"cudaSetDevice\0").map_err(missing)?,
                synchronize: *library.get(b"cudaDeviceSynchronize\0").map_err(missing)?,
                last_error: *library.get(b"cudaGetLastError\0").map_err(missing)?,
                error_string: *library.get(b"cudaGetErrorString\0").map_err(missing)?,
                exchange_capture_mode: library
                    .get(b"cudaThreadExchangeStreamCaptureMode\0")
                    .ok()
                    .map(|function| *function),
            }
        };
        // The functions are used until the process ends.
        let _ = library.into_raw();
        Ok(runtime)
    }

    fn check(
        &self,
        call: &'static str,
        code: c_int,
        piece: Option<(Bytes, Bytes)>,
    ) -> Result<(), CudaFailure> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the call takes no arguments.
        unsafe { (self.last_error)() };
        // SAFETY: the runtime knows each code that it returned.
        let text = unsafe { (self.error_string)(code) };
        let text = match text.is_null() {
            true => "unknown error".to_owned(),
            // SAFETY: the text ends with a zero, and the library has it until it is unloaded.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        };
        Err(CudaFailure { call, code, text, piece })
    }

    /// Returns the current device of the calling thread.
    pub(super) fn device(&self) -> Result<i32, CudaFailure> {
        let mut number = 0;
        // SAFETY: the call writes one number.
        let code = unsafe { (self.get_device)(&mut number) };
        self.check("cudaGetDevice", code, None)?;
        Ok(number)
    }

    fn set_device(&self, number: i32) -> Result<(), CudaFailure> {
        // SAFETY: the runtime checks the number.
        let code = unsafe { (self.set_device)(number) };
        self.check("cudaSetDevice", code, None)
    }

    /// Prepares a thread that registers memory, also while others capture graphs. Checks that CUDA
    /// knows all devices. The first becomes current.
    pub(super) fn begin_thread(&self, devices: &[i32]) -> Result<(), CudaFailure> {
        if let Some(exchange) = self.exchange_capture_mode {
            let mut mode = RELAXED;
            // SAFETY: the call reads and writes one number.
            let code = unsafe { exchange(&mut mode) };
            self.check("cudaThreadExchangeStreamCaptureMode", code, None)?;
        }
        devices.iter().rev().try_for_each(|number| self.set_device(*number))
    }

    /// Waits until the devices have done all work that was queued before. The first becomes
    /// current.
    pub(super) fn synchronize(&self, devices: &[i32]) -> Result<(), CudaFailure> {
        for number in devices.iter().rev() {
            self.set_device(*number)?;
            // SAFETY: the call takes no arguments.
            let code = unsafe { (self.synchronize)() };
            self.check("cudaDeviceSynchronize", code, None)?;
        }
        Ok(())
    }

    /// Registers the piece (offset, length) of the memory at `base`.
    ///
    /// # Safety
    /// The piece stays mapped until it is unregistered.
    pub(super) unsafe fn register(
        &self,
        base: usize,
        piece: (Bytes, Bytes),
    ) -> Result<(), CudaFailure> {
        let (offset, len) = (piece.0.as_usize(), piece.1.as_usize());
        let start = std::ptr::with_exposed_provenance_mut(base + offset);
        // SAFETY: passed on to the caller.
        let code = unsafe { (self.host_register)(start, len, 0) };
        self.check("cudaHostRegister", code, Some(piece))
    }

    /// Unregisters a piece, which the runtime finds by its address.
    pub(super) fn unregister(&self, base: usize, piece: (Bytes, Bytes)) -> Result<(), CudaFailure> {
        let start = std::ptr::with_exposed_provenance_mut(base + piece.0.as_usize());
        // SAFETY: the runtime accepts any address, and forgets only what was registered there.
        let code = unsafe { (self.host_unregister)(start) };
        self.check("cudaHostUnregister", code, Some(piece))
    }
}

#[cfg(test)]
impl Runtime {
    /// Returns a runtime whose calls succeed and do nothing.
    pub(super) fn that_does_nothing() -> Self {
        unsafe extern "C" fn register(_: *mut c_void, _: usize, _: c_uint) -> c_int {
            0
        }
        unsafe extern "C" fn unregister(_: *mut c_void) -> c_int {
            0
        }
        unsafe extern "C" fn get(_: *mut c_int) -> c_int {
            0
        }
        unsafe extern "C" fn set(_: c_int) -> c_int {
            0
        }
        unsafe extern "C" fn none() -> c_int {
            0
        }
        unsafe extern "C" fn text(_: c_int) -> *const c_char {
            std::ptr::null()
        }
        Self {
            host_register: register,
            host_unregister: unregister,
            get_device: get,
            set_device: set,
            synchronize: none,
            last_error: none,
            error_string: text,
            exchange_capture_mode: None,
        }
    }
}
