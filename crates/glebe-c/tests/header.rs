//! `include/glebe.h` says what the sources do: prototypes, constants, structures, statistics.

mod built;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use built::root;
use glebe::stats::Line;

fn text(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn sources() -> Vec<String> {
    let within = |folder: &str| {
        let folder = fs::read_dir(root().join(folder)).unwrap();
        folder.map(|entry| entry.unwrap().path()).filter(|path| path.is_file())
    };
    let folders = ["src", "src/volatile", "src/zpool"];
    let files = folders.into_iter().flat_map(within);
    files.map(|path| fs::read_to_string(path).unwrap()).collect()
}

/// The header without comments, one declaration or directive a line.
fn declarations() -> Vec<String> {
    let header = text("include/glebe.h");
    let mut code = String::new();
    for (n, part) in header.split("/*").enumerate() {
        code += if n == 0 { part } else { part.split_once("*/").expect("a comment that ends").1 };
    }
    let (directives, code): (Vec<_>, Vec<_>) =
        code.lines().partition(|line| line.starts_with('#') || line.contains("extern \"C\""));
    let mut all: Vec<_> = directives.into_iter().map(str::to_owned).collect();
    let mut one = String::new();
    let mut depth = 0;
    for c in code.join("\n").chars() {
        depth += match c {
            '{' => 1,
            '}' if depth > 0 => -1,
            _ => 0,
        };
        one.push(c);
        if c == ';' && depth == 0 {
            all.push(std::mem::take(&mut one));
        }
    }
    all
}

/// One spelling of what may be spaced in several ways.
fn normal(code: &str) -> String {
    let mut out = code.split_whitespace().collect::<Vec<_>>().join(" ");
    for mark in ["*", ",", "(", ")", ";"] {
        out = out.replace(&format!(" {mark}"), mark).replace(&format!("{mark} "), mark);
    }
    out.replace(",)", ")")
}

/// A Rust type of the boundary in C.
fn c_type(rust: &str) -> String {
    let rust = rust.trim();
    if let Some(pointee) = rust.strip_prefix("*const ") {
        return format!("const {}*", c_type(pointee));
    }
    if let Some(pointee) = rust.strip_prefix("*mut ") {
        return format!("{}*", c_type(pointee));
    }
    match rust {
        "u64" => "uint64_t",
        "i64" => "int64_t",
        "usize" => "size_t",
        "c_int" => "int",
        "c_char" => "char",
        "c_uchar" => "unsigned char",
        "c_void" => "void",
        name if name.starts_with("glebe_") => name,
        other => panic!("{other} has no place in a C interface"),
    }
    .to_owned()
}

/// The C prototype of an exported function, from what follows `extern "C" fn`.
fn prototype(rust: &str) -> String {
    let (name, rest) = rust.split_once('(').unwrap();
    let (arguments, rest) = rest.split_once(')').unwrap();
    let answer = rest.split_once('{').unwrap().0.trim();
    let answer = answer.strip_prefix("->").map_or("void".to_owned(), c_type);
    let argument = |argument: &str| {
        let (name, of) = argument.split_once(':').unwrap();
        format!("{} {}", c_type(of), name.trim())
    };
    let arguments: Vec<_> =
        arguments.split(',').filter(|a| !a.trim().is_empty()).map(argument).collect();
    let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(",") };
    normal(&format!("{answer} {}({arguments});", name.trim()))
}

fn declared() -> BTreeSet<String> {
    let all = declarations();
    let is_function = |code: &&String| code.contains('(') && !code.starts_with('#');
    let is_type = |code: &&String| code.trim_start().starts_with("typedef");
    let functions = all.iter().filter(is_function).filter(|code| !is_type(code));
    functions.map(|code| normal(code)).collect()
}

#[test]
fn prototypes_are_those_of_the_source() {
    let mut exported = BTreeSet::new();
    for source in sources() {
        let functions = source.split("extern \"C\" fn ").skip(1);
        exported.extend(functions.map(prototype));
        let marked = source.matches("#[no_mangle]").count();
        assert_eq!(marked, source.matches("extern \"C\" fn ").count(), "all are exported");
    }
    assert!(exported.len() > 20, "{exported:?}");
    assert_eq!(declared(), exported);
}

/// What C gives as `const` may lie where nobody can write, and other calls may read it meanwhile.
#[test]
fn what_is_given_as_const_is_never_made_mutable() {
    for source in sources() {
        for line in source.lines().filter(|line| line.contains("cast_mut()")) {
            // The other way round it is a table of this crate's own.
            assert!(line.contains("ptr::from_ref"), "{line}");
        }
    }
}

#[test]
fn the_programs_call_every_function() {
    for language in ["c", "cpp"] {
        let mut code = ["all", "contig", "place", "volatile", "zpool", "lent"]
            .map(|name| text(&format!("tests/{name}.{language}")))
            .concat();
        if language == "c" {
            code += &text("tests/view.c");
        }
        for prototype in declared() {
            let name = prototype.split_once('(').unwrap().0;
            let name = name.rsplit([' ', '*']).next().unwrap();
            assert!(code.contains(&format!("{name}(")), "no program calls {name} ({language})");
        }
    }
}

#[test]
fn constants_are_those_of_the_source() {
    let mut header = BTreeMap::new();
    for code in declarations() {
        if let Some(define) = code.strip_prefix("#define GLEBE_") {
            if let Some((name, value)) = define.split_once(' ') {
                header.insert(format!("GLEBE_{name}"), value.trim().to_owned());
            }
        } else if let Some((_, body)) = code.split_once("enum {") {
            for one in body.split_once('}').unwrap().0.split(',') {
                let (name, value) = one.split_once('=').expect("each has its number");
                header.insert(name.trim().to_owned(), value.trim().to_owned());
            }
        }
    }
    assert_eq!(header.remove("GLEBE_VERSION"), Some(format!("{:?}", env!("CARGO_PKG_VERSION"))));
    let abi = text("src/abi.rs");
    let source: BTreeMap<_, _> = abi
        .lines()
        .filter_map(|line| line.strip_prefix("pub const ")?.strip_suffix(';')?.split_once(": "))
        .map(|(name, rest)| (name.to_owned(), rest.split_once(" = ").unwrap().1))
        .map(|(name, value)| match value {
            "u64::MAX" => (name, "UINT64_MAX".to_owned()),
            value => (name, value.replace('_', "")),
        })
        .collect();
    assert!(source.len() > 30);
    assert_eq!(header, source);
    for name in source.keys().filter(|name| name.starts_with("GLEBE_ERROR_")) {
        let row = format!("{name} => c\"{name}\"");
        assert!(text("src/message.rs").contains(&row), "glebe_error_name lacks {name}");
    }
}

/// The members of each structure of the header, all of which are 64-bit words.
fn structures() -> BTreeMap<String, Vec<String>> {
    let mut all = BTreeMap::new();
    for code in declarations() {
        let Some((_, rest)) = code.split_once("typedef struct ") else { continue };
        let (name, rest) = rest.split_once('{').unwrap();
        let (body, end) = rest.split_once('}').unwrap();
        assert_eq!(end.trim().trim_end_matches(';'), name.trim());
        let member = |member: &str| {
            member.trim().strip_prefix("uint64_t ").expect("64-bit words only").to_owned()
        };
        let members = body.split(';').filter(|m| !m.trim().is_empty()).map(member).collect();
        all.insert(name.trim().to_owned(), members);
    }
    all
}

#[test]
fn structures_are_those_of_the_source() {
    let mut source = BTreeMap::new();
    for part in text("src/abi.rs").split("#[repr(C)]").skip(1) {
        let (name, rest) = part.split_once("pub struct ").unwrap().1.split_once('{').unwrap();
        let members = rest.split_once('}').unwrap().0.split(',').map(str::trim);
        let members = members.filter(|member| !member.is_empty()).map(|member| {
            let (name, of) = member.strip_prefix("pub ").unwrap().split_once(": ").unwrap();
            assert_eq!(of, "u64");
            name.to_owned()
        });
        source.insert(name.trim().to_owned(), members.collect::<Vec<_>>());
    }
    let tables = [
        ("glebe_stats", "src/stats.rs", &["size", "version"][..]),
        ("glebe_volatile_stats", "src/volatile/stats.rs", &["size", "version", "engine"]),
        ("glebe_zpool_stats", "src/zpool/stats.rs", &["size", "version"]),
    ];
    for (name, file, before) in tables {
        let stats = text(file);
        let list = stats.split_once("\nstats! {").unwrap().1.split_once('}').unwrap().0;
        let members = before.iter().copied().chain(list.split_whitespace());
        source.insert(name.to_owned(), members.map(str::to_owned).collect());
    }
    assert_eq!(structures(), source);
}

#[test]
fn statistics_are_those_of_the_librarys_table() {
    are_those_of("glebe_stats", 2, &glebe::reserve::Stats::default().lines());
    are_those_of("glebe_volatile_stats", 3, &glebe::volatile::Stats::default().lines());
    are_those_of("glebe_zpool_stats", 2, &glebe::zpool::Stats::default().lines());
    let lent = glebe::reserve::LentObjectPoolStats::default();
    are_those_of("glebe_lent_zpool_stats", 2, &lent.lines());
}

/// Compares the members of a structure but the `first` ones with a table of the library's.
fn are_those_of(structure: &str, first: usize, lines: &[Line]) {
    let header = text("include/glebe.h");
    let rest = header.split_once(&format!("typedef struct {structure} {{")).unwrap().1;
    let body = rest.split_once('}').unwrap().0;
    for Line { name, what, .. } in lines {
        let line = format!("    uint64_t {name}; /* {what} */\n");
        assert!(body.contains(&line), "glebe.h lacks, at the end of {structure}:\n{line}");
    }
    let of_table: BTreeSet<_> = lines.iter().map(|line| line.name.as_str()).collect();
    let members = &structures()[structure][first..];
    assert_eq!(members.iter().map(String::as_str).collect::<BTreeSet<_>>(), of_table);
}

#[test]
fn the_compiler_lays_structures_out_as_the_source_does() {
    if !built::has("cc") {
        return;
    }
    let mut code = "#include <stddef.h>\n#include \"glebe.h\"\n".to_owned();
    for (name, members) in structures() {
        let size = members.len() * size_of::<u64>();
        code += &format!("_Static_assert(sizeof({name}) == {size}, \"{name}\");\n");
        for (index, member) in members.iter().enumerate() {
            let offset = index * size_of::<u64>();
            let is = format!("offsetof({name}, {member}) == {offset}");
            code += &format!("_Static_assert({is}, \"{name}.{member}\");\n");
        }
    }
    let scratch = built::Scratch::new();
    let file = scratch.path().join("layout.c");
    fs::write(&file, code).unwrap();
    let include = format!("-I{}", root().join("include").display());
    built::run(
        std::process::Command::new("cc")
            .args(["-std=c11", "-fsyntax-only"])
            .args([include.as_ref(), file.as_os_str()]),
    );
}
