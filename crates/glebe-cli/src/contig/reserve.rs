//! `glebe contig reserve` grows a pool of huge pages now, or prints a configuration for boot.

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;

use glebe::contig::{boot_parameter, grow_pool, PoolChange};
use glebe::internal::sys::machine::hugetlb::Pool;
use glebe::units::{Bytes, PageSize};

use super::record::Recorded;
use super::status::block;
use crate::size::parse;
use crate::{usage, Outcome};

/// Options of `glebe contig reserve`.
#[derive(clap::Args)]
pub struct ReserveArgs {
    /// Length, rounded up to whole pages
    #[arg(value_parser = parse)]
    len: Bytes,
    /// Size of a page, for example 2M or 1G; default: the machine's smallest huge page
    #[arg(long, value_parser = parse, value_name = "SIZE")]
    page: Option<Bytes>,
    /// Print what the command would write; write nothing
    #[arg(long)]
    dry_run: bool,
    /// Print a kernel parameter and a systemd unit that each reserve LEN at every boot; write
    /// nothing
    #[arg(long, conflicts_with = "dry_run")]
    at_boot: bool,
    /// Add the pages to a count in FILE, for `glebe contig release --record`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["dry_run", "at_boot"])]
    record: Option<PathBuf>,
}

pub fn run(args: &ReserveArgs, out: &mut dyn Write) -> Outcome {
    let size = page_of(args.page)?;
    let pages = args.len.pages_up(size).get();
    if args.at_boot {
        return at_boot(size, pages, out);
    }
    let growth = match &args.record {
        Some(path) => recorded(&mut Recorded::open(path, size)?, size, pages)?,
        None => grow_pool(size, pages, args.dry_run)?,
    };
    let PoolChange { before, pages: added, absorbed, write: (path, number) } = growth;
    let verb = if args.dry_run { "would write" } else { "wrote" };
    writeln!(out, "{verb} {number} to {}", path.display())?;
    if !args.dry_run {
        let of = size.bytes();
        writeln!(
            out,
            "{before} pages of {of} before, {added} added; they stay until the next boot"
        )?;
        if absorbed > 0 {
            writeln!(out, "{absorbed} more that programs use now stay too when these end")?;
        }
    }
    Ok(())
}

/// Records the growth first, so that a kill loses no page.
fn recorded(
    record: &mut Recorded,
    size: PageSize,
    pages: u64,
) -> Result<PoolChange, Box<dyn Error>> {
    let surplus = Pool::of(size).and_then(|pool| Some(pool.counts().ok()?.surplus));
    let most = pages.saturating_add(surplus.unwrap_or_default());
    record.begin(i64::try_from(most).unwrap_or(i64::MAX))?;
    match grow_pool(size, pages, false) {
        Ok(growth) => {
            record.set(record.pages + growth.pages + growth.absorbed)?;
            Ok(growth)
        }
        Err(error) => {
            // The library has undone the change, or its next call does.
            record.set(record.pages)?;
            Err(error.into())
        }
    }
}

/// Returns `named`, by default the size that [`block`] returns. Fails if `named` is not a power of
/// two.
pub fn page_of(named: Option<Bytes>) -> Result<PageSize, Box<dyn Error>> {
    match named.map(|bytes| (bytes, PageSize::new(bytes.get()))) {
        None => Ok(block()),
        Some((_, Some(size))) => Ok(size),
        Some((bytes, None)) => usage(format!("--page {bytes}: that is no power of two")),
    }
}

fn at_boot(size: PageSize, pages: u64, out: &mut dyn Write) -> Outcome {
    let kib = size.bytes().get() >> 10;
    let path = match Pool::of(size) {
        Some(pool) => pool.path().display().to_string(),
        None => format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages"),
    };
    let of = size.bytes();
    writeln!(out, "# On the kernel's command line, before anything is fragmented:")?;
    writeln!(out, "#     {}", boot_parameter(size, pages))?;
    writeln!(
        out,
        "# Or, as /etc/systemd/system/glebe-contig.service, enabled by systemctl enable:"
    )?;
    write!(
        out,
        "[Unit]\n\
         Description=Huge pages for contiguous memory: {pages} of {of}\n\
         DefaultDependencies=no\n\
         After=local-fs.target\n\
         Before=sysinit.target\n\
         \n\
         [Service]\n\
         Type=oneshot\n\
         RemainAfterExit=yes\n\
         ExecStart=/bin/sh -c 'n=$$(cat {path}) && echo $$((n + {pages})) > {path}'\n\
         \n\
         [Install]\n\
         WantedBy=sysinit.target\n"
    )?;
    Ok(())
}
