//! [`of`] classifies an executable file.
//!
//! [`of`] reads only headers and the loader's path, and checks every length. Source: execve(2),
//! elf(5).

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use object::elf::{self, FileHeader32, FileHeader64, Machine, PT_INTERP};
use object::read::elf::{FileHeader, ProgramHeader};
use object::read::ReadCache;
use object::Endianness;

/// Bytes of a script that the kernel reads for its `#!` line (BINPRM_BUF_SIZE).
const HEAD: u64 = 256;
const PATH_MAX: u64 = 4096;

const MACHINES: [(Machine, &str); 8] = [
    (elf::EM_X86_64, "x86-64"),
    (elf::EM_AARCH64, "aarch64"),
    (elf::EM_386, "i386"),
    (elf::EM_ARM, "arm"),
    (elf::EM_RISCV, "riscv"),
    (elf::EM_PPC64, "ppc64"),
    (elf::EM_S390, "s390"),
    (elf::EM_LOONGARCH, "loongarch"),
];

#[derive(Debug, PartialEq, Eq)]
pub enum Image {
    Elf(Elf),
    /// Begins with `#!` and this path.
    Script(PathBuf),
    /// Any other format, such as one registered with binfmt_misc.
    Other,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Elf {
    pub architecture: Architecture,
    /// True for position-independent files: shared libraries, loaders, and most programs.
    pub is_shared: bool,
    pub loader: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Architecture {
    machine: Machine,
    bits: u8,
    endianness: Endianness,
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match MACHINES.iter().find(|(machine, _)| *machine == self.machine) {
            Some((_, name)) => f.write_str(name)?,
            None => write!(f, "ELF machine {}", self.machine.0)?,
        }
        let order = if self.endianness == Endianness::Big { ", big-endian" } else { "" };
        write!(f, " ({} bits{order})", self.bits)
    }
}

/// Classifies a file.
///
/// # Errors
/// If the file cannot be read, or begins as ELF and is damaged.
pub fn of(mut file: File) -> io::Result<Image> {
    let mut head = Vec::new();
    (&mut file).take(HEAD).read_to_end(&mut head)?;
    if let Some(line) = head.strip_prefix(b"#!") {
        return Ok(interpreter(line).map_or(Image::Other, Image::Script));
    }
    if !head.starts_with(&elf::ELFMAG) {
        return Ok(Image::Other);
    }
    let data = ReadCache::new(file);
    let parsed = match head.get(4) {
        Some(&class) if class == elf::ELFCLASS32.0 => parse::<FileHeader32<Endianness>>(&data, 32),
        _ => parse::<FileHeader64<Endianness>>(&data, 64),
    };
    let damaged = |e| io::Error::new(io::ErrorKind::InvalidData, format!("damaged ELF: {e}"));
    parsed.map(Image::Elf).map_err(damaged)
}

/// Returns the path after `#!`, as the kernel reads it; `None` if it is empty or too long.
fn interpreter(line: &[u8]) -> Option<PathBuf> {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let begin = line.iter().position(|byte| !is_blank(byte))?;
    let ends = |byte: &u8| is_blank(byte) || matches!(byte, b'\n' | 0);
    // The end of a file shorter than `HEAD` also ends the line.
    let is_whole = line.len() < HEAD as usize - 2;
    let end = line[begin..].iter().position(ends).or(is_whole.then_some(line.len() - begin))?;
    let path = &line[begin..begin + end];
    (!path.is_empty()).then(|| OsStr::from_bytes(path).into())
}

fn parse<H: FileHeader<Endian = Endianness>>(
    data: &ReadCache<File>,
    bits: u8,
) -> Result<Elf, String> {
    let wrong = |e: object::read::Error| e.to_string();
    let header = H::parse(data).map_err(wrong)?;
    let endianness = header.endian().map_err(wrong)?;
    let mut loader = None;
    for part in header.program_headers(endianness, data).map_err(wrong)? {
        if part.p_type(endianness) != PT_INTERP {
            continue;
        }
        let len: u64 = part.p_filesz(endianness).into();
        if len > PATH_MAX {
            return Err(format!("its loader's path has {len} bytes, at most {PATH_MAX} may be"));
        }
        let path = part.interpreter(endianness, data).map_err(wrong)?;
        loader = path.map(|path| OsStr::from_bytes(path).into());
        break;
    }
    Ok(Elf {
        architecture: Architecture { machine: header.e_machine(endianness), bits, endianness },
        is_shared: header.e_type(endianness) == elf::ET_DYN,
        loader,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_an_interpreter_as_the_kernel_reads_it() {
        let path = |line: &[u8]| interpreter(line).map(|path| path.display().to_string());
        let sh = Some("/bin/sh".to_owned());
        for line in ["/bin/sh\n", " \t/bin/sh -e\n", "/bin/sh", "/bin/sh\t-x y", "/bin/sh\0x"] {
            assert_eq!(path(line.as_bytes()), sh, "{line:?}");
        }
        for none in ["", "\n", "  \n/bin/sh"] {
            assert_eq!(path(none.as_bytes()), None, "{none:?}");
        }
        let long = [b"/", &[b'a'; HEAD as usize - 3][..]].concat();
        assert_eq!(path(&long), None);
        assert!(path(&long[..long.len() - 1]).is_some());
    }

    #[test]
    fn an_architecture_has_a_name_or_a_number() {
        let of = |machine, bits, endianness| Architecture { machine, bits, endianness }.to_string();
        assert_eq!(of(elf::EM_X86_64, 32, Endianness::Little), "x86-64 (32 bits)");
        assert_eq!(of(elf::EM_AARCH64, 64, Endianness::Big), "aarch64 (64 bits, big-endian)");
        assert_eq!(of(Machine(4711), 64, Endianness::Little), "ELF machine 4711 (64 bits)");
    }
}
