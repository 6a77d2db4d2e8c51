//! [`Flags`] parses the flags of a meta command. A flag is a word of a letter and a token.
//!
//! Answers repeat flags in the order sent, so [`Flags`] keeps the words, too.

use super::tokens::{time, unsigned, unsigned_32, Tokens};
use super::{Command, Key, BAD_CHUNK, BAD_FORMAT, KEY_MAX};

const WORDS_MAX: usize = 22;
/// Maximum bytes of flag `O` with its letter.
const OPAQUE_MAX: usize = 32;
const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";
const VALUE_MAX: u64 = i32::MAX as u64 - 2;

/// First byte of the token of flag `M`, which says how `ms` stores or `ma` counts; 0 if there is
/// none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mode(pub u8);

/// The flags of a meta command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags<'a> {
    words: &'a [u8],
    seen: u128,
    /// `N`: creates a missing item with this time to live.
    pub vivify: Option<i64>,
    /// `T`: new time to live.
    pub ttl: Option<i64>,
    /// `R`: an item with less time to live must be renewed.
    pub recache: Option<i64>,
    /// `F`: client flags.
    pub client_flags: u32,
    /// `C`: CAS number that the item must have.
    pub cas: Option<u64>,
    /// `E`: new CAS number.
    pub new_cas: Option<u64>,
    /// `M`: mode.
    pub mode: Mode,
    /// `J`: initial value of a counter.
    pub initial: u64,
    /// `D`: amount to add or subtract.
    pub delta: Option<u64>,
}

impl<'a> Flags<'a> {
    /// Returns true if the flag was sent.
    #[must_use]
    pub fn has(&self, letter: u8) -> bool {
        self.seen >> letter & 1 != 0
    }

    /// Iterates over the flags as sent.
    pub fn words(&self) -> impl Iterator<Item = &'a [u8]> {
        Tokens::new(self.words)
    }

    fn parse(tokens: Tokens<'a>) -> Result<Self, &'static str> {
        let mut flags = Self { words: tokens.rest(), ..Self::default() };
        let mut wrong = None;
        for (nth, word) in tokens.enumerate() {
            if nth >= WORDS_MAX {
                return Err("CLIENT_ERROR options flags are too long");
            }
            let (letter, token) = (word[0], &word[1..]);
            if letter >= 127 || flags.has(letter) {
                return Err("CLIENT_ERROR duplicate flag");
            }
            flags.seen |= 1 << letter;
            wrong = flags.take(letter, token)?.or(wrong);
        }
        wrong.map_or(Ok(flags), Err)
    }

    /// Parses a flag's token. Returns the answer for a malformed token, or `None`. Fails for an
    /// unknown flag.
    fn take(&mut self, letter: u8, token: &[u8]) -> Result<Option<&'static str>, &'static str> {
        let time = time(token);
        let number = unsigned(token);
        let (had, why) = match letter {
            b'N' => (set(&mut self.vivify, time), BAD_TOKEN),
            b'T' => (set(&mut self.ttl, time), BAD_TOKEN),
            b'R' => (set(&mut self.recache, time), BAD_TOKEN),
            b'C' => (set(&mut self.cas, number), BAD_TOKEN),
            b'E' => (set(&mut self.new_cas, number), BAD_TOKEN),
            b'D' => (set(&mut self.delta, number), "CLIENT_ERROR invalid numeric delta value"),
            b'J' => {
                self.initial = number.unwrap_or(0);
                (number.is_some(), "CLIENT_ERROR invalid numeric initial value")
            }
            b'F' => {
                let flags = unsigned_32(token);
                self.client_flags = flags.unwrap_or(0);
                (flags.is_some(), BAD_FORMAT)
            }
            b'M' => {
                self.mode = Mode(token.first().copied().unwrap_or(0));
                (true, "")
            }
            b'O' => (token.len() < OPAQUE_MAX, "CLIENT_ERROR opaque token too long"),
            b'b' | b'c' | b'f' | b'h' | b'I' | b'k' | b'l' | b'L' | b'P' | b'q' | b's' | b't'
            | b'u' | b'v' | b'x' => (true, ""),
            _ => return Err("CLIENT_ERROR invalid flag"),
        };
        Ok((!had).then_some(why))
    }
}

fn set<T>(field: &mut Option<T>, value: Option<T>) -> bool {
    *field = value;
    field.is_some()
}

pub(super) fn parse<'a>(verb: &[u8], mut tokens: Tokens<'a>) -> Command<'a> {
    if verb == b"mn" {
        return Command::MetaNoop;
    }
    let Some(sent) = tokens.next() else { return Command::wrong(BAD_FORMAT) };
    let mut swallow = 0;
    let mut len = 0;
    if verb == b"ms" {
        let Some(given) = tokens.next() else { return Command::wrong(BAD_FORMAT) };
        match unsigned(given).filter(|len| *len <= VALUE_MAX) {
            Some(given) => (len, swallow) = (given, given + 2),
            None => return Command::wrong(BAD_CHUNK),
        }
    }
    if sent.len() > KEY_MAX {
        return Command::Wrong { answer: BAD_FORMAT, swallow, noreply: false };
    }
    let flags = match Flags::parse(tokens) {
        Ok(flags) => flags,
        Err(answer) => return Command::Wrong { answer, swallow, noreply: false },
    };
    let key = Key { sent, is_base64: flags.has(b'b') };
    match verb {
        b"mg" => Command::MetaGet(key, flags),
        b"ms" => Command::MetaSet(key, len, flags),
        b"md" => Command::MetaDelete(key, flags),
        b"ma" => Command::MetaArithmetic(key, flags),
        _ => Command::MetaDebug(key),
    }
}
