//! [`Java`]: OpenJDK with large pages, all touched at the start.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use glebe::units::Bytes;

use super::lending::Lending;
use super::origin::Origin;
use super::postgres::answered;
use super::stage::Stage;
use super::PAGE;
use crate::child::Child;
use crate::Outcome;

const PROGRAM: &str = include_str!("../../java/Started.java");
/// The program's answer when its main function runs.
const READY: &str = "ready";
/// The heap's tables are less than `1 / TABLES` of the heap.
const TABLES: u64 = 16;
/// Large pages beside the heap and its tables: code and the descriptions of classes.
const BESIDE: u64 = 160;

pub(super) struct Java {
    classes: PathBuf,
}

impl Java {
    /// Fails without a JDK.
    pub(super) fn new(stage: &Stage) -> Outcome<Self> {
        let classes = stage.path("classes");
        fs::create_dir(&classes)?;
        let source = stage.path("Started.java");
        fs::write(&source, PROGRAM)?;
        let mut compiler = Command::new("javac");
        compiler.arg("-d").arg(&classes).arg(source);
        answered(&mut compiler).map_err(|e| format!("no javac (openjdk-17-jdk-headless): {e}"))?;
        Ok(Self { classes })
    }

    /// Starts the program, and returns when its main function has printed a line.
    pub(super) fn start(
        &self,
        stage: &Stage,
        origin: Origin,
        lending: &Lending,
        heap: Bytes,
    ) -> Outcome<Child> {
        let (mut command, log) = (stage.command("KILL", true), stage.path("java.log"));
        stage.start(&mut command, origin, lending, "java".as_ref());
        let pages = if origin == Origin::Without { "TransparentHugePages" } else { "LargePages" };
        let mib = heap.get() >> 20;
        command.args([format!("-XX:+Use{pages}"), format!("-Xms{mib}m"), format!("-Xmx{mib}m")]);
        command.args(["-XX:+AlwaysPreTouch", "-XX:+UseG1GC", "-cp"]);
        command.arg(&self.classes).arg("Started").stderr(File::create(&log)?);
        let mut child = Child::of(&mut command)?;
        let mut said = String::new();
        while let Some(line) = child.line()? {
            match line.as_str() {
                READY => return Ok(child),
                // A warning of the virtual machine.
                _ => said = line,
            }
        }
        let log = fs::read_to_string(&log).unwrap_or_default();
        let first = log.lines().next().unwrap_or(&said);
        Err(format!("it ended before its main function: {first}").into())
    }
}

/// Returns the pages that a program with this heap needs.
pub(super) fn pages_of(heap: Bytes) -> u64 {
    (heap.get() + heap.get() / TABLES).div_ceil(PAGE.bytes().get()) + BESIDE
}

/// Lets the program do `rounds` rounds of work. Returns the CPU seconds.
pub(super) fn work(program: &mut Child, rounds: u64) -> Outcome<f64> {
    program.tell(&rounds.to_string())?;
    let line = program.line()?.ok_or("the program ended")?;
    let nanos = line.split(' ').next().unwrap_or_default();
    Ok(nanos.parse::<f64>().map_err(|e| format!("{line}: {e}"))? / 1e9)
}
