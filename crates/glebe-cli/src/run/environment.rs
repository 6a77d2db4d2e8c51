//! What the program finds in its environment: LD_PRELOAD, and GLEBE_MALLOC with the allocator's
//! options.
//!
//! ```text
//! LD_PRELOAD    path:path path ...      ours first, then what was there
//! GLEBE_MALLOC  name,name=value,...     what was there, then --option, --signal, --stats
//! ```
//!
//! A name counts once: a later word replaces an earlier one of the same name. Values are bytes.
//! Source: ld.so(8).

use std::env;
use std::error::Error as Failure;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{self, Path};

use crate::usage;

/// What the loader reads.
pub const PRELOAD: &str = "LD_PRELOAD";
/// What the allocator reads.
pub const OPTIONS: &str = "GLEBE_MALLOC";

/// Forms that statistics are printed in.
const FORMATS: [&[u8]; 3] = [b"text", b"json", b"openmetrics"];

/// Signals whose handler an allocator may take over: no fault, and none that ends every program.
const SIGNALS: [&str; 10] =
    ["ALRM", "HUP", "IO", "PROF", "PWR", "QUIT", "URG", "USR1", "USR2", "WINCH"];

type Parsed<T> = Result<T, Box<dyn Failure>>;

/// Parses the name of a signal, with or without SIG before it.
pub fn signal(text: &str) -> Result<String, String> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    match SIGNALS.contains(&name) {
        true => Ok(name.to_owned()),
        false => Err(format!("is none of {}", SIGNALS.join(", "))),
    }
}

/// The value of LD_PRELOAD: `ours`, then what was there before.
pub fn preloads(ours: &Path, before: Option<OsString>) -> OsString {
    let before = before.unwrap_or_default();
    let is_separator = |byte: &u8| matches!(byte, b' ' | b':');
    let mut named = before.as_bytes().split(is_separator).filter(|path| !path.is_empty());
    if named.next() == Some(ours.as_os_str().as_bytes()) {
        return before; // A program of `glebe run` that uses it again.
    }
    let mut all = ours.as_os_str().to_owned();
    if !before.is_empty() {
        all.push(":");
        all.push(before);
    }
    all
}

/// The value of GLEBE_MALLOC: the words of `before`, then `words`, a name once.
pub fn options(before: &OsStr, words: &[OsString]) -> OsString {
    let given = before.as_bytes().split(|&byte| byte == b',').filter(|word| !word.is_empty());
    let mut all: Vec<&[u8]> = Vec::new();
    for word in given.chain(words.iter().map(|word| word.as_bytes())) {
        all.retain(|other| name(other) != name(word));
        all.push(word);
    }
    OsString::from_vec(all.join(&b','))
}

fn name(word: &[u8]) -> &[u8] {
    word.split(|&byte| byte == b'=').next().unwrap_or_default()
}

/// Checks what `--option` was given: one word that has a name.
///
/// # Errors
/// It has no name, or a comma, which ends a word.
pub fn word(text: &OsStr) -> Parsed<OsString> {
    let is_one = !name(text.as_bytes()).is_empty() && !text.as_bytes().contains(&b',');
    match is_one {
        true => Ok(text.to_owned()),
        false => usage(format!(
            "--option {}: give one NAME or NAME=VALUE without a comma; repeat --option for more",
            text.to_string_lossy()
        )),
    }
}

/// The words for `--stats`, `--stats=FORMAT`, `--stats=FILE` or `--stats=FORMAT:FILE`.
///
/// The file is named from the root, for the program may change its working directory.
///
/// # Errors
/// The file cannot be named in GLEBE_MALLOC, or the working directory is gone.
pub fn stats(place: Option<&OsStr>) -> Parsed<Vec<OsString>> {
    let Some(place) = place else { return Ok(vec!["stats".into()]) };
    let bytes = place.as_bytes();
    let colon = bytes.iter().position(|&byte| byte == b':').unwrap_or(bytes.len());
    let (format, file) = match FORMATS.contains(&&bytes[..colon]) {
        true => (Some(&bytes[..colon]), bytes.get(colon + 1..)),
        false => (None, Some(bytes)),
    };
    let format = format.map(|format| OsString::from_vec([b"format=", format].concat()));
    let stats = match file {
        None => "stats".into(),
        Some(file) => to_file(OsStr::from_bytes(file))?,
    };
    Ok(format.into_iter().chain([stats]).collect())
}

fn to_file(file: &OsStr) -> Parsed<OsString> {
    let shown = file.to_string_lossy();
    if file.is_empty() || file.as_bytes().contains(&b',') {
        return usage(format!(
            "--stats={shown}: give text, json, openmetrics, or a file whose name has no comma"
        ));
    }
    // An empty path cannot come here; what is left is that there is no working directory.
    let file = path::absolute(file).map_err(|e| format!("--stats={shown}: getcwd: {e}"))?;
    if file.as_os_str().as_bytes().contains(&b',') {
        let folder = env::current_dir().unwrap_or_default();
        return usage(format!("--stats={shown}: the folder {} has a comma", folder.display()));
    }
    let mut word = OsString::from("stats=");
    word.push(file);
    Ok(word)
}

#[cfg(test)]
mod tests;
