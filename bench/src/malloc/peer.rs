//! [`Peer`]: an allocator to preload, with its settings. [`Peers::find`] returns the peers of this
//! machine.
//!
//! A library counts as present only if a test program maps it, because the loader ignores a missing
//! library. Source: ld.so(8), jemalloc(3).

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::report::{Report, GLEBE};

pub(crate) const GLIBC: &str = "glibc";
pub(crate) const MIMALLOC: &str = "mimalloc";
/// glebe with `huge=off`, as on a machine without huge pages.
pub(crate) const BASE_PAGES: &str = "glebe, base pages";
/// jemalloc with settings that give every freed page back at once.
pub(crate) const EAGER: &str = "jemalloc eager";
pub(crate) const NEVER: &str = "jemalloc never";

/// Environment variables that would change an allocator without notice.
const CLEARED: [&str; 5] =
    ["LD_PRELOAD", "MALLOC_CONF", "GLEBE_MALLOC", "GLIBC_TUNABLES", "MALLOC_ARENA_MAX"];

const LIBRARY: &str = "libglebe_malloc.so";
const JEMALLOC: &[&str] = &["libjemalloc.so.2"];
const TCMALLOC: &[&str] = &["libtcmalloc_minimal.so.4", "libtcmalloc.so.4"];
/// `lg_extent_max_active_fit` lets short blocks reuse long free runs instead of new memory.
const NEVER_CONF: &str = "dirty_decay_ms:-1,muzzy_decay_ms:-1,lg_extent_max_active_fit:20";

/// The call that makes an allocator give back all that it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) enum Trim {
    Libc,
    Jemalloc,
    Mimalloc,
    Tcmalloc,
}

#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) who: &'static str,
    /// Value of LD_PRELOAD; `None` for the C library's allocator.
    library: Option<String>,
    conf: Option<(&'static str, &'static str)>,
    pub(super) trim: Trim,
}

impl Peer {
    /// Makes `command` use this allocator and its settings, and no inherited settings.
    pub(crate) fn set(&self, command: &mut Command) {
        CLEARED.iter().for_each(|name| _ = command.env_remove(name));
        if let Some(library) = &self.library {
            command.env("LD_PRELOAD", library);
        }
        if let Some((name, value)) = self.conf {
            command.env(name, value);
        }
    }

    pub(super) fn is_glebe(&self) -> bool {
        [GLEBE, BASE_PAGES].contains(&self.who)
    }

    /// Fails if a test program does not map the library.
    fn load(&self) -> Result<(), String> {
        let Some(library) = &self.library else { return Ok(()) };
        let mut command = Command::new("cat");
        self.set(command.arg("/proc/self/maps"));
        let output = command.output().map_err(|e| format!("cat: {e}"))?;
        let name = Path::new(library).file_name().unwrap_or_default().to_string_lossy();
        // Looks for a part of a name, because the file may have a longer one:
        // libtcmalloc.so.4.5.10.
        match String::from_utf8_lossy(&output.stdout).contains(&*name) {
            true => Ok(()),
            false => {
                let said = String::from_utf8_lossy(&output.stderr);
                Err(said.lines().next().unwrap_or("not loaded").to_owned())
            }
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Peers {
    pub(crate) here: Vec<Peer>,
    absent: Vec<(&'static str, String)>,
}

impl Peers {
    /// Tries each allocator. glebe's library is `lib`, or the library beside this program.
    pub(crate) fn find(lib: Option<&Path>) -> Self {
        let mut peers = Self::default();
        let ours = lib.map(Path::to_owned).or_else(beside);
        let ours = ours.as_deref().map_or(LIBRARY, |path| path.to_str().unwrap_or(LIBRARY));
        let how = "cargo build -p glebe-preload, or --lib PATH";
        peers.add(GLEBE, &[ours], None, Trim::Libc, how);
        peers.add(BASE_PAGES, &[ours], Some(("GLEBE_MALLOC", "huge=off")), Trim::Libc, how);
        peers.here.push(Peer { who: GLIBC, library: None, conf: None, trim: Trim::Libc });
        let of_mimalloc = option_env!("GLEBE_BENCH_MIMALLOC").ok_or(());
        match of_mimalloc {
            Ok(path) => {
                peers.add(MIMALLOC, &[path], None, Trim::Mimalloc, "it was built with this")
            }
            Err(()) => peers.absent.push((MIMALLOC, no_mimalloc())),
        }
        let jemalloc = [
            ("jemalloc", None),
            (EAGER, Some("dirty_decay_ms:0,muzzy_decay_ms:0")),
            (NEVER, Some(NEVER_CONF)),
        ];
        for (who, conf) in jemalloc {
            let conf = conf.map(|conf| ("MALLOC_CONF", conf));
            peers.add(who, JEMALLOC, conf, Trim::Jemalloc, "apt-get install libjemalloc2");
        }
        let how = "apt-get install libtcmalloc-minimal4";
        peers.add("tcmalloc", TCMALLOC, None, Trim::Tcmalloc, how);
        peers
    }

    fn add(
        &mut self,
        who: &'static str,
        libraries: &[&str],
        conf: Option<(&'static str, &'static str)>,
        trim: Trim,
        how: &str,
    ) {
        let mut why = String::new();
        for library in libraries {
            let peer = Peer { who, library: Some((*library).to_owned()), conf, trim };
            match peer.load() {
                Ok(()) => return self.here.push(peer),
                Err(said) => why = said,
            }
        }
        self.absent.push((who, format!("not on this machine: {how} ({why})")));
    }

    pub(crate) fn get(&self, who: &str) -> Option<&Peer> {
        self.here.iter().find(|peer| peer.who == who)
    }

    pub(crate) fn name_absent(&self, case: &str, unit: &'static str, report: &mut Report) {
        self.absent.iter().for_each(|(who, why)| report.remark(case, who, unit, why));
    }

    /// Returns glebe's median divided by the highest median of a peer, for a unit where more is
    /// better.
    pub(super) fn versus_best(&self, case: &str, unit: &str, report: &Report) -> f64 {
        let others = self.here.iter().filter(|peer| !peer.is_glebe());
        let medians = others.map(|peer| crate::turns::median(report.of(case, peer.who, unit)));
        let best = medians.filter(|median| median.is_finite()).fold(f64::NAN, f64::max);
        crate::turns::median(report.of(case, GLEBE, unit)) / best
    }
}

/// Returns the newer of glebe's libraries beside this program and in cargo's `deps`, which tests
/// use.
fn beside() -> Option<PathBuf> {
    let program = env::current_exe().ok()?;
    let dir = program.parent()?;
    let dirs = [dir.to_owned(), dir.join("deps")].map(|dir| dir.join(LIBRARY));
    let built = |path: &PathBuf| path.metadata().and_then(|about| about.modified()).ok();
    dirs.into_iter().filter(|path| path.exists()).max_by_key(built)
}

fn no_mimalloc() -> String {
    let why = option_env!("GLEBE_BENCH_NO_MIMALLOC").unwrap_or("unknown");
    format!("its source was not built: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_loaded_is_no_peer() {
        let mut peers = Peers::default();
        peers.add("nobody", &["libnobody-has-this.so"], None, Trim::Libc, "write it");
        assert!(peers.here.is_empty());
        let (who, why) = &peers.absent[0];
        assert!(*who == "nobody" && why.contains("write it"), "{why}");
        assert!(why.contains("libnobody-has-this.so"), "{why}");
    }

    #[test]
    fn mimalloc_was_built_and_loads_and_the_settings_of_others_are_not_passed_on() {
        let peers = Peers::find(None);
        assert!(peers.get(GLIBC).is_some());
        let mimalloc = peers.get(MIMALLOC).expect("it is built with this program");
        let mut command = Command::new("sh");
        command.args(["-c", "echo $MALLOC_CONF; grep -c libmimalloc.so /proc/self/maps"]);
        mimalloc.set(command.env("MALLOC_CONF", "dirty_decay_ms:0"));
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (conf, maps) = text.split_once('\n').unwrap();
        assert!(conf.is_empty() && maps.trim().parse::<u32>().unwrap() > 0, "{text}");
    }
}
