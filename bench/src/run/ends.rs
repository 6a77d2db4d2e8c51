//! The time from a program's end until the server could lend each of its pages again, and until it
//! has lent as many again. Unit: ms.

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

pub(super) const CASES: [&str; 3] = ["back_after_exit", "back_after_kill", "lent_after_kill"];
const ROUNDS: u64 = 15;

pub(super) fn measure(
    java: &Java,
    stage: &Stage,
    lending: &Lending,
    heap: Bytes,
    report: &mut Report,
) -> Outcome {
    for (_, is_kill) in turns("run, ends", report.plan(2, ROUNDS), &[false, true]) {
        let start = || java.start(stage, Origin::Glebe, lending, heap);
        let started = match Started::new(Origin::Glebe, pages_of(heap), lending, start) {
            Ok(started) => started,
            Err(why) => {
                CASES.iter().for_each(|case| report.remark(case, GLEBE, "ms", &why.to_string()));
                report.check("failed_starts", 1);
                continue;
            }
        };
        ended(started.program, is_kill, lending, report)?;
    }
    Ok(())
}

fn ended(program: Child, is_kill: bool, lending: &Lending, report: &mut Report) -> Outcome {
    let held = lending.held()?;
    let mut begin = clock::wall();
    if is_kill {
        let id = Pid::from_raw(i32::try_from(program.id())?).ok_or("a program without a number")?;
        kill_process(id, Signal::KILL)?;
    }
    program.answer()?;
    if !is_kill {
        begin = clock::wall();
    }
    let since = || clock::micros(clock::wall() - begin) / 1e3;
    lending.wait_until_free()?;
    report.add(CASES[usize::from(is_kill)], GLEBE, "ms", since());
    if is_kill {
        let wish = Wish { bytes: held.get(), ..Wish::default() };
        let _lease = lending.client.lease(wish)?;
        report.add(CASES[2], GLEBE, "ms", since());
    }
    Ok(())
}
