//! Tests that a module uses only modules of lower layers.
//!
//! The crate root lists the layers (`// L0: ...` lines above the `mod` lines). Modules of the
//! lowest layer may use each other. The order also applies to test code.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Crates that the root re-exports as modules, without layers because Cargo orders crates.
const CRATES: [&str; 7] = ["cache", "contig", "free_tree", "lease", "vmap", "volatile", "zpool"];

type Layers = BTreeMap<String, u32>;

fn layers_of(root: &str) -> Layers {
    let mut layers = Layers::new();
    let mut current = None;
    for line in root.lines() {
        if let Some(rest) = line.strip_prefix("// L") {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            current = digits.parse().ok().or(current);
        }
        let declared = ["pub(crate) mod ", "pub mod ", "mod "]
            .iter()
            .find_map(|start| line.strip_prefix(start)?.strip_suffix(';'));
        if let Some(name) = declared {
            let layer = current.unwrap_or_else(|| panic!("mod {name} stands before any layer"));
            layers.insert(name.to_owned(), layer);
        }
    }
    layers
}

/// Splits `source` into words, `::` and single characters, without comments and literals.
fn tokens(source: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let len = if let Some(len) = comment_len(rest).or_else(|| literal_len(rest)) {
            rest = &rest[len..];
            continue;
        } else if rest.starts_with("::") {
            2
        } else {
            let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            word.max(first.len_utf8())
        };
        if !first.is_whitespace() {
            out.push(&rest[..len]);
        }
        rest = &rest[len..];
    }
    out
}

fn comment_len(rest: &str) -> Option<usize> {
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    if !rest.starts_with("/*") {
        return None;
    }
    let mut depth = 0_u32;
    let mut at = 0;
    while at < rest.len() {
        match rest.as_bytes().get(at..at + 2) {
            Some(b"/*") => depth += 1,
            Some(b"*/") => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            break;
        }
    }
    Some(at)
}

fn literal_len(rest: &str) -> Option<usize> {
    if let Some(raw) = ["br", "cr", "r"].iter().find_map(|prefix| rest.strip_prefix(prefix)) {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let open = rest.len() - raw.len() + hashes + 1;
            let close = format!("\"{}", "#".repeat(hashes));
            return Some(rest[open..].find(&close).map_or(rest.len(), |i| open + i + close.len()));
        }
    }
    let quote = *rest.as_bytes().first()?;
    if quote == b'\'' {
        let inner = rest[1..].chars().next()?;
        if inner != '\\' {
            let end = 1 + inner.len_utf8();
            return rest[end..].starts_with('\'').then_some(end + 1);
        }
    } else if quote != b'"' {
        return None;
    }
    let mut escaped = false;
    for (i, &byte) in rest.as_bytes().iter().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            _ if byte == quote => return Some(i + 1),
            _ => {}
        }
    }
    Some(rest.len())
}

/// Returns the names directly under the crate root that `source` uses.
///
/// `depth` is 1 for `a.rs` and `a/mod.rs`, 2 for `a/b.rs`.
fn root_names(source: &str, depth: usize) -> Vec<&str> {
    let tokens = tokens(source);
    let word = |i: usize| tokens.get(i).copied().unwrap_or("");
    let mut names = Vec::new();
    let mut braces = 0_usize;
    let mut inline_mods = Vec::new(); // the brace depth that each open `mod x {` returns to
    for i in 0..tokens.len() {
        match word(i) {
            "{" => braces += 1,
            "}" => {
                braces = braces.saturating_sub(1);
                if inline_mods.last() == Some(&braces) {
                    inline_mods.pop();
                }
            }
            "mod" if word(i + 2) == "{" => inline_mods.push(braces),
            "crate" | "super" | "self" if i == 0 || word(i - 1) != "::" => {
                let supers = (0..).take_while(|n| leads_up(&tokens, i, *n)).count();
                let is_crate = word(i) == "crate";
                let past = i + 2 * (supers + usize::from(word(i) != "super"));
                let at_root = is_crate || supers == depth + inline_mods.len();
                if at_root && word(past - 1) == "::" {
                    names.extend(heads(&tokens, past));
                }
            }
            _ => {}
        }
    }
    names
}

/// Returns true if segment `n` of the path at `i` is `super`. The count skips a leading `self`.
fn leads_up(tokens: &[&str], i: usize, n: usize) -> bool {
    let from = if tokens[i] == "super" { i } else { i + 2 };
    let at = from + 2 * n;
    tokens.get(at) == Some(&"super") && (at == i || tokens[at - 1] == "::")
}

/// Returns the first segments of the path or group at `i`, without macro names.
fn heads<'a>(tokens: &[&'a str], i: usize) -> Vec<&'a str> {
    let word = |i: usize| tokens.get(i).copied().unwrap_or("");
    if word(i) != "{" {
        return if word(i + 1) == "!" { Vec::new() } else { vec![word(i)] };
    }
    let mut names = Vec::new();
    let mut depth = 0_u32;
    for at in i..tokens.len() {
        match word(at) {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
        if depth == 1 && matches!(word(at), "{" | ",") && word(at + 1) != "}" {
            names.push(word(at + 1));
        }
    }
    names
}

fn violations(layers: &Layers, module: &str, depth: usize, source: &str) -> Vec<String> {
    let Some(&own) = layers.get(module) else {
        return vec![format!("{module} is not in the crate root's layer list")];
    };
    let mut found = Vec::new();
    for name in root_names(source, depth) {
        match layers.get(name) {
            _ if name == module || CRATES.contains(&name) => {}
            None => found.push(format!("{module} uses crate::{name}, which is no module")),
            Some(&other) if other < own || (other == 0 && own == 0) => {}
            Some(other) => found.push(format!("{module} (L{own}) uses {name} (L{other})")),
        }
    }
    found
}

fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).expect("source folder is readable") {
        let path = entry.expect("folder entry is readable").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

const OF_OTHERS: [&str; 2] = ["scratch", "tools"];

/// Tests that each file is built, because Cargo does not search this folder for test programs.
#[test]
fn each_file_of_tests_is_a_program_or_a_module_of_one() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| fs::read_to_string(own.join(path)).expect("a file of the crate");
    let (manifest, program) = (read("Cargo.toml"), read("tests/it.rs"));
    for entry in fs::read_dir(own.join("tests")).expect("a folder of the crate") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a name");
        let is_program = manifest.contains(&format!("[[test]]\nname = \"{name}\"\n"));
        let is_module = program.contains(&format!("\nmod {name};\n"));
        assert!(is_program || is_module || OF_OTHERS.contains(&name), "{name} is not built");
    }
}

#[test]
fn each_module_uses_lower_layers_only() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let root = fs::read_to_string(src.join("lib.rs")).expect("crate root is readable");
    let layers = layers_of(&root);
    assert!(layers.len() > 1, "no layer list in the crate root: {layers:?}");

    let mut found = Vec::new();
    let mut seen = 0;
    for file in rust_files(&src) {
        let inside = file.strip_prefix(&src).expect("file is under src").with_extension("");
        let mut modules: Vec<_> = inside.iter().map(|part| part.to_string_lossy()).collect();
        if modules == ["lib"] {
            continue;
        }
        if modules.last().is_some_and(|last| last == "mod") {
            modules.pop();
        }
        let source = fs::read_to_string(&file).expect("source is readable");
        seen += 1;
        let wrong = violations(&layers, &modules[0], modules.len(), &source);
        found.extend(wrong.iter().map(|text| format!("{}: {text}", inside.display())));
    }
    assert!(seen >= layers.len(), "{seen} files for {} modules", layers.len());
    assert!(found.is_empty(), "against the layer order:\n{}", found.join("\n"));
}

fn fixture_layers() -> Layers {
    layers_of(
        "// L0: vocabulary.\npub mod units;\nmod extent;\n\n// L1: kernel.\npub mod sys;\n\
         // L2\npub mod tree;\npub(crate) mod class;\n// L3: top.\npub mod pool;\n",
    )
}

#[test]
fn the_layer_list_is_read() {
    let expected =
        [("class", 2), ("extent", 0), ("pool", 3), ("sys", 1), ("tree", 2), ("units", 0)];
    let expected = expected.map(|(name, layer)| (name.to_owned(), layer));
    assert_eq!(fixture_layers(), Layers::from(expected));
}

#[test]
fn what_the_order_allows_is_not_reported() {
    let cases = [
        ("pool", 1, "use crate::tree::Tree; use crate::{sys, units::{Bytes, Pages}};"),
        ("pool", 2, "use super::sibling; fn f() { crate::pool::g(); self::h() }"),
        (
            "pool",
            1,
            "//! [`crate::no`]\n/* crate::no /* */ crate::no */ const S: &str = \"crate::no\";",
        ),
        (
            "tree",
            1,
            "const C: (char, &str) = ('\"', r#\"crate::pool \"\" \"#); fn f<'a>(x: &'a u8) {}",
        ),
        ("tree", 1, "mod tests { use super::*; mod deep { use super::super::Tree; } }"),
        ("tree", 1, "pub(crate) struct S; crate::table! { x } pub(in crate::tree) struct T;"),
        ("tree", 1, "impl S { fn f(self) -> T { self.g(); Self::h() } }"),
        ("units", 1, "use crate::extent::Extent;"),
        ("sys", 2, "use super::super::units::Pages;"),
    ];
    for (module, depth, source) in cases {
        let found = violations(&fixture_layers(), module, depth, source);
        assert!(found.is_empty(), "{source}: {found:?}");
    }
}

#[test]
fn what_the_order_forbids_is_reported() {
    let cases = [
        ("sys", 2, "use crate::tree::Tree;", 1),
        ("units", 1, "use crate::sys;", 1),
        ("tree", 1, "use crate::class::Class;", 1),
        ("tree", 1, "fn f() { let x = crate::pool::Pool::new(); }", 1),
        ("tree", 1, "use crate::{units::{Bytes, Pages}, pool::{self, A}, class};", 2),
        ("tree", 1, "use super::pool::Pool;", 1),
        ("tree", 1, "use self::super::pool::Pool;", 1),
        ("tree", 2, "use super::super::{units, pool};", 1),
        ("tree", 1, "mod tests { use super::super::pool; } use super::units;", 1),
        ("tree", 1, "mod tests { mod a { } use super::super::pool; }", 1),
        ("tree", 1, "use crate::Pool;", 1),
        ("tree", 1, "macro_rules! m { () => { $crate::pool::Pool } }", 1),
        ("tree", 1, "const C: (char, &str) = ('\\'', \"\\\"\"); use crate::pool;", 1),
        ("unlisted", 1, "", 1),
    ];
    for (module, depth, source, expected) in cases {
        let found = violations(&fixture_layers(), module, depth, source);
        assert_eq!(found.len(), expected, "{source}: {found:?}");
    }
}
