//! [`model`] parses a line into text simply, with vectors, a map and the number parser of std.

use std::collections::BTreeMap;

use glebe_serve::protocol::{self, Command, Flags, Key, Line, Verb};

const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
const LEN_MAX: u64 = i32::MAX as u64 - 2;

fn words(line: &[u8]) -> Vec<Vec<u8>> {
    line.split(|b| *b == b' ').filter(|word| !word.is_empty()).map(<[u8]>::to_vec).collect()
}

fn u(word: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(word).ok().filter(|text| !text.starts_with('+'))?;
    text.parse().ok().filter(|_| text.len() <= 20)
}

fn i(word: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(word).ok().filter(|text| !text.starts_with('+'))?;
    let digits = text.trim_start_matches('-');
    let number = text.parse::<i64>().ok().filter(|n| digits.len() <= 20 && *n > i64::MIN)?;
    // A small negative number as unsigned 32 bits.
    let is_below_zero = (4_292_375_296..4_294_967_296).contains(&number);
    Some(if is_below_zero { number - 4_294_967_296 } else { number })
}

fn show(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

fn wrong(answer: &str, swallow: u64, noreply: bool) -> String {
    format!("wrong {answer} swallow {swallow} noreply {noreply}")
}

pub fn model(line: &[u8]) -> String {
    let words = words(line);
    let Some(verb) = words.first() else { return wrong(BAD_FORMAT, 0, false) };
    let noreply = words.len() > 1 && words.last().is_some_and(|word| word == b"noreply");
    let is_get = matches!(&verb[..], b"get" | b"gets" | b"gat" | b"gats");
    let is_meta = verb.len() == 2 && verb[0] == b'm' && b"gsdane".contains(&verb[1]);
    let meaning = command(&words, noreply);
    match meaning.strip_suffix("noreply false").filter(|text| text.starts_with("wrong ")) {
        Some(text) if noreply && !is_get && !is_meta => format!("{text}noreply true"),
        _ => meaning,
    }
}

fn command(words: &[Vec<u8>], noreply: bool) -> String {
    let verb = &words[0];
    match &verb[..] {
        b"mn" => "mn".into(),
        b"mg" | b"ms" | b"md" | b"ma" | b"me" => meta(words),
        b"get" | b"gets" => keys(&words[1..], verb, None),
        b"gat" | b"gats" if words.len() < 3 => wrong("ERROR", 0, false),
        b"gat" | b"gats" => match i(&words[1]) {
            None => wrong("CLIENT_ERROR invalid exptime argument", 0, false),
            time => keys(&words[2..], verb, time),
        },
        b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" => store(words, noreply),
        b"delete" => {
            let Some(key) = words.get(1) else { return wrong("ERROR", 0, false) };
            if key.len() > 250 {
                return wrong(BAD_FORMAT, 0, false);
            }
            let rest: Vec<&[u8]> = words[2..].iter().map(|word| &word[..]).collect();
            let noreply = noreply && !rest.is_empty();
            match rest[..] {
                [] | [b"0"] | [b"noreply"] | [b"0", b"noreply"] => {
                    format!("delete {} {noreply}", show(key))
                }
                _ => wrong(
                    "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]",
                    0,
                    noreply,
                ),
            }
        }
        b"incr" | b"decr" | b"touch" => {
            let (Some(key), Some(value)) = (words.get(1), words.get(2)) else {
                return wrong("ERROR", 0, false);
            };
            if key.len() > 250 {
                return wrong(BAD_FORMAT, 0, false);
            }
            let key = show(key);
            match (&verb[..], u(value), i(value)) {
                (b"touch", _, Some(time)) => format!("touch {key} {time} {noreply}"),
                (b"touch", _, None) => wrong("CLIENT_ERROR invalid exptime argument", 0, noreply),
                (_, Some(delta), _) => format!("{} {key} {delta} {noreply}", show(verb)),
                _ => wrong("CLIENT_ERROR invalid numeric delta argument", 0, noreply),
            }
        }
        b"flush_all" => match words.get(1).filter(|word| *word != b"noreply") {
            None => format!("flush_all None {noreply}"),
            Some(word) => match i(word) {
                None => wrong("CLIENT_ERROR invalid exptime argument", 0, noreply),
                time => format!("flush_all {time:?} {noreply}"),
            },
        },
        b"verbosity" => match words.get(1) {
            None => wrong("ERROR", 0, false),
            Some(word) if word == b"noreply" || u(word).is_some_and(|n| n < 1 << 32) => {
                format!("verbosity {noreply}")
            }
            Some(_) => wrong(BAD_FORMAT, 0, noreply),
        },
        b"version" | b"quit" | b"shutdown" | b"stats" => show(verb),
        b"debugtime" | b"cache_memlimit" | b"slabs" | b"lru" | b"lru_crawler" | b"watch"
        | b"extstore" | b"misbehave" => format!("other {noreply}"),
        _ if noreply => "lost".into(),
        _ if words.len() > 1 && words[words.len() - 1].starts_with(b"HTTP/") => "lost".into(),
        _ => wrong("ERROR", 0, false),
    }
}

fn keys(keys: &[Vec<u8>], verb: &[u8], time: Option<i64>) -> String {
    if keys.is_empty() {
        return wrong("ERROR", 0, false);
    }
    if keys.iter().any(|key| key.len() > 250) {
        return wrong(BAD_FORMAT, 0, false);
    }
    let keys: Vec<String> = keys.iter().map(|key| show(key)).collect();
    format!("get {:?} cas {} touch {time:?}", keys, verb.ends_with(b"s"))
}

fn store(words: &[Vec<u8>], noreply: bool) -> String {
    let has_len = words.get(4).and_then(|word| u(word)).is_some_and(|len| len <= LEN_MAX);
    if noreply && !has_len {
        return "lost".into();
    }
    if words.len() < 5 {
        return wrong("ERROR", 0, false);
    }
    let Some(len) = u(&words[4]).filter(|len| *len <= LEN_MAX) else {
        return wrong(BAD_FORMAT, 0, false);
    };
    let is_cas = words[0] == b"cas";
    let cas = words.get(5).and_then(|word| u(word)).filter(|_| is_cas);
    let flags = u(&words[2]).filter(|flags| *flags < 1 << 32);
    let (Some(flags), Some(time), false, true) =
        (flags, i(&words[3]), is_cas && cas.is_none(), words[1].len() <= 250)
    else {
        return wrong(BAD_FORMAT, len + 2, false);
    };
    let (verb, key) = (show(&words[0]), show(&words[1]));
    format!("{verb} {key} {flags} {time} {len} {cas:?} {noreply}")
}

fn meta(words: &[Vec<u8>]) -> String {
    let is_set = words[0] == b"ms";
    let flags_at = if is_set { 3 } else { 2 };
    if words.len() < flags_at {
        return wrong(BAD_FORMAT, 0, false);
    }
    let len = if is_set { u(&words[2]).filter(|len| *len <= LEN_MAX) } else { Some(0) };
    let Some(len) = len else { return wrong("CLIENT_ERROR bad data chunk", 0, false) };
    let swallow = if is_set { len + 2 } else { 0 };
    if words[1].len() > 250 {
        return wrong(BAD_FORMAT, swallow, false);
    }
    let mut seen: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
    let mut first_wrong = None;
    for (nth, word) in words[flags_at..].iter().enumerate() {
        if nth >= 22 {
            return wrong("CLIENT_ERROR options flags are too long", swallow, false);
        }
        let (letter, token) = (word[0], &word[1..]);
        if letter >= 127 || seen.contains_key(&letter) {
            return wrong("CLIENT_ERROR duplicate flag", swallow, false);
        }
        seen.insert(letter, token.to_vec());
        let why = match letter {
            b'N' | b'T' | b'R' if i(token).is_none() => {
                "CLIENT_ERROR bad token in command line format"
            }
            b'C' | b'E' if u(token).is_none() => "CLIENT_ERROR bad token in command line format",
            b'D' if u(token).is_none() => "CLIENT_ERROR invalid numeric delta value",
            b'J' if u(token).is_none() => "CLIENT_ERROR invalid numeric initial value",
            b'F' if u(token).is_none_or(|flags| flags >= 1 << 32) => BAD_FORMAT,
            b'O' if token.len() >= 32 => "CLIENT_ERROR opaque token too long",
            letter if b"NTRCEDJFOMbcfhIklLPqstuvx".contains(&letter) => continue,
            _ => return wrong("CLIENT_ERROR invalid flag", swallow, false),
        };
        // The answer reports the last malformed flag.
        first_wrong = Some(why);
    }
    if let Some(why) = first_wrong {
        return wrong(why, swallow, false);
    }
    let signed = |letter| seen.get(&letter).and_then(|token| i(token));
    let number = |letter| seen.get(&letter).and_then(|token| u(token));
    let sent: Vec<String> = words[flags_at..].iter().map(|word| show(word)).collect();
    let verb = show(&words[0]);
    if verb == "me" {
        return format!("me {} {}", show(&words[1]), seen.contains_key(&b'b'));
    }
    format!(
        "{verb} {} {} {len} {sent:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
        show(&words[1]),
        seen.contains_key(&b'b'),
        signed(b'N'),
        signed(b'T'),
        signed(b'R'),
        number(b'C'),
        number(b'E'),
        number(b'D'),
        number(b'J').unwrap_or(0),
        number(b'F').unwrap_or(0),
        seen.get(&b'M').and_then(|token| token.first()).copied().unwrap_or(0),
    )
}

fn meta_of(verb: &str, key: &Key<'_>, len: u64, flags: &Flags<'_>) -> String {
    let sent: Vec<String> = flags.words().map(show).collect();
    format!(
        "{verb} {} {} {len} {sent:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
        show(key.sent),
        key.is_base64,
        flags.vivify,
        flags.ttl,
        flags.recache,
        flags.cas,
        flags.new_cas,
        flags.delta,
        flags.initial,
        flags.client_flags,
        flags.mode.0,
    )
}

/// Parses a line with the crate's parser. Returns the command as the model's text.
pub fn parsed(line: &[u8]) -> String {
    match protocol::parse(line) {
        Command::Get { keys, cas, touch } => {
            let keys: Vec<String> = words(keys).iter().map(|key| show(key)).collect();
            format!("get {keys:?} cas {cas} touch {touch:?}")
        }
        Command::Store { key, verb, flags, exptime, len, noreply } => {
            let (name, cas) = match verb {
                Verb::Cas(cas) => ("cas".into(), Some(cas)),
                _ => (format!("{verb:?}").to_lowercase(), None),
            };
            format!("{name} {} {flags} {exptime} {len} {cas:?} {noreply}", show(key))
        }
        Command::Delete { key, noreply } => format!("delete {} {noreply}", show(key)),
        Command::Arithmetic { key, delta, down, noreply } => {
            let verb = if down { "decr" } else { "incr" };
            format!("{verb} {} {delta} {noreply}", show(key))
        }
        Command::Touch { key, exptime, noreply } => {
            format!("touch {} {exptime} {noreply}", show(key))
        }
        Command::FlushAll { delay, noreply } => format!("flush_all {delay:?} {noreply}"),
        Command::Verbosity { noreply, .. } => format!("verbosity {noreply}"),
        Command::Version => "version".into(),
        Command::Stats(_) => "stats".into(),
        Command::Quit => "quit".into(),
        Command::Shutdown => "shutdown".into(),
        Command::MetaGet(key, flags) => meta_of("mg", &key, 0, &flags),
        Command::MetaSet(key, len, flags) => meta_of("ms", &key, len, &flags),
        Command::MetaDelete(key, flags) => meta_of("md", &key, 0, &flags),
        Command::MetaArithmetic(key, flags) => meta_of("ma", &key, 0, &flags),
        Command::MetaNoop => "mn".into(),
        Command::MetaDebug(key) => format!("me {} {}", show(key.sent), key.is_base64),
        Command::Other { noreply, .. } => format!("other {noreply}"),
        Command::Wrong { answer, swallow, noreply } => wrong(answer, swallow, noreply),
        Command::Lost => "lost".into(),
    }
}

/// Splits `bytes` like a connection does. Compares each line with the model, and checks the line's
/// prefixes.
pub fn check(bytes: &[u8]) {
    let mut rest = bytes;
    loop {
        match protocol::line(rest) {
            Line::Binary(_) => {
                assert_eq!(rest[0], 0x80);
                rest = &rest[protocol::BINARY_HEAD..];
            }
            Line::Keys(all) => {
                assert!(all == rest && rest.len() > protocol::KEYS_PIECE && !rest.contains(&b'\n'));
                break;
            }
            Line::Whole(line, used) => {
                assert_eq!(rest[used - 1], b'\n');
                assert!(!line.contains(&b'\n'));
                assert!(used - line.len() <= 2);
                assert_eq!(parsed(line), model(line), "{}", show(line));
                // A prefix is neither a line nor too long.
                for cut in (0..used.min(300)).chain(used.saturating_sub(3)..used) {
                    let part = &rest[..cut];
                    let is_long = cut > protocol::KEYS_PIECE;
                    let wanted = if is_long { Line::Keys(part) } else { Line::Partial };
                    assert_eq!(protocol::line(part), wanted, "cut at {cut}");
                }
                rest = &rest[used..];
            }
            Line::Partial => {
                let is_binary = rest.first() == Some(&0x80) && rest.len() < protocol::BINARY_HEAD;
                assert!(is_binary || !rest.contains(&b'\n'));
                break;
            }
            Line::TooLong => {
                assert!(rest.len() > protocol::LINE_MAX);
                assert!(!rest[..protocol::LINE_MAX].contains(&b'\n'));
                break;
            }
        }
    }
}
