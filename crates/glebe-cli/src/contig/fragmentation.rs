//! [`Fragmentation`] is the part of `glebe contig status` about free memory: the shares in long
//! runs, and what one run of a length would cost.

use std::error::Error;
use std::io::{self, Write};

use glebe::error::OsError;
use glebe::internal::sys::machine::kpage::{Occupancy, Use};
use glebe::units::Bytes;
use serde_json::{json, Value};

use super::cost::Request;
use super::shares::Shares;

pub struct Fragmentation {
    shares: Result<Shares, OsError>,
    request: Option<Request>,
}

impl Fragmentation {
    /// Looks at the machine, whose blocks, huge pages of the smallest size, have these uses; `None`
    /// if frames are hidden. With `len`, also looks for one run of this length.
    pub fn look(
        blocks: Option<&[(Use, Occupancy)]>,
        len: Option<Bytes>,
    ) -> Result<Self, Box<dyn Error>> {
        let request = len.map(|len| Request::look(len, blocks)).transpose()?;
        Ok(Self { shares: Shares::look(blocks), request })
    }

    pub fn json(&self) -> Value {
        json!({
            "shares": self.shares.as_ref().ok().map(Shares::json),
            "for": self.request.as_ref().map(Request::json),
        })
    }

    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        match &self.shares {
            Ok(shares) => shares.print(out)?,
            Err(error) => writeln!(out, "free memory      hidden: {error}")?,
        }
        match &self.request {
            Some(request) => write!(out, "{request}"),
            None => Ok(()),
        }
    }
}
