//! [`State::map`] answers a request for huge pages by a lease.

use std::io;
use std::time::Duration;

use glebe_lease::internal::{connect_above, Part, PartLease};
use glebe_lease::wire::{Flags, Name};
use glebe_lease::{socket_path, Client, LeaseError, Wish};
use glebe_os::units::Bytes;

use crate::loan::Loan;
use crate::own_files::OwnClient;
use crate::pieces::Piece;
use crate::place::{Place, Spot};
use crate::state::{name, Holding, Private, Source, State};

/// Programs may expect low descriptors to be free.
pub(crate) const LEAST_FILE: i32 = 900;
/// Longest wait for the daemon's answer, and more for long leases.
const LIMIT: Duration = Duration::from_secs(5);

/// A request for anonymous huge pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) spot: Spot,
    pub(crate) len: usize,
    /// Size of the pages that the program asked for.
    pub(crate) page: usize,
    pub(crate) prot: i32,
    pub(crate) is_shared: bool,
    /// Further flags of mmap(2).
    pub(crate) flags: i32,
}

impl State {
    /// Leases memory and maps it. Returns its address, or why it was refused.
    pub(crate) fn map(&mut self, request: &Request) -> Result<usize, String> {
        self.may_lease(request.len as u64)?;
        let mut mapped = self.try_to_map(request);
        if matches!(&mapped, Err(LeaseError::Connection(_) | LeaseError::Forked)) {
            // The daemon may have been started anew. The old connection lasts as long as a lease by
            // it.
            self.client = None;
            mapped = self.try_to_map(request);
        }
        mapped.map_err(|error| {
            if matches!(error, LeaseError::Silent { .. }) {
                self.is_silent = true;
                // The connection closes when its last lease ends. The daemon then takes a late
                // grant back.
                self.client = None;
            }
            error.to_string()
        })
    }

    /// Returns why no more can be leased.
    pub(crate) fn may_lease(&self, bytes: u64) -> Result<(), String> {
        if let Some(quota) = self.settings.quota {
            if self.counts.leased + bytes > quota {
                let (quota, leased) = (Bytes::new(quota), Bytes::new(self.counts.leased));
                return Err(format!("the quota is {quota}, and {leased} are leased"));
            }
        }
        match self.is_silent {
            true => Err("the daemon did not answer before".to_owned()),
            false => Ok(()),
        }
    }

    fn try_to_map(&mut self, request: &Request) -> Result<usize, LeaseError> {
        let client = match request.is_shared {
            true => OwnClient::new(connect()?),
            false => self.private_client()?,
        };
        let wish = self.wish(request, client.get().brick());
        let (mut place, mut pieces, mut bytes) = (None, Vec::new(), 0);
        let lease = PartLease::take(client.get(), wish, |part| {
            bytes = part.bytes.get();
            fill(&mut place, request, &part, &mut pieces)
        });
        let lease = lease.inspect_err(|_| {
            if let Some(place) = &place {
                self.forget(place.base()..place.base() + request.len);
            }
        })?;
        let place: Place = place.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        let base = place.base();
        self.forget(base..base + request.len);
        place.keep();
        self.last += 1;
        self.counts.lease(bytes);
        let source = match request.is_shared {
            true => Source::Shared(Loan::new(lease, client, bytes)),
            false => Source::Private(Private { lease, _client: client, bytes, is_offered: false }),
        };
        self.holdings.insert(self.last, Holding { source, mapped: request.len });
        for (start, len) in pieces {
            let Request { prot, is_shared, .. } = *request;
            let piece = Piece { len, prot, holding: self.last, is_shared, is_inherited: true };
            self.add(start, piece);
        }
        Ok(base)
    }

    fn private_client(&mut self) -> Result<OwnClient, LeaseError> {
        let client = match self.client.take() {
            Some(client) => client,
            None => OwnClient::new(connect()?),
        };
        Ok(self.client.insert(client).clone())
    }

    fn wish(&self, request: &Request, brick: Bytes) -> Wish {
        // Pages longer than a brick are one physical run.
        let is_long = request.page as u64 > brick.get();
        Wish {
            bytes: request.len as u64,
            align: if is_long { request.page as u64 } else { 0 },
            node: self.settings.node,
            flags: Flags { contiguous: is_long, ..Flags::default() },
            name: Name::new(&name()),
        }
    }
}

pub(crate) fn connect() -> Result<Client, LeaseError> {
    connect_above(LEAST_FILE, &socket_path(), &name(), LIMIT)
}

/// Maps the files of a message. The first message decides the place.
fn fill(
    place: &mut Option<Place>,
    request: &Request,
    part: &Part,
    pieces: &mut Vec<(usize, usize)>,
) -> io::Result<()> {
    if part.page.bytes().as_usize() > request.page {
        let (have, want) = (part.page.bytes(), Bytes::new(request.page as u64));
        return Err(io::Error::other(format!("the daemon has pages of {have}, not of {want}")));
    }
    let place = match place {
        Some(place) => place,
        None => {
            let reserved = Place::reserve(request.spot, request.len, request.page);
            place.insert(reserved.map_err(io::Error::from_raw_os_error)?)
        }
    };
    let each = part.file.as_usize();
    for (nth, file) in part.files.iter().enumerate() {
        let offset = (part.first + nth) * each;
        let len = place.put(offset, file, each, request.prot, request.flags);
        let len = len.map_err(io::Error::from_raw_os_error)?;
        if len > 0 {
            pieces.push((place.base() + offset, len));
        }
    }
    Ok(())
}
