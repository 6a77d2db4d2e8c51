//! Tests each word, and complaints about wrong words.

use super::*;

fn parsed(text: &str) -> (Options, Vec<String>) {
    let mut complaints = Vec::new();
    let options = parse(text.as_bytes(), |Complaint { word, instead }| {
        complaints.push(format!("{} {instead}", Shown(word)));
    });
    (options, complaints)
}

fn good(text: &str) -> Options {
    let (options, complaints) = parsed(text);
    assert!(complaints.is_empty(), "{text}: {complaints:?}");
    options
}

#[test]
fn without_words_all_is_as_it_is() {
    for text in ["", ",", " , ,,"] {
        let options = good(text);
        assert_eq!(options.heap, Settings::default());
        assert!(!options.report.at_exit && options.report.signal.is_none());
    }
}

#[test]
fn each_word_does_its_own() {
    assert!(!good("thread=off").heap.thread && good("thread=off,thread=on").heap.thread);
    assert!(!good("huge=off").heap.huge && !good("pages=off").heap.pages);
    assert_eq!(good("age=60000").heap.age, Duration::from_secs(60));
    assert_eq!(good("margin=64k").heap.margin, Some(Bytes::new(64 << 10)));
    assert_eq!(good("margin=12M").heap.margin, Some(Bytes::mib(12)));
    assert_eq!(good("margin=65536").heap.margin, Some(Bytes::new(64 << 10)));
    assert_eq!(good("margin=64G").heap.margin, Some(Bytes::mib(64 << 10)));
    assert_eq!(good("addresses=64M").heap.addresses, Some(Bytes::mib(64)));
    assert_eq!(good("addresses=2048G").heap.addresses, Some(Bytes::mib(2 << 20)));
    let report = good(" stats=/tmp/a %p , format=json , signal=SIGUSR2").report;
    assert_eq!(report.path.unwrap().as_bytes(), b"/tmp/a %p");
    assert_eq!((report.format, report.signal), (Format::Json, Some(12)));
    assert!(report.at_exit && good("stats=x,stats").report.path.is_none());
    assert_eq!(good("signal=USR1").report.signal, Some(10));
    assert_eq!((good("pid=7").report.pid, good("stats").report.pid), (Some(7), None));
    assert_eq!(good("format=openmetrics").report.format, Format::OpenMetrics);
    let [first, last] = ["RTMIN", "RTMIN+29"].map(|name| good(&format!("signal={name}")));
    assert_eq!(last.report.signal.unwrap() - first.report.signal.unwrap(), 29);
}

#[test]
fn what_is_not_understood_is_named_and_ignored() {
    let long = format!("stats={}", "x".repeat(PATH_MAX + 1));
    for (text, word, instead) in [
        ("stat", "stat", "is not known; known are stats, stats=PATH, "),
        ("huge=off,Thread=off", "Thread=off", "is not known"),
        ("thread", "thread", "is not known"),
        ("signal", "signal", "is not known"),
        ("\u{7}\u{e9}", "???", "is not known"),
        ("stats=", "stats=", "needs a PATH"),
        (&long, &format!("stats={}...", "x".repeat(54)), "needs a PATH"),
        ("thread=no", "thread=no", "needs on or off"),
        ("pages=", "pages=", "needs on or off"),
        ("format=xml", "format=xml", "needs one of text, json and openmetrics"),
        ("pid=", "pid=", "needs a number"),
        ("pid=-1", "pid=-1", "needs a number"),
        ("age=0", "age=0", "needs MS from 1 to 60000"),
        ("age=60001", "age=60001", "needs MS"),
        ("age=-5", "age=-5", "needs MS"),
        ("age=+5", "age=+5", "needs MS"),
        ("age=", "age=", "needs MS"),
        ("age=99999999999999999999", "age=99999999999999999999", "needs MS"),
        ("margin=1", "margin=1", "needs a SIZE from 64K to 64G"),
        ("margin=65G", "margin=65G", "needs a SIZE"),
        ("margin=18446744073709551615G", "margin=18446744073709551615G", "needs a SIZE"),
        ("margin=M", "margin=M", "needs a SIZE"),
        ("margin=1T", "margin=1T", "needs a SIZE"),
        ("addresses=63M", "addresses=63M", "needs a SIZE from 64M to 2048G"),
        ("addresses=2049G", "addresses=2049G", "needs a SIZE"),
        ("pid=x", "pid=x", "needs a number"),
        ("signal=KILL", "signal=KILL", "needs one of HUP, USR1"),
        ("signal=12", "signal=12", "needs one of"),
        ("signal=RTMIN+30", "signal=RTMIN+30", "needs one of"),
        ("signal=RTMIN+", "signal=RTMIN+", "needs one of"),
    ] {
        let (options, complaints) = parsed(&format!("{text},age=77"));
        assert_eq!(complaints.len(), 1, "{text}: {complaints:?}");
        let expected = format!("{word} {instead}");
        assert!(complaints[0].starts_with(&expected), "{text}: {complaints:?}");
        // Other words still count.
        assert_eq!(options.heap.age, Duration::from_millis(77), "{text}");
        let heap = Settings { huge: !text.starts_with("huge=off"), ..Settings::default() };
        assert_eq!(Settings { age: heap.age, ..options.heap }, heap, "{text}");
        assert!(!options.report.at_exit && options.report.signal.is_none(), "{text}");
    }
}
