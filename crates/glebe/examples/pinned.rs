//! Registers a reserve with CUDA in the background, and uses a block before the rest is registered.
//! Arguments: MiB of the reserve and of a piece. Without a CUDA runtime or a GPU the example says
//! so.

use std::io::Write;
use std::time::Instant;

use glebe::contig::{Contig, Source};
use glebe::cuda::{CudaError, Registration, Runtime};
use glebe::reserve::{Request, Reserve};
use glebe::units::{Bytes, Pages};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout();
    let mut args = std::env::args().skip(1);
    let len = Bytes::mib(args.next().map_or(Ok(64), |mib| mib.parse())?);
    let piece = Bytes::mib(args.next().map_or(Ok(16), |mib| mib.parse())?);
    let runtime = match Runtime::load() {
        Err(why @ CudaError::NoRuntime { .. }) => return Ok(writeln!(out, "{why}")?),
        runtime => runtime?,
    };
    let memory = Contig::options().source(Source::Thp);
    let reserve = Reserve::options().memory(memory).build(len)?;
    let begin = Instant::now();
    let registration = match Registration::options().piece(piece).register(runtime, &reserve) {
        Err(why @ CudaError::Refused(_)) => return Ok(writeln!(out, "{why}")?),
        registration => registration?,
    };
    // Any pages that are aligned to their length lie in one piece.
    let block = reserve.alloc(Request::new(Pages::new(256)).align(Pages::new(256)).any())?;
    registration.wait(block.extent(), None)?;
    writeln!(out, "{} in use after {:?}", block.pages(), begin.elapsed())?;
    let mut ready = Bytes::ZERO;
    while ready < registration.total() {
        ready = registration.progress(ready, None)?;
        writeln!(out, "{ready} of {} after {:?}", registration.total(), begin.elapsed())?;
    }
    registration.close()?;
    writeln!(out, "unregistered after {:?}", begin.elapsed())?;
    Ok(())
}
