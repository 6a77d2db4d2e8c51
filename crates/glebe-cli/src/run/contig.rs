//! The options of `glebe run --contig`, which the preloaded library reads in GLEBE_HUGE.

use std::env;
use std::path::{self, Path, PathBuf};
use std::time::Duration;

use glebe::units::Bytes;
use glebe_lease::{socket_path, Client};

use super::supervisor::Wishes;
use super::{check, NotRun};
use crate::size;

/// The environment variable of the library.
pub const VARIABLE: &str = "GLEBE_HUGE";
/// The environment variable with the daemon's socket.
pub const SOCKET: &str = "GLEBE_LEASES";
/// Longest wait for a daemon that does not answer.
const LIMIT: Duration = Duration::from_secs(5);

/// Options of `--contig`.
#[derive(clap::Args)]
pub struct HugeArgs {
    /// Give the program huge pages of the daemon that `glebe serve --leases` runs
    #[arg(long)]
    pub contig: bool,
    /// End the program where it would get no huge pages, instead of letting it fall back
    #[arg(long, requires = "contig")]
    required: bool,
    /// The most memory that each process leases at a time, for example 2G; under a supervisor, that
    /// all processes lease together
    #[arg(long, requires = "contig", value_name = "SIZE", value_parser = size::parse)]
    quota: Option<Bytes>,
    /// Lease memory of NUMA node N
    #[arg(long, requires = "contig", value_name = "N")]
    node: Option<u32>,
    /// Let the program offer huge pages that the daemon may take (glebe_huge_offer)
    #[arg(long, requires = "contig")]
    revocable: bool,
    /// Leave private huge pages out of forked children, which otherwise get a copy
    #[arg(long, requires = "contig")]
    no_fork_copy: bool,
    /// Show the daemon's free pages as the kernel's, to a program that counts them first (DPDK)
    #[arg(long, requires = "contig")]
    show_pages: bool,
    /// Serve the system calls of the program's tree from outside, instead of preloading a library
    ///
    /// A supervisor then frees leased pages into the kernel's pool before each call for huge pages,
    /// also for bare system calls. Static programs are always served so. Other programs of the
    /// machine can take the pages before the call does.
    #[arg(long, requires = "contig")]
    supervise: bool,
    /// Print a line for each mapping
    #[arg(long, requires = "contig")]
    verbose: bool,
    /// Socket of the daemon; the default is $GLEBE_LEASES, else the usual one
    #[arg(long, requires = "contig", value_name = "FILE")]
    socket: Option<PathBuf>,
}

impl HugeArgs {
    /// Returns the library's words for this process.
    pub fn words(&self) -> String {
        let is_set = [
            (self.required, "required".to_owned()),
            (self.revocable, "revocable".to_owned()),
            (self.show_pages, "show-pages".to_owned()),
            (self.no_fork_copy, "leave-out".to_owned()),
            (self.verbose, "verbose".to_owned()),
        ];
        let mut words: Vec<_> =
            is_set.into_iter().filter_map(|(is_set, word)| is_set.then_some(word)).collect();
        words.extend(self.quota.map(|quota| format!("quota={}", quota.get())));
        words.extend(self.node.map(|node| format!("node={node}")));
        words.push(format!("main={}", std::process::id()));
        words.join(",")
    }

    /// Returns what a supervisor shall do if the program needs one.
    ///
    /// # Errors
    /// If the program shall also have another allocator, which a supervisor cannot give.
    pub fn supervision(&self, program: &Path, malloc: bool) -> Result<Option<Wishes>, NotRun> {
        let is_needed = self.contig && (self.supervise || check::is_static(program));
        let of_library = [
            (malloc, "--malloc"),
            (self.revocable, "--revocable"),
            (self.no_fork_copy, "--no-fork-copy"),
            (self.show_pages, "--show-pages"),
        ];
        if let Some((_, flag)) = of_library.iter().find(|(is_set, _)| is_needed && *is_set) {
            return Err(NotRun::refused(format!(
                "{flag} needs a library in the program, and this one runs under a supervisor"
            )));
        }
        Ok(is_needed.then(|| Wishes {
            required: self.required,
            quota: self.quota.map(Bytes::get),
            node: self.node,
            is_verbose: self.verbose,
            socket: self.socket.clone().unwrap_or_else(socket_path),
        }))
    }

    /// Returns the socket, if it is another one than the program would find. Its path is absolute,
    /// because the program may change its folder.
    ///
    /// # Errors
    /// If the path is empty, or the current folder is gone.
    pub fn socket(&self) -> Result<Option<PathBuf>, NotRun> {
        let inherited = || env::var_os(SOCKET).filter(|path| !path.is_empty()).map(PathBuf::from);
        let given = self.socket.clone().or_else(inherited);
        let absolute = given.map(path::absolute).transpose();
        absolute.map_err(|e| NotRun::refused(format!("the path of the daemon's socket: {e}")))
    }

    /// Asks for the daemon. Returns a warning if there is none.
    ///
    /// # Errors
    /// If there is none, and the program shall not run without.
    pub fn check(&self) -> Result<Option<String>, NotRun> {
        let path = self.socket.clone().unwrap_or_else(socket_path);
        match Client::connect_within(&path, "glebe run", LIMIT) {
            Ok(_) => Ok(None),
            Err(error) if self.required => Err(NotRun::refused(error.to_string())),
            Err(error) => Ok(Some(format!("{error}; the kernel gets the program's requests"))),
        }
    }
}
