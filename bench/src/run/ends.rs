//! The time from a program's end until the server has seen it, until it has lent as many pages to
//! another program, and until it could lend each page of the ended one again. Unit: ms.

use glebe::units::Bytes;
use glebe_lease::Wish;
use rustix::process::{kill_process, Pid, Signal};

use super::java::{pages_of, Java};
use super::lending::Lending;
use super::origin::Origin;
use super::stage::Stage;
use super::started::Started;
use crate::child::Child;
use crate::report::{Report, GLEBE};
use crate::turns::turns;
use crate::{clock, Outcome};

pub(super) const CASES: [&str; 5] =
    ["seen_after_exit", "back_after_exit", "seen_after_kill", "back_after_kill", "lent_after_kill"];
const ROUNDS: u64 = 15;

pub(super) fn measure(
    java: &Java,
    stage: &Stage,
    lending: &Lending,
    heap: Bytes,
    report: &mut Report,
) -> Outcome {
    for (_, end) in turns("run, ends", report.plan(1, ROUNDS), &[End::Exit, End::Kill, End::Next]) {
        let start = || java.start(stage, Origin::Glebe, lending, heap);
        match Started::new(Origin::Glebe, pages_of(heap), lending, start) {
            Ok(started) => {
                // A half of the server's pages; the program has the other half.
                lending.wait_for_all_zeroed()?;
                ended(started.program, end, lending, report)?;
            }
            Err(why) => {
                CASES.iter().for_each(|case| report.remark(case, GLEBE, "ms", &why.to_string()));
                report.check("failed_starts", 1);
            }
        }
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Exit,
    Kill,
    /// A kill. Another program then asks for the same number of pages.
    Next,
}

fn ended(program: Child, end: End, lending: &Lending, report: &mut Report) -> Outcome {
    let held = lending.held()?;
    if end != End::Exit {
        let id = Pid::from_raw(i32::try_from(program.id())?).ok_or("a program without a number")?;
        kill_process(id, Signal::KILL)?;
    }
    // When this returns, the kernel has freed the program's memory.
    program.answer()?;
    let begin = clock::wall();
    let [exit, exit_back, kill, kill_back, lent] = CASES;
    let since = || clock::micros(clock::wall() - begin) / 1e3;
    if end == End::Next {
        let _lease = lending.client.lease(Wish { bytes: held.get(), ..Wish::default() })?;
        report.add(lent, GLEBE, "ms", since());
        return Ok(());
    }
    let (seen, back) = if end == End::Exit { (exit, exit_back) } else { (kill, kill_back) };
    lending.wait_until_seen()?;
    report.add(seen, GLEBE, "ms", since());
    lending.wait_until_free()?;
    report.add(back, GLEBE, "ms", since());
    Ok(())
}
