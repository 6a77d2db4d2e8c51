//! On directories made for each test, by both read paths.
//!
//! # Safety
//! One call changes the identity that the calling thread opens files with; the thread ends with
//! the test.
#![allow(unsafe_code)]

use super::*;
use crate::scratch::Scratch;
use std::fs;
use std::os::unix::fs::{symlink, PermissionsExt};

const BOTH: [ReadPath; 2] = [ReadPath::Direct, ReadPath::Decompress];
const NO_CAP: Bytes = Bytes::gib(1);

fn page() -> usize {
    page_size().bytes().get() as usize
}

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i / 7 * 31) as u8 ^ seed ^ (i >> 8) as u8).collect()
}

fn open(dir: &Scratch, mode: ReadPath) -> Corpus {
    Corpus::open(Some(dir.path()), mode, NO_CAP).unwrap()
}

fn names(corpus: &Corpus) -> Vec<String> {
    let name =
        |file: &CorpusFile| file.path().strip_prefix(corpus.dir()).unwrap().display().to_string();
    corpus.files().iter().map(name).collect()
}

#[test]
fn pages_are_the_files_bytes_and_zeros_after() {
    let dir = Scratch::new("corpus");
    let contents = bytes(2 * page() + 100, 1);
    fs::write(dir.path().join("file"), &contents).unwrap();
    for mode in BOTH {
        let corpus = open(&dir, mode);
        println!("{corpus}");
        assert_eq!(corpus.pages(), Pages::new(3));
        // Aligned and not.
        let mut buffer = vec![0; 3 * page()];
        let skip = buffer.as_ptr().align_offset(page());
        for skip in [skip, skip + 1] {
            for index in 0..3 {
                let buffer = &mut buffer[skip..][..page()];
                buffer.fill(0xee);
                let len = corpus.read_page(0, index, buffer).unwrap();
                let expected = &contents[index as usize * page()..];
                let expected = &expected[..expected.len().min(page())];
                assert_eq!((&buffer[..len], len), (expected, expected.len()));
                assert!(buffer[len..].iter().all(|&b| b == 0));
                assert_eq!(corpus.check_page(0, index, buffer).unwrap(), Check::Same);
                buffer[0] ^= 1;
                assert_eq!(corpus.check_page(0, index, buffer).unwrap(), Check::Wrong);
            }
        }
        let meta = fs::metadata(dir.path().join("file")).unwrap();
        let key = PageKey { device: meta.dev(), inode: meta.ino(), index: 2 };
        assert_eq!((corpus.key(0, 2), corpus.key(0, 3), corpus.key(1, 0)), (Some(key), None, None));
    }
}

#[test]
fn a_page_never_read_is_checked_against_the_file() {
    let dir = Scratch::new("corpus");
    let contents = bytes(page(), 2);
    fs::write(dir.path().join("file"), &contents).unwrap();
    for mode in BOTH {
        let corpus = open(&dir, mode);
        assert_eq!(corpus.check_page(0, 0, &bytes(page(), 3)).unwrap(), Check::Wrong);
        assert_eq!(corpus.check_page(0, 0, &contents).unwrap(), Check::Same);
    }
}

#[test]
fn what_is_not_there_is_an_error() {
    let dir = Scratch::new("corpus");
    let empty = Corpus::open(Some(dir.path()), ReadPath::Auto, NO_CAP);
    assert!(matches!(empty, Err(CorpusError::Empty { .. })), "{empty:?}");
    let missing = Corpus::open(Some(&dir.path().join("no")), ReadPath::Auto, NO_CAP);
    assert!(matches!(missing, Err(CorpusError::Os(_))), "{missing:?}");
    fs::write(dir.path().join("empty"), "").unwrap();
    assert!(Corpus::open(Some(dir.path()), ReadPath::Auto, NO_CAP).is_err());
    fs::write(dir.path().join("file"), "x").unwrap();
    assert!(Corpus::open(Some(dir.path()), ReadPath::Auto, Bytes::ZERO).is_err());

    for mode in BOTH {
        let corpus = open(&dir, mode);
        let mut buffer = vec![0; page()];
        for (file, index) in [(0, 1), (1, 0), (usize::MAX, u64::MAX)] {
            let error = corpus.read_page(file, index, &mut buffer).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
        assert!(corpus.read_page(0, 0, &mut buffer[1..]).is_err());
        assert!(corpus.check_page(0, 0, &[]).is_err());
    }
}

#[test]
fn a_hole_reads_as_zeros() {
    let dir = Scratch::new("corpus");
    let file = File::create(dir.path().join("sparse")).unwrap();
    file.set_len(1 << 42).unwrap();
    for mode in BOTH {
        let corpus = Corpus::open(Some(dir.path()), mode, Bytes::mib(1)).unwrap();
        assert_eq!(corpus.pages(), Bytes::mib(1).pages_down(page_size()));
        let mut buffer = vec![1; page()];
        assert_eq!(corpus.read_page(0, 3, &mut buffer).unwrap(), page());
        assert!(buffer.iter().all(|&b| b == 0));
    }
}

#[test]
fn a_file_that_shrinks_or_changes_is_excluded() {
    let dir = Scratch::new("corpus");
    let path = dir.path().join("file");
    for (what, change) in [("shrunk", 0), ("cut in a page", 1), ("overwritten", 2), ("removed", 3)]
    {
        let contents = bytes(4 * page(), 4);
        fs::write(&path, &contents).unwrap();
        let corpus = open(&dir, ReadPath::Direct);
        if !corpus.files()[0].is_direct() {
            println!("skipped: no O_DIRECT below {}", dir.path().display());
            return;
        }
        let mut buffer = vec![0; page()];
        // Without a hash from before, only the length tells that a file was cut.
        corpus.read_page(0, if change < 2 { 0 } else { 3 }, &mut buffer).unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        match change {
            0 => file.set_len(page() as u64).unwrap(),
            1 => file.set_len(4 * page() as u64 - 1).unwrap(),
            2 => fs::write(&path, bytes(4 * page(), 5)).unwrap(),
            // Its bytes are still there for whoever has it open.
            _ => fs::remove_file(&path).unwrap(),
        }
        let again = corpus.read_page(0, 3, &mut buffer);
        if change == 3 {
            assert_eq!(again.unwrap(), page(), "{what}");
            assert_eq!(corpus.excluded(), 0);
            continue;
        }
        let error = again.unwrap_err();
        assert!(error.to_string().contains("has changed"), "{what}: {error}");
        assert_eq!(corpus.excluded(), 1, "{what}");
        assert!(corpus.read_page(0, 0, &mut buffer).is_err(), "{what}");
        assert_eq!(corpus.check_page(0, 3, &buffer).unwrap(), Check::Changed, "{what}");
    }
}

#[test]
fn an_old_copy_of_a_changed_file_is_not_called_wrong() {
    let dir = Scratch::new("corpus");
    let path = dir.path().join("file");
    let old = bytes(page(), 6);
    fs::write(&path, &old).unwrap();
    let corpus = open(&dir, ReadPath::Direct);
    if corpus.files()[0].is_direct() {
        fs::write(&path, bytes(page(), 7)).unwrap();
        assert_eq!(corpus.check_page(0, 0, &old).unwrap(), Check::Changed);
    } else {
        println!("skipped: no O_DIRECT below {}", dir.path().display());
    }
    // A deflated copy is what it was.
    fs::write(&path, &old).unwrap();
    let corpus = open(&dir, ReadPath::Decompress);
    fs::write(&path, bytes(page(), 7)).unwrap();
    assert_eq!(corpus.check_page(0, 0, &old).unwrap(), Check::Same);
}

#[test]
fn links_sockets_and_loops_are_passed_over() {
    let dir = Scratch::new("corpus");
    let sub = dir.path().join("sub");
    fs::create_dir(&sub).unwrap();
    fs::write(sub.join("file"), "x").unwrap();
    fs::write(dir.path().join("b"), "y").unwrap();
    symlink("b", dir.path().join("a link")).unwrap();
    symlink("..", sub.join("loop")).unwrap();
    symlink("self", dir.path().join("self")).unwrap();
    symlink("/proc", dir.path().join("proc")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
    for mode in [ReadPath::Auto, ReadPath::Direct, ReadPath::Decompress] {
        assert_eq!(names(&open(&dir, mode)), ["b", "sub/file"]);
    }
    // Named itself, a link is where one wants to go.
    symlink("sub", dir.path().join("c")).unwrap();
    let linked = Corpus::open(Some(&dir.path().join("c")), ReadPath::Auto, NO_CAP).unwrap();
    assert_eq!(names(&linked), ["file"]);
    let replaced = Candidate { path: dir.path().join("a link"), pages: 1 };
    assert!(CorpusFile::open(&replaced, true).is_err());
    let gone = Candidate { path: dir.path().join("gone"), pages: 1 };
    assert!(CorpusFile::open(&gone, false).is_err());
}

#[test]
fn what_may_not_be_read_is_passed_over() {
    const NOBODY: libc::uid_t = 65_534;
    let dir = Scratch::new("corpus");
    let allow = |name: &str, mode| {
        fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    allow("", 0o755);
    fs::create_dir(dir.path().join("closed")).unwrap();
    for name in ["closed/file", "open", "shut"] {
        fs::write(dir.path().join(name), "x").unwrap();
        allow(name, 0o644);
    }
    allow("shut", 0);
    allow("closed", 0);
    let found = std::thread::scope(|scope| {
        let unprivileged = scope.spawn(|| {
            // SAFETY: changes this thread's file system identity only; no memory is involved. For
            // who may not change it, nothing changes and the files are closed to them as well.
            unsafe { libc::setfsuid(NOBODY) };
            BOTH.map(|mode| names(&open(&dir, mode)))
        });
        unprivileged.join().unwrap()
    });
    allow("closed", 0o755);
    assert_eq!(found, [["open"], ["open"]]);
}

#[test]
fn the_default_is_the_same_each_time() {
    let cap = Bytes::mib(2);
    let one = Corpus::open(None, ReadPath::Auto, cap).unwrap();
    let two = Corpus::open(None, ReadPath::Auto, cap).unwrap();
    println!("{one}");
    assert!(one.pages() > Pages::ZERO && one.pages() <= cap.pages_down(page_size()));
    assert_eq!(names(&one), names(&two));
}

#[test]
fn memory_file_systems_are_not_direct() {
    let path = Path::new("/dev/shm");
    let name = format!("glebe-bench-corpus-{}", std::process::id());
    if !path.is_dir() || fs::create_dir(path.join(&name)).is_err() {
        println!("skipped: no {}", path.display());
        return;
    }
    let dir = path.join(name);
    fs::write(dir.join("file"), "x").unwrap();
    let corpus = Corpus::open(Some(&dir), ReadPath::Auto, NO_CAP);
    fs::remove_dir_all(&dir).unwrap();
    assert!(!corpus.unwrap().files()[0].is_direct());
}
