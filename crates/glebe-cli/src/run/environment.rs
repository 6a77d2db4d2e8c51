//! The environment of the program: LD_PRELOAD, and GLEBE_MALLOC with the allocator's options.
//!
//! ```text
//! LD_PRELOAD    path:path path ...      ours first, then what was there
//! GLEBE_MALLOC  name,name=value,...     what was there, then --option, --signal, --stats
//! ```
//!
//! In GLEBE_MALLOC, a word replaces the words of the same name before it. Values need not be UTF-8.
//! Source: ld.so(8).

use std::env;
use std::error::Error as Failure;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process;

use crate::usage;

pub const PRELOAD: &str = "LD_PRELOAD";
pub const OPTIONS: &str = "GLEBE_MALLOC";

const FORMATS: [&[u8]; 3] = [b"text", b"json", b"openmetrics"];

/// Signals that the allocator accepts, besides RTMIN to RTMIN+29.
const SIGNALS: [&str; 4] = ["HUP", "USR1", "USR2", "WINCH"];
const REAL_TIME: u8 = 30;

const STATS_PATH_MAX: usize = 1000;
/// The allocator's own limit, in bytes.
const OPTIONS_MAX: usize = 4000;

type Parsed<T> = Result<T, Box<dyn Failure>>;

/// Parses the name of a signal, with or without the prefix SIG.
pub fn signal(text: &str) -> Result<String, String> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let is_of_real_time = match name.strip_prefix("RTMIN") {
        Some("") => true,
        Some(more) => more.strip_prefix('+').is_some_and(is_real_time),
        None => false,
    };
    match SIGNALS.contains(&name) || is_of_real_time {
        true => Ok(name.to_owned()),
        false => Err(format!("give {}, or RTMIN to RTMIN+29", SIGNALS.join(", "))),
    }
}

fn is_real_time(number: &str) -> bool {
    number.bytes().all(|byte| byte.is_ascii_digit())
        && number.parse().is_ok_and(|n: u8| n < REAL_TIME)
}

/// Returns the value of LD_PRELOAD: `ours`, then `before`. Returns only `before` if `ours` is first
/// in it.
pub fn preloads(ours: &Path, before: Option<OsString>) -> OsString {
    let before = before.unwrap_or_default();
    let is_separator = |byte: &u8| matches!(byte, b' ' | b':');
    let mut named = before.as_bytes().split(is_separator).filter(|path| !path.is_empty());
    if named.next() == Some(ours.as_os_str().as_bytes()) {
        return before; // a nested `glebe run`
    }
    let mut all = ours.as_os_str().to_owned();
    if !before.is_empty() {
        all.push(":");
        all.push(before);
    }
    all
}

/// Returns the value of GLEBE_MALLOC: the words of `before`, then `words`. A word replaces earlier
/// words of the same name.
///
/// # Errors
/// If the value is too long.
pub fn options(before: &OsStr, words: &[OsString]) -> Parsed<OsString> {
    let given = before.as_bytes().split(|&byte| byte == b',').filter(|word| !word.is_empty());
    let mut all: Vec<&[u8]> = Vec::new();
    for word in given.chain(words.iter().map(|word| word.as_bytes())) {
        all.retain(|other| name(other) != name(word));
        all.push(word);
    }
    let all = all.join(&b',');
    match all.len() {
        ..=OPTIONS_MAX => Ok(OsString::from_vec(all)),
        len => usage(format!("{OPTIONS} would have {len} bytes, at most {OPTIONS_MAX} may be")),
    }
}

fn name(word: &[u8]) -> &[u8] {
    word.split(|&byte| byte == b'=').next().unwrap_or_default()
}

/// Checks the argument of `--option`.
///
/// # Errors
/// If the argument has no name, or has a comma, which ends a word.
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

/// Returns the words for `--stats`, `--stats=FORMAT`, `--stats=FILE` or `--stats=FORMAT:FILE`.
///
/// Adds the word `pid=` with this process's number, unless the file's name has `%p`, so that
/// programs that the program starts print nothing. Makes the path absolute, because the program may
/// change its working directory.
///
/// # Errors
/// If the path is empty, too long or has a comma, or the working directory is unknown.
pub fn stats(place: Option<&OsStr>) -> Parsed<Vec<OsString>> {
    let own = OsString::from(format!("pid={}", process::id()));
    let Some(place) = place else { return Ok(vec!["stats".into(), own]) };
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
    let own = (!file.is_some_and(has_number)).then_some(own);
    Ok(format.into_iter().chain([stats]).chain(own).collect())
}

/// Returns true if the name contains `%p`, the process number.
fn has_number(file: &[u8]) -> bool {
    let mut rest = file.iter();
    while rest.by_ref().any(|&byte| byte == b'%') {
        if rest.next() == Some(&b'p') {
            return true;
        }
    }
    false
}

fn to_file(file: &OsStr) -> Parsed<OsString> {
    let shown = file.to_string_lossy();
    let mut word = b"stats=".to_vec();
    if !file.as_bytes().starts_with(b"/") {
        let here = env::current_dir().map_err(|e| format!("--stats={shown}: getcwd: {e}"))?;
        // Escapes `%` in the working directory, because only the user's `%p` is a pattern.
        for &byte in here.as_os_str().as_bytes() {
            word.extend_from_slice(if byte == b'%' { b"%%" } else { std::slice::from_ref(&byte) });
        }
        word.push(b'/');
    }
    word.extend_from_slice(file.as_bytes());
    let path = &word[b"stats=".len()..];
    let why = match path.len() {
        _ if file.is_empty() => "give text, json, openmetrics, or a file".to_owned(),
        _ if path.contains(&b',') => "its path has a comma, which ends an option".to_owned(),
        ..=STATS_PATH_MAX => return Ok(OsString::from_vec(word)),
        len => format!("its path has {len} bytes, at most {STATS_PATH_MAX} may be"),
    };
    usage(format!("--stats={shown}: {why}"))
}

#[cfg(test)]
mod tests;
