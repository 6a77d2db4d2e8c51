//! [`Loan`] is a lease with a connection of its own. Forked children have copies of the connection,
//! so the lease lasts until all have left it, or until the process that took it ends it.

use std::fs::File;
use std::io;

use glebe_lease::internal::PartLease;
use glebe_lease::wire::{Flags, Name};
use glebe_lease::{LeaseError, Wish};
use glebe_os::units::Bytes;

use crate::lease::connect;
use crate::own_files::OwnClient;
use crate::state::{name, Source, State};

pub(crate) struct Loan {
    lease: PartLease,
    /// Keeps the program from closing the lease's connection.
    _client: OwnClient,
    bytes: u64,
    /// Forked children have copies of the connection.
    is_forked: bool,
}

impl Loan {
    pub(crate) fn new(lease: PartLease, client: OwnClient, bytes: u64) -> Self {
        Self { lease, _client: client, bytes, is_forked: false }
    }

    /// Returns the daemon's number of the lease.
    pub(crate) fn number(&self) -> u64 {
        self.lease.number()
    }
}

impl State {
    /// Leases one file with pages of a size. Returns why it was refused.
    pub(crate) fn lend(&mut self, len: usize, page: usize) -> Result<(Loan, File), String> {
        self.may_lease(len as u64)?;
        let lent = self.try_to_lend(len, page).map_err(|error| {
            self.is_silent = matches!(error, LeaseError::Silent { .. });
            error.to_string()
        });
        let (loan, file) = lent?;
        self.counts.lease(loan.bytes);
        if self.settings.is_verbose {
            self.tell(&format!("leased {} KiB in one file", loan.bytes >> 10));
        }
        Ok((loan, file))
    }

    fn try_to_lend(&self, len: usize, page: usize) -> Result<(Loan, File), LeaseError> {
        let client = OwnClient::new(connect()?);
        let wish = Wish {
            bytes: len as u64,
            align: 0,
            node: self.settings.node,
            flags: Flags { one_file: true, ..Flags::default() },
            name: Name::new(&name()),
        };
        let (mut one, mut bytes) = (None, 0);
        let lease = PartLease::take(client.get(), wish, |mut part| {
            let [have, want] = [part.page.bytes(), Bytes::new(page as u64)];
            if have != want {
                let text = format!("the daemon has pages of {have}, not of {want}");
                return Err(io::Error::other(text));
            }
            bytes = part.bytes.get();
            one = part.files.pop();
            Ok(())
        })?;
        let file = one.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        Ok((Loan::new(lease, client, bytes), file))
    }

    /// Ends a loan, which lasts while a forked child has it.
    pub(crate) fn leave(&mut self, loan: Loan) {
        match loan.is_forked {
            true => self.leave_to_others(loan),
            false => self.end_loan(loan),
        }
    }

    fn leave_to_others(&mut self, loan: Loan) {
        self.counts.give_back(loan.bytes);
        loan.lease.leave();
    }

    /// Ends a loan that nobody uses, also if a forked child has it. Only the process that took it
    /// can; others leave it.
    pub(crate) fn end_loan(&mut self, loan: Loan) {
        self.counts.give_back(loan.bytes);
        // A request by another connection could overtake a release without an answer.
        loan.lease.give_back();
    }

    /// Notes that a forked child has copies of all connections.
    pub(crate) fn note_fork(&mut self) {
        let holdings = self.holdings.values_mut().filter_map(|holding| match &mut holding.source {
            Source::Shared(loan) => Some(loan),
            _ => None,
        });
        let segments = self.segments.values_mut().map(|segment| &mut segment.loan);
        let all = holdings.chain(segments).chain(self.files.forked());
        all.for_each(|loan| loan.is_forked = true);
    }
}
