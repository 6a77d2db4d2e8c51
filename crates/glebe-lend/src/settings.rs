//! [`Settings`] of a lender, and [`LendError`].

use std::path::PathBuf;
use std::time::Duration;

use glebe_os::error::OsError;
use glebe_os::units::Bytes;

/// A segment is a multiple of this: the huge page of the daemon.
pub const ALIGN: Bytes = Bytes::mib(2);
/// Most segments. Each has a connection to the daemon, which allows a user 256.
pub const SEGMENTS_MAX: u64 = 128;
/// Limits of times.
const TIME_MIN: Duration = Duration::from_millis(100);
const PATIENCE_MIN: Duration = Duration::from_millis(1);
const TIME_MAX: Duration = Duration::from_secs(86_400);

/// Settings of a lender.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address of Mooncake's master, `HOST:PORT`.
    pub master: String,
    /// Most memory to lend.
    pub share: Bytes,
    /// Length of a segment.
    pub segment: Bytes,
    /// Mooncake's metadata server: a URL, or `P2PHANDSHAKE` for none.
    pub metadata: String,
    /// Mooncake's transport.
    pub protocol: String,
    /// Name or address of this host for other hosts; `None` for the address that the connection to
    /// the master has.
    pub host: Option<String>,
    /// Python with Mooncake's package.
    pub python: PathBuf,
    /// Socket of the daemon.
    pub daemon: PathBuf,
    /// Least rest of memory that was taken back.
    pub rest: Duration,
    /// Longest rest, if recalls are frequent.
    pub rest_max: Duration,
    /// Time between requests that the daemon refuses, and between looks at the master.
    pub every: Duration,
    /// Longest wait for the agent's next answer during a recall; then it is killed. Also the
    /// longest wait for the killed agent's end; then the daemon cuts its memory. The agent gets at
    /// most half of the daemon's notice for the first, and three quarters for both.
    pub patience: Duration,
    /// Socket for status.
    pub status: Option<PathBuf>,
    /// Print the agent's own log.
    pub is_verbose: bool,
}

/// The reason why a lender cannot work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LendError {
    /// A setting is wrong.
    #[error("{0}")]
    Setting(String),
    /// There is no such Python.
    #[error("{}: {source}; --python names another one", python.display())]
    NoPython {
        /// The program.
        python: PathBuf,
        /// The refusal.
        source: std::io::Error,
    },
    /// Python cannot import Mooncake's package.
    #[error("{} cannot import mooncake.store: {text}{}", python.display(), hint(text))]
    NoPackage {
        /// The program.
        python: PathBuf,
        /// Its error.
        text: String,
    },
    /// Another lender uses the status socket.
    #[error("another lender answers at {}", .0.display())]
    InUse(PathBuf),
    /// The kernel refused a call.
    #[error(transparent)]
    Os(#[from] OsError),
    /// The kernel refused a call.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

fn hint(text: &str) -> &'static str {
    if text.contains("libibverbs") || text.contains("librdmacm") {
        "; the package needs libibverbs for TCP, too (Debian: libibverbs1, Fedora: libibverbs)"
    } else if text.contains("ModuleNotFoundError") {
        "; pip install mooncake-transfer-engine-non-cuda (or mooncake-transfer-engine with CUDA), \
         or name a Python that has it by --python"
    } else {
        ""
    }
}

impl Settings {
    /// Returns the number of segments.
    #[must_use]
    pub fn segments(&self) -> u64 {
        self.share.get() / self.segment.get().max(1)
    }

    /// Checks the numbers and the master's address.
    ///
    /// # Errors
    /// [`LendError::Setting`] with the value and the limit.
    pub fn check(&self) -> Result<(), LendError> {
        let Self { share, segment, master, .. } = self;
        let wrong = |text: String| Err(LendError::Setting(text));
        if *segment < ALIGN || segment.get() % ALIGN.get() != 0 {
            return wrong(format!("a segment of {segment}; it must be a multiple of {ALIGN}"));
        }
        if share < segment {
            return wrong(format!("a share of {share}, less than a segment of {segment}"));
        }
        let segments = self.segments();
        if segments > SEGMENTS_MAX {
            let least = Bytes::new(share.get().div_ceil(SEGMENTS_MAX)).get();
            let least = Bytes::new(least.next_multiple_of(ALIGN.get()));
            return wrong(format!(
                "{segments} segments of {segment}; at most {SEGMENTS_MAX}, so give segments of at \
                 least {least}"
            ));
        }
        let port = master.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>()));
        match port {
            Some((host, Ok(1..))) if !host.is_empty() => {}
            _ => return wrong(format!("{master:?} is no master: give HOST:PORT")),
        }
        let Self { rest, rest_max, every, patience, .. } = self;
        let times = [("rest", rest), ("longest rest", rest_max), ("time between requests", every)];
        for (name, time, least) in times
            .map(|(name, time)| (name, time, TIME_MIN))
            .into_iter()
            .chain([("patience", patience, PATIENCE_MIN)])
        {
            if !(least..=TIME_MAX).contains(time) {
                return wrong(format!("a {name} of {time:?}; give from {least:?} to {TIME_MAX:?}"));
            }
        }
        if rest_max < rest {
            return wrong(format!(
                "a longest rest of {rest_max:?}, less than the least one of {rest:?}"
            ));
        }
        // The agent's protocol has one line for each command, with blanks between words.
        for (name, text) in [("metadata", &self.metadata), ("protocol", &self.protocol)] {
            if text.is_empty() || text.contains(char::is_whitespace) {
                return wrong(format!("{text:?} as {name}: empty, or with blanks"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn settings() -> Settings {
        Settings {
            master: "store:50051".to_owned(),
            share: Bytes::gib(8),
            segment: Bytes::mib(256),
            metadata: "P2PHANDSHAKE".to_owned(),
            protocol: "tcp".to_owned(),
            host: None,
            python: "python3".into(),
            daemon: "leases".into(),
            rest: Duration::from_secs(15),
            rest_max: Duration::from_secs(600),
            every: Duration::from_secs(5),
            patience: Duration::from_millis(20),
            status: None,
            is_verbose: false,
        }
    }

    #[test]
    fn wrong_settings_are_told_with_value_and_limit() {
        assert!(settings().check().is_ok());
        assert_eq!(settings().segments(), 32);
        let said = |change: fn(&mut Settings)| {
            let mut settings = settings();
            change(&mut settings);
            settings.check().unwrap_err().to_string()
        };
        let told = said(|it| it.segment = Bytes::mib(3));
        assert_eq!(told, "a segment of 3 MiB; it must be a multiple of 2 MiB");
        let told = said(|it| it.segment = Bytes::ZERO);
        assert!(told.ends_with("a multiple of 2 MiB"), "{told}");
        let told = said(|it| it.share = Bytes::mib(254));
        assert_eq!(told, "a share of 254 MiB, less than a segment of 256 MiB");
        let told = said(|it| it.segment = Bytes::mib(2));
        assert!(told.contains("4096 segments of 2 MiB; at most 128"), "{told}");
        assert!(told.ends_with("at least 64 MiB"), "{told}");
        let told = said(|it| it.rest_max = Duration::from_secs(14));
        assert_eq!(told, "a longest rest of 14s, less than the least one of 15s");
        let told = said(|it| it.every = Duration::ZERO);
        assert_eq!(told, "a time between requests of 0ns; give from 100ms to 86400s");
        let told = said(|it| it.rest_max = Duration::MAX);
        assert!(told.starts_with("a longest rest of ") && told.ends_with("to 86400s"), "{told}");
        let told = said(|it| it.patience = Duration::ZERO);
        assert_eq!(told, "a patience of 0ns; give from 1ms to 86400s");
        for wrong in ["store", ":50051", "store:0", "store:70000", "store:"] {
            let settings = Settings { master: wrong.to_owned(), ..settings() };
            assert!(settings.check().unwrap_err().to_string().contains(wrong), "{wrong}");
        }
        assert!(said(|it| it.protocol = "t cp".to_owned()).contains("\"t cp\" as protocol"));
    }

    #[test]
    fn a_missing_library_is_told_apart_from_a_missing_package() {
        let said = |text: &str| {
            let (python, text) = ("python3".into(), text.to_owned());
            LendError::NoPackage { python, text }.to_string()
        };
        let library = said("ImportError: libibverbs.so.1: cannot open shared object file");
        assert!(library.contains("libibverbs1") && !library.contains("pip install"), "{library}");
        assert!(said("ModuleNotFoundError: No module named 'mooncake'").contains("pip install"));
        assert!(said("SyntaxError").ends_with("SyntaxError"));
    }
}
