//! Tests that `include/glebe.h` agrees with the sources.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use glebe::stats::Line;
use glebe::volatile::Priority;
use glebe_testing::Scratch;

use crate::built::{self, root};

fn text(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn sources() -> Vec<String> {
    let within = |folder: &str| {
        let folder = fs::read_dir(root().join(folder)).unwrap();
        folder.map(|entry| entry.unwrap().path()).filter(|path| path.is_file())
    };
    let folders = ["src", "src/swap", "src/volatile"];
    let files = folders.into_iter().flat_map(within);
    files.map(|path| fs::read_to_string(path).unwrap()).collect()
}

/// Returns the header without comments, one declaration or directive per item.
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

fn normal(code: &str) -> String {
    let mut out = code.split_whitespace().collect::<Vec<_>>().join(" ");
    for mark in ["*", ",", "(", ")", ";"] {
        out = out.replace(&format!(" {mark}"), mark).replace(&format!("{mark} "), mark);
    }
    out.replace(",)", ")")
}

fn c_type(rust: &str) -> String {
    let rust = rust.trim();
    let inside = |wrapper: &str| rust.strip_prefix(wrapper)?.strip_suffix('>');
    if let Some(pointee) = rust.strip_prefix("*const ").or_else(|| inside("In<")) {
        return format!("const {}*", c_type(pointee));
    }
    if let Some(pointee) = rust.strip_prefix("*mut ").or_else(|| inside("Out<")) {
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

/// Returns the C prototype, given the text after `extern "C" fn`.
fn prototype(rust: &str) -> String {
    let (name, rest) = rust.split_once('(').unwrap();
    let (arguments, rest) = rest.split_once(')').unwrap();
    let answer = rest.split_once('{').unwrap().0.trim();
    let answer = answer.strip_prefix("->").map_or("void".to_owned(), c_type);
    let argument = |argument: &str| {
        let (name, of) = argument.trim_start().trim_start_matches("mut ").split_once(':').unwrap();
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
    let (mut exported, mut stands_in) = (BTreeSet::new(), built::stand_ins());
    for source in sources() {
        // Functions that only the kernel calls are not `pub`, and so left out.
        let mut functions: Vec<_> = source.split("\npub extern \"C\" fn ").skip(1).collect();
        assert_eq!(source.matches("#[no_mangle]").count(), functions.len(), "all are exported");
        functions.retain(|rest| !stands_in.remove(rest.split_once('(').unwrap().0));
        exported.extend(functions.into_iter().map(prototype));
    }
    assert!(exported.len() > 20, "{exported:?}");
    assert_eq!(declared(), exported);
    assert!(stands_in.is_empty(), "in glebe_vrange.h only: {stands_in:?}");
}

/// A caller's `const` memory may be read-only, and other threads may read it during the call.
#[test]
fn what_is_given_as_const_is_never_made_mutable() {
    for source in sources() {
        for line in source.lines().filter(|line| line.contains("cast_mut()")) {
            // A pointer cast from a reference is to this crate's own table.
            assert!(line.contains("ptr::from_ref"), "{line}");
        }
    }
}

#[test]
fn the_programs_call_every_function() {
    for language in ["c", "cpp"] {
        let names =
            "all contig lease shared_cache place volatile zpool lent reclaimer shared swap family"
                .split(' ');
        let mut code: String =
            names.map(|name| text(&format!("tests/{name}.{language}"))).collect();
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
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(header.remove("GLEBE_VERSION"), Some(format!("{version:?}")));
    let mut whole = 0;
    for (part, number) in ["MAJOR", "MINOR", "PATCH"].iter().zip(version.split('.')) {
        assert_eq!(header.remove(&format!("GLEBE_VERSION_{part}")), Some(number.to_owned()));
        whole = whole * 1000 + number.parse::<u64>().unwrap();
    }
    assert_eq!(header.remove("GLEBE_VERSION_NUMBER"), Some(whole.to_string()));
    for (name, is) in [("LOWEST", Priority::LOWEST), ("NORMAL", Priority::NORMAL)] {
        assert_eq!(header.remove(&format!("GLEBE_PRIORITY_{name}")), Some(is.get().to_string()));
    }
    let highest = Some(Priority::HIGHEST.get().to_string());
    assert_eq!(header.remove("GLEBE_PRIORITY_HIGHEST"), highest);
    let abi = text("src/abi.rs");
    let source: BTreeMap<_, _> = abi
        .lines()
        .filter_map(|line| line.trim_start().strip_suffix(';')?.split_once(" = "))
        .filter_map(|(name, value)| {
            let name = name.strip_prefix("pub const ").unwrap_or(name);
            Some((name.split(':').next().filter(|name| name.starts_with("GLEBE_"))?, value))
        })
        .map(|(name, value)| (name.to_owned(), value))
        .map(|(name, value)| match value {
            "u64::MAX" => (name, "UINT64_MAX".to_owned()),
            value => (name, value.replace('_', "")),
        })
        .collect();
    assert!(source.len() > 30);
    assert_eq!(header, source);
}

/// Returns the members of each structure of the header, with their types.
fn structures() -> BTreeMap<String, Vec<(String, String)>> {
    let mut all = BTreeMap::new();
    for code in declarations() {
        let Some((_, rest)) = code.split_once("typedef struct ") else { continue };
        let (name, rest) = rest.split_once('{').unwrap();
        let (body, end) = rest.split_once('}').unwrap();
        assert_eq!(end.trim().trim_end_matches(';'), name.trim());
        let member = |member: &str| {
            let (of, name) = member.trim().rsplit_once([' ', '*']).expect("a type and a name");
            let of = member.trim().strip_suffix(name).unwrap_or(of).trim();
            assert!(
                of.ends_with('*')
                    || matches!(of, "uint64_t" | "glebe_refill")
                    || matches!(of, "glebe_reserve" | "glebe_swap_cache")
            );
            (name.to_owned(), of.to_owned())
        };
        let members = body.split(';').filter(|m| !m.trim().is_empty()).map(member).collect();
        all.insert(name.trim().to_owned(), members);
    }
    all
}

/// Returns each inner block of the block after `before`, with the text before its brace.
fn blocks(code: &str, before: &str) -> Vec<(String, String)> {
    let all =
        code.split_once(&format!("\n{before} {{\n")).unwrap().1.split_once("\n}\n").unwrap().0;
    let parts = all.split('}').filter_map(|part| part.split_once('{'));
    parts.map(|(name, inside)| (name.trim().to_owned(), inside.to_owned())).collect()
}

#[test]
fn structures_are_those_of_the_source() {
    let word = |name: &str| (name.to_owned(), "uint64_t".to_owned());
    let c_type = |of: &str| match of {
        "u64" => "uint64_t".to_owned(),
        "Address" => "void *".to_owned(),
        "Chars" => "const char *".to_owned(),
        other => other.to_owned(),
    };
    let mut source = BTreeMap::new();
    let abi = text("src/abi.rs");
    let all = [blocks(&abi, "structures!"), blocks(&text("src/abi/stats.rs"), "structures!")];
    for (name, members) in all.concat() {
        let members = members.split(',').filter_map(|member| member.split_once(": "));
        let members = members.map(|(name, of)| (name.trim().to_owned(), c_type(of)));
        source.insert(name, [word("size")].into_iter().chain(members).collect::<Vec<_>>());
    }
    for (name, members) in blocks(&abi, "fixed!") {
        source.insert(name, members.split_whitespace().map(word).collect());
    }
    let mut header = structures();
    // The library treats `const void *` and `void *` as addresses.
    header.values_mut().flatten().filter(|(_, of)| of == "const void *").for_each(|(_, of)| {
        *of = "void *".to_owned();
    });
    assert!(source.len() > 15 && source["glebe_block"] == [word("id")]);
    assert_eq!(header, source);
}

#[test]
fn statistics_are_those_of_the_librarys_table() {
    are_those_of("glebe_reserve_stats", &glebe::reserve::Stats::default().lines());
    are_those_of("glebe_volatile_stats", &glebe::volatile::Stats::default().lines());
    are_those_of("glebe_reclaimer_stats", &glebe::reclaim::Stats::default().lines());
    are_those_of("glebe_swap_stats", &glebe::swap::Stats::default().lines());
    are_those_of("glebe_swap_area_stats", &glebe::swap::cache::Stats::default().lines());
    are_those_of("glebe_shared_stats", &glebe::volatile::SharedStats::default().lines());
    let lent = glebe::reserve::LentObjectPoolStats::default();
    are_those_of("glebe_zpool_stats", &[lent.objects.lines(), lent.lines()].concat());
}

/// Compares the members after the first, `size`, with a table of the library.
fn are_those_of(structure: &str, lines: &[Line]) {
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let header = text("include/glebe.h");
    let rest = header.split_once(&format!("typedef struct {structure} {{")).unwrap().1;
    let body = one_line(rest.split_once('}').unwrap().0);
    for Line { name, what, .. } in lines {
        let line = one_line(&format!("uint64_t {name}; /* {what} */"));
        assert!(body.contains(&line), "glebe.h lacks, at the end of {structure}:\n{line}");
    }
    let of_table: BTreeSet<_> = lines.iter().map(|line| line.name.as_str()).collect();
    let members = &structures()[structure][1..];
    assert_eq!(members.iter().map(|(name, _)| name.as_str()).collect::<BTreeSet<_>>(), of_table);
}

#[test]
fn a_handle_of_another_kind_does_not_compile() {
    let fixed = blocks(&text("src/abi.rs"), "fixed!");
    let kinds = fixed.iter().filter(|(_, members)| members.trim() == "id");
    let kinds: Vec<_> = kinds.map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds.len(), 19);
    let given: Vec<_> = kinds.iter().copied().chain(["uint64_t"]).collect();
    for (compiler, language) in [("cc", "c"), ("c++", "cpp")] {
        if !built::has(compiler) {
            continue;
        }
        for wanted in kinds.iter().filter(|kind| **kind != "glebe_zobject") {
            let refused = refused(compiler, language, &given, wanted);
            let others: Vec<_> = given.iter().copied().filter(|given| given != wanted).collect();
            assert_eq!(refused, others, "where {wanted} is wanted ({language})");
        }
    }
}

/// Returns the types of `given` that the compiler refuses where `wanted` is expected. Each type has
/// a function on its own line, and errors name the line.
fn refused<'a>(compiler: &str, language: &str, given: &[&'a str], wanted: &str) -> Vec<&'a str> {
    let end = match wanted {
        "glebe_block" => "glebe_free".to_owned(),
        other => format!("{other}_free"),
    };
    let mut code = "#include \"glebe.h\"\n".to_owned();
    for (nth, given) in given.iter().enumerate() {
        code += &format!("int f{nth}({given} handle) {{ return {end}(handle); }}\n");
    }
    let scratch = Scratch::readable("kinds");
    let path = scratch.path().join("kinds").with_extension(language);
    fs::write(&path, code).unwrap();
    let mut command = std::process::Command::new(compiler);
    command.args(["-fsyntax-only", "-I"]).arg(root().join("include")).arg(&path);
    let output = command.env("LC_ALL", "C").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let start = format!("{}:", path.display());
    let is_refused = |nth: usize| {
        let start = format!("{start}{}:", nth + 2);
        said.lines().any(|line| line.starts_with(&start) && line.contains(" error: "))
    };
    let refused: Vec<_> = (0..given.len()).filter(|nth| is_refused(*nth)).collect();
    assert_eq!(said.matches(" error: ").count(), refused.len(), "{said}");
    refused.into_iter().map(|nth| given[nth]).collect()
}

#[test]
fn no_line_is_longer_than_a_hundred_columns() {
    for folder in ["include", "tests", "examples"] {
        for file in fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path()) {
            if file.extension().is_some_and(|of| ["h", "c", "cpp"].iter().any(|c| of == *c)) {
                let all = fs::read_to_string(&file).unwrap();
                let long: Vec<_> = all.lines().filter(|line| line.len() > 100).collect();
                assert!(long.is_empty(), "{}: {long:?}", file.display());
            }
        }
    }
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
        for (index, (member, _)) in members.iter().enumerate() {
            let offset = index * size_of::<u64>();
            let is = format!("offsetof({name}, {member}) == {offset}");
            code += &format!("_Static_assert({is}, \"{name}.{member}\");\n");
        }
    }
    let scratch = Scratch::readable("header");
    let file = scratch.path().join("layout.c");
    fs::write(&file, code).unwrap();
    let include = format!("-I{}", root().join("include").display());
    built::run(
        std::process::Command::new("cc")
            .args(["-std=c11", "-fsyntax-only"])
            .args([include.as_ref(), file.as_os_str()]),
    );
}
