//! Compares the parser with a model, on lines broken in many ways.

mod model;

use glebe_serve::protocol::{self, Line, BINARY_HEAD, LINE_MAX};
use proptest::prelude::*;

fn word() -> impl Strategy<Value = Vec<u8>> {
    let known: &[&str] = &[
        "get",
        "gets",
        "gat",
        "gats",
        "set",
        "add",
        "replace",
        "append",
        "prepend",
        "cas",
        "delete",
        "incr",
        "decr",
        "touch",
        "flush_all",
        "verbosity",
        "version",
        "stats",
        "quit",
        "shutdown",
        "mg",
        "ms",
        "md",
        "ma",
        "mn",
        "me",
        "noreply",
        "0",
        "1",
        "-1",
        "+1",
        "00",
        "007",
        "-0",
        "k",
        "key",
        "v",
        "c",
        "b",
        "q",
        "S",
        "T0",
        "T-1",
        "Tx",
        "N30",
        "R",
        "C18446744073709551615",
        "C18446744073709551616",
        "E1",
        "F4294967296",
        "F1",
        "MA",
        "ME",
        "M",
        "J5",
        "D",
        "D1",
        "Oabc",
        "I",
        "x",
        "Z",
        "2147483645",
        "2147483646",
        "2147483648",
        "-2147483648",
        "-2147483649",
        "4294967295",
        "4294967296",
        "18446744073709551615",
        "18446744073709551616",
        "HTTP/1.1",
        "slabs",
        "lru",
        "debugtime",
        "automove",
    ];
    prop_oneof![
        8 => prop::sample::select(known).prop_map(|word| word.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..12),
        1 => (249_usize..252).prop_map(|len| vec![b'k'; len]),
        1 => (30_usize..35).prop_map(|len| [b"O".as_slice(), &vec![b'o'; len]].concat()),
    ]
}

fn line() -> impl Strategy<Value = Vec<u8>> {
    let ends = prop::sample::select(vec![&b"\r\n"[..], b"\n", b"\r\r\n", b" \r\n"]);
    let blanks = prop::sample::select(vec![&b" "[..], b" ", b" ", b"  "]);
    (prop::collection::vec((word(), blanks), 0..28), ends).prop_map(|(words, end)| {
        let mut line = Vec::new();
        for (nth, (word, blank)) in words.iter().enumerate() {
            if nth > 0 {
                line.extend_from_slice(blank);
            }
            line.extend_from_slice(word);
        }
        line.extend_from_slice(end);
        line
    })
}

proptest! {
    #[test]
    fn lines_mean_what_the_model_says(lines in prop::collection::vec(line(), 1..8)) {
        model::check(&lines.concat());
    }

    #[test]
    fn any_bytes_are_taken_as_the_model_says(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        model::check(&bytes);
    }
}

#[test]
fn edges() {
    let key = |len: usize| "k".repeat(len);
    let cases = [
        "\n".to_owned(),
        "\r\n".into(),
        " \n".into(),
        "get\r\n".into(),
        format!("get {}\r\n", key(250)),
        format!("get a {}\r\n", key(251)),
        format!("set {} 0 0 1\r\n", key(251)),
        "set k 0 0 18446744073709551615\r\n".into(),
        "set k 0 0 18446744073709551616\r\n".into(),
        "set k 0 0 -1\r\n".into(),
        "set k 4294967296 0 1\r\n".into(),
        "set k 0 4294967295 1\r\n".into(),
        "touch k 4294967296\r\n".into(),
        "cas k 0 0 6 \r\n".into(),
        "set k 0 0 1 noreply\r\n".into(),
        "ms k 3 T0 F5 I c b q k O1\r\n".into(),
        "mg k v v\r\n".into(),
        "mg\r\n".into(),
        "delete k 0 noreply\r\n".into(),
        "delete k 10\r\n".into(),
        "GET / HTTP/1.1\r\n".into(),
        "set k 0 0 x noreply\r\n".into(),
        "set k 0 0 1 2 noreply\r\n".into(),
        "cas k 0 0 1 noreply\r\n".into(),
        "set k 0 noreply\r\n".into(),
        "delete noreply\r\n".into(),
        "delete k 1 noreply\r\n".into(),
        "touch k noreply\r\n".into(),
        "incr noreply\r\n".into(),
        "get k noreply\r\n".into(),
        "other k noreply\r\n".into(),
        "slabs automove noreply\r\n".into(),
        "set k 0 4102444800 1\r\n".into(),
        "touch k 4292375295\r\n".into(),
        "touch k 4292375296\r\n".into(),
        "touch k -9223372036854775807\r\n".into(),
        "touch k -9223372036854775808\r\n".into(),
    ];
    for case in cases {
        model::check(case.as_bytes());
    }
    let binary = [b"\x80\x0b\x00\n".as_slice(), &[0; BINARY_HEAD - 4], b"mn\r\n"].concat();
    assert_eq!(protocol::line(&binary[..BINARY_HEAD - 1]), Line::Partial);
    assert!(matches!(protocol::line(&binary), Line::Binary(request) if request.body == 0));
    model::check(&binary);
}

#[test]
fn a_long_line_is_refused_unless_it_asks_for_keys() {
    assert_eq!(protocol::line(&vec![b'x'; LINE_MAX]), Line::Partial);
    assert_eq!(protocol::line(&vec![b'x'; LINE_MAX + 1]), Line::TooLong);
    let keys = b"  gets ".iter().copied().chain(b"key ".repeat(5000)).collect::<Vec<u8>>();
    assert_eq!(protocol::line(&keys), Line::Keys(&keys));
    assert_eq!(protocol::line(&vec![b' '; LINE_MAX + 1]), Line::TooLong);
    let many = b"get ".iter().copied().chain(b"key ".repeat(1 << 18)).collect::<Vec<u8>>();
    assert_eq!(protocol::line(&many[..LINE_MAX]), Line::Partial);
    assert_eq!(protocol::line(&many), Line::Keys(&many));
    let whole = [&many[..], b"\r\n"].concat();
    assert_eq!(protocol::line(&whole), Line::Whole(&many, whole.len()));
}
