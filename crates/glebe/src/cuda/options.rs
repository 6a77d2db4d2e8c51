//! [`RegistrationOptions`] checks the options of a registration, and starts it.

use std::time::Duration;

use super::cut::Cut;
use super::error::CudaError;
use super::memory::{KeptMemory, Registrable};
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
    /// CUDA may refuse a copy from two pieces. A block of [any](crate::reserve::Request::any) pages
    /// that is aligned to its length, and no longer than a piece, lies in one.
    pub fn piece(self, piece: Bytes) -> Self {
        Self { piece, ..self }
    }

    /// Sets a pause between two pieces, which leaves CUDA to other threads. Default: none.
    pub fn pause(self, pause: Duration) -> Self {
        Self { pause, ..self }
    }

    /// Names the GPUs that copy from the memory or to it. The first is current while pieces are
    /// registered. [`Registration::close`] and drop wait for all. Default: the current device of
    /// the thread that calls [`Self::register`].
    pub fn devices(self, devices: impl IntoIterator<Item = i32>) -> Self {
        Self { devices: Some(devices.into_iter().collect()), ..self }
    }

    /// Starts to register the memory. Waits for a resize under way, but not for CUDA.
    ///
    /// # Errors
    /// [`CudaError::BadPiece`], [`CudaError::NoDevices`], [`CudaError::Registered`];
    /// [`CudaError::Reserve`] for a reserve of bricks, which may unmap its pages;
    /// [`CudaError::Forked`] or [`CudaError::Reserve`] in a forked child; [`CudaError::Refused`] if
    /// the calling thread cannot use CUDA; [`CudaError::Os`] if no thread can start.
    /// [`Registration::wait`] returns the errors of pieces, and of devices that CUDA does not know.
    pub fn register(
        self,
        runtime: Runtime,
        memory: impl Into<Registrable>,
    ) -> Result<Registration, CudaError> {
        let (given, least, most) = (self.piece, page_size().bytes(), PIECE_MOST);
        if !given.get().is_power_of_two() || given < least || given > most {
            return Err(CudaError::BadPiece { given, least, most });
        }
        if self.devices.as_ref().is_some_and(Vec::is_empty) {
            return Err(CudaError::NoDevices);
        }
        // Refuses a forked child, whose calls of CUDA fail.
        let kept = KeptMemory::new(memory.into())?;
        let devices = match self.devices {
            Some(devices) => devices,
            None => vec![runtime.device()?],
        };
        let cut = cut(&kept, given.pages_down(page_size()).get())?;
        Registration::start(Registering::new(runtime, devices, self.pause, kept.base(), cut), kept)
    }
}

fn cut(kept: &KeptMemory, piece: u64) -> Result<Cut, CudaError> {
    let present = kept.present()?;
    // Memory in one piece needs no alignment.
    let is_cut = present.iter().map(|part| part.len()).sum::<u64>() > piece;
    let first_border = if is_cut { kept.first_border(piece) } else { 0 };
    Ok(Cut::new(&present, piece, first_border))
}
