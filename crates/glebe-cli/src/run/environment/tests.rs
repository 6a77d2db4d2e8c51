//! Tests of the values of LD_PRELOAD and GLEBE_MALLOC.

use super::*;

fn composed(before: &str, words: &[&str]) -> String {
    let words: Vec<OsString> = words.iter().map(OsString::from).collect();
    options(OsStr::new(before), &words).unwrap().into_string().unwrap()
}

fn words_of(place: &str) -> Vec<OsString> {
    stats(Some(OsStr::new(place))).unwrap()
}

#[test]
fn ours_is_preloaded_first_and_what_was_there_is_kept() {
    let all = |before: Option<&str>| preloads(Path::new("/lib/g.so"), before.map(OsString::from));
    assert_eq!(all(None), "/lib/g.so");
    assert_eq!(all(Some("")), "/lib/g.so");
    assert_eq!(all(Some("/a.so b.so:/c.so")), "/lib/g.so:/a.so b.so:/c.so");
    // A nested run adds the library again only if another library is first.
    for twice in ["/lib/g.so", "/lib/g.so:/a.so", ":/lib/g.so /a.so"] {
        assert_eq!(all(Some(twice)), twice);
    }
    assert_eq!(all(Some("/a.so:/lib/g.so")), "/lib/g.so:/a.so:/lib/g.so");
    assert_eq!(all(Some("/lib/g.so.2")), "/lib/g.so:/lib/g.so.2");
}

#[test]
fn a_later_word_replaces_an_earlier_one_of_its_name() {
    assert_eq!(composed("", &[]), "");
    assert_eq!(composed("thread=off,stats=/x", &[]), "thread=off,stats=/x");
    assert_eq!(composed("thread=off,stats=/x", &["age=5", "stats"]), "thread=off,age=5,stats");
    assert_eq!(composed(",,age=1,,age=2,", &["age=3", "age=4"]), "age=4");
    assert_eq!(composed("ages=1", &["age=3"]), "ages=1,age=3");
}

#[test]
fn bytes_that_are_no_text_are_kept() {
    let raw = OsStr::from_bytes(b"stats=/\xff,age=1");
    assert_eq!(options(raw, &["age=2".into()]).unwrap().as_bytes(), b"stats=/\xff,age=2");
    assert_eq!(preloads(Path::new(OsStr::from_bytes(b"/\xfe")), None).as_bytes(), b"/\xfe");
}

#[test]
fn statistics_have_a_form_a_file_or_both() {
    let own = &*format!("pid={}", std::process::id());
    assert_eq!(stats(None).unwrap(), ["stats", own]);
    assert_eq!(words_of("json"), ["format=json", "stats", own]);
    assert_eq!(words_of("/a/%p"), ["stats=/a/%p"]);
    assert_eq!(words_of("/%%p/%%%p"), ["stats=/%%p/%%%p"]);
    assert_eq!(words_of("/a/%%p"), ["stats=/a/%%p", own]);
    assert_eq!(words_of("openmetrics:/a:b"), ["format=openmetrics", "stats=/a:b", own]);
    assert_eq!(words_of("/a:b"), ["stats=/a:b", own]);
    let here = env::current_dir().unwrap();
    let file = |name: &str| format!("stats={}/{name}", here.display());
    assert_eq!(words_of("out"), [&*file("out"), own]);
    // `./` distinguishes the file from the format.
    assert_eq!(words_of("./text"), [&*file("./text"), own]);
    for wrong in ["", "json:", "a,b", "json:/a,b"] {
        assert!(stats(Some(OsStr::new(wrong))).is_err(), "{wrong}");
    }
}

#[test]
fn what_is_longer_than_the_allocator_reads_is_an_error() {
    let path = |len: usize| "/".repeat(len);
    assert!(stats(Some(OsStr::new(&path(STATS_PATH_MAX)))).is_ok());
    let error = stats(Some(OsStr::new(&path(STATS_PATH_MAX + 1)))).unwrap_err().to_string();
    assert!(error.ends_with("1001 bytes, at most 1000 may be"), "{error}");
    let before = "a".repeat(OPTIONS_MAX - 2);
    assert_eq!(composed(&before, &["b"]).len(), OPTIONS_MAX);
    let error = options(OsStr::new(&before), &["bb".into()]).unwrap_err().to_string();
    assert!(error.contains("4001 bytes, at most 4000"), "{error}");
}

#[test]
fn an_option_is_one_word_with_a_name() {
    assert_eq!(word(OsStr::new("thread=off")).unwrap(), "thread=off");
    for wrong in ["", "=off", "a,b"] {
        assert!(word(OsStr::new(wrong)).is_err(), "{wrong}");
    }
}

#[test]
fn signals_have_names() {
    for name in ["USR2", "usr2", "SIGUSR2", "sigusr2"] {
        assert_eq!(signal(name).as_deref(), Ok("USR2"));
    }
    assert_eq!(signal("SigRtMin+29").as_deref(), Ok("RTMIN+29"));
    assert_eq!(signal("RTMIN").as_deref(), Ok("RTMIN"));
    for wrong in ["", "12", "KILL", "SIG", "USR3", "RTMIN+", "RTMIN+30", "RTMIN1", "RTMIN++1"] {
        assert!(signal(wrong).is_err(), "{wrong}");
    }
}
