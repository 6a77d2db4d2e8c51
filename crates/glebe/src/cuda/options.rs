//! [`RegistrationOptions`] checks the options of a registration, and starts it.

use std::time::Duration;

use super::cut::Cut;
use super::error::CudaError;
use super::memory::{Kept, Registrable};
use super::registration::Registration;
use super::runtime::Runtime;
use super::state::Registering;
use glebe_os::internal::sys::page_size;
use glebe_os::units::Bytes;

/// A GPU does no other work while CUDA registers a piece.
const PIECE: Bytes = Bytes::mib(256);
/// NVIDIA's driver 580 refuses registrations of 512 GiB or more.
const PIECE_MOST: Bytes = Bytes::gib(256);

/// [`RegistrationOptions`] has the options of a registration.
#[derive(Clone, Debug)]
#[must_use]
pub struct RegistrationOptions {
    piece: Bytes,
    pause: Duration,
    devices: Option<Vec<i32>>,
}

impl Default for RegistrationOptions {
    fn default() -> Self {
        Self { piece: PIECE, pause: Duration::ZERO, devices: None }
    }
}

impl RegistrationOptions {
    /// Sets the length of a piece, a power of two from a page to 256 GiB. Default: 256 MiB.
    ///
    /// CUDA may refuse a copy from two pieces. A block that is aligned to its length, and no longer
    /// than a piece, lies in one.
    pub fn piece(self, piece: Bytes) -> Self {
        Self { piece, ..self }
    }

    /// Sets a pause between two pieces, which leaves CUDA to other threads. Default: none.
    pub fn pause(self, pause: Duration) -> Self {
        Self { pause, ..self }
    }

    /// Names the GPUs that copy from the memory or to it. The first registers, and the end waits
    /// for all. Default: the current device of the thread that calls [`Self::register`].
    pub fn devices(self, devices: impl IntoIterator<Item = i32>) -> Self {
        Self { devices: Some(devices.into_iter().collect()), ..self }
    }

    /// Starts to register the memory, and returns at once. A resize under way ends before.
    ///
    /// CUDA refuses a second registration of the same memory.
    ///
    /// # Errors
    /// [`CudaError::BadPiece`], [`CudaError::NoDevices`]; [`CudaError::Refused`] if the calling
    /// thread cannot use CUDA; [`CudaError::Forked`] or [`CudaError::Reserve`] in a forked child;
    /// [`CudaError::Os`] if no thread can start. [`Registration::wait`] returns the errors of
    /// pieces, and of devices that CUDA does not know.
    pub fn register(
        self,
        runtime: Runtime,
        memory: impl Into<Registrable>,
    ) -> Result<Registration, CudaError> {
        let (given, least, most) = (self.piece, page_size().bytes(), PIECE_MOST);
        if !given.get().is_power_of_two() || given < least || given > most {
            return Err(CudaError::BadPiece { given, least, most });
        }
        let devices = match self.devices {
            Some(devices) if devices.is_empty() => return Err(CudaError::NoDevices),
            Some(devices) => devices,
            None => vec![runtime.device()?],
        };
        let kept = Kept::new(memory.into())?;
        let cut = cut(&kept, given.pages_down(page_size()).get())?;
        Registration::start(Registering::new(runtime, devices, self.pause, kept.base(), cut), kept)
    }
}

fn cut(kept: &Kept, piece: u64) -> Result<Cut, CudaError> {
    let present = kept.present()?;
    // Memory in one piece needs no alignment.
    let is_cut = present.iter().map(|part| part.len()).sum::<u64>() > piece;
    let phase = if is_cut { kept.phase(piece) } else { 0 };
    Ok(Cut::new(&present, piece, phase))
}
