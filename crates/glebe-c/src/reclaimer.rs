//! Exports reclaimers and budgets.
//!
//! A call that adds an object, for example a region, makes a [`Part`] of the object, unlocks the
//! object, and only then locks the reclaimer. So no call locks two objects at once. A poll may lock
//! volatile memory, so most calls fail in a thread that is inside another call on volatile memory
//! or inside a fork.
#![allow(unsafe_code)] // exported names

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use glebe::reclaim::{Budget, Class, Part, Policy, ReclaimError, Reclaimed, Reclaimer};
use glebe::units::Bytes;

use crate::abi::*;
use crate::boundary::{call, In, Out};
use crate::failure::Failure;
use crate::process::{each, end, insert, with, Objects, Process};
use crate::volatile::{self, Inside};

fn policy(asked: &glebe_reclaimer_options) -> Result<Policy, Failure> {
    let yields = Failure::flag("yield_files", asked.yield_files)?;
    let mut policy = Policy::default().keep_files(!yields);
    if asked.margin_bytes > 0 {
        policy = policy.margin(Bytes::new(asked.margin_bytes));
    }
    if asked.lead_ms > 0 {
        policy = policy.lead(Duration::from_millis(asked.lead_ms));
    }
    if asked.withhold_ms > 0 {
        policy = policy.withhold(Duration::from_millis(asked.withhold_ms));
    }
    Ok(policy)
}

#[no_mangle]
pub extern "C" fn glebe_reclaimer_new(
    options: In<glebe_reclaimer_options>,
    reclaimer: Out<glebe_reclaimer>,
) -> c_int {
    call(|| {
        let (out, asked) = (reclaimer.checked("reclaimer")?, options.read()?);
        let policy = policy(&asked)?;
        Ok(out.set(insert(Process::create()?, || Ok([Reclaimer::new(policy)?]))?))
    })
}

#[no_mangle]
pub extern "C" fn glebe_reclaimer_free(reclaimer: glebe_reclaimer) -> c_int {
    call(|| {
        let _inside = Inside::enter()?;
        end(reclaimer)
    })
}

fn on<R>(
    reclaimer: glebe_reclaimer,
    call: impl FnOnce(&Reclaimer) -> Result<R, ReclaimError>,
) -> Result<R, Failure> {
    let _inside = Inside::enter()?;
    with(reclaimer, |of| Ok(call(of)?))
}

fn add(reclaimer: glebe_reclaimer, part: Part) -> Result<c_int, Failure> {
    on(reclaimer, |of| of.add(part))?;
    Ok(GLEBE_OK)
}

#[no_mangle]
pub extern "C" fn glebe_reclaimer_add_volatile(
    reclaimer: glebe_reclaimer,
    region: glebe_volatile,
) -> c_int {
    call(|| add(reclaimer, volatile::part(region)?))
}

#[no_mangle]
pub extern "C" fn glebe_reclaimer_add_shared(
    reclaimer: glebe_reclaimer,
    shared: glebe_shared,
) -> c_int {
    call(|| add(reclaimer, volatile::shared_part(shared)?))
}

#[no_mangle]
pub extern "C" fn glebe_reclaimer_add_zpool(
    reclaimer: glebe_reclaimer,
    pool: glebe_zpool,
) -> c_int {
    call(|| {
        let part = with(pool, |of| match &of.object {
            Objects::Own(pool) => Ok(Part::from(pool)),
            Objects::Lent(_) => Err(Failure::bad("pool: it is on a reserve", of.reserve.id)),
        })?;
        add(reclaimer, part)
    })
}

#[no_mangle]
pub extern "C" fn glebe_reclaimer_add_reserve(
    reclaimer: glebe_reclaimer,
    reserve: glebe_reserve,
    least_bytes: u64,
) -> c_int {
    call(|| {
        let least = Bytes::new(least_bytes);
        add(reclaimer, with(reserve, |of| Ok(Part::reserve(of, least)))?)
    })
}

#[no_mangle]
pub extern "C" fn glebe_reclaimer_add_budget(
    reclaimer: glebe_reclaimer,
    budget: glebe_budget,
) -> c_int {
    call(|| add(reclaimer, with(budget, |of| Ok(Part::from(of)))?))
}

fn told(done: &Reclaimed) -> glebe_reclaimed {
    let volatile = Class::all().filter(|class| class.is_volatile());
    glebe_reclaimed {
        size: 0,
        asked_bytes: done.asked.get(),
        volatile_bytes: volatile.map(|class| done.freed_of(class).get()).sum(),
        waste_bytes: done.freed_of(Class::Waste).get(),
        objects_bytes: done.freed_of(Class::Objects).get(),
        budgets_bytes: done.freed_of(Class::Budgets).get(),
        reserve_bytes: done.freed_of(Class::Reserve).get(),
        measured_bytes: done.measured.get(),
        failed: done.failed,
    }
}

#[no_mangle]
pub extern "C" fn glebe_reclaimer_poll(
    reclaimer: glebe_reclaimer,
    reclaimed: Out<glebe_reclaimed>,
) -> c_int {
    call(|| {
        let out = reclaimed.sized_if_any()?;
        let done = on(reclaimer, Reclaimer::poll)?;
        Ok(out.map_or(GLEBE_OK, |out| out.set(&told(&done))))
    })
}

#[no_mangle]
pub extern "C" fn glebe_reclaimer_wait(reclaimer: glebe_reclaimer, most_ms: u64) -> c_int {
    call(|| {
        on(reclaimer, |of| of.wait(Duration::from_millis(most_ms)))?;
        Ok(GLEBE_OK)
    })
}

#[no_mangle]
pub extern "C" fn glebe_reclaimer_fd(reclaimer: glebe_reclaimer, fd: Out<c_int>) -> c_int {
    call(|| {
        let out = fd.checked("fd")?;
        with(reclaimer, |of| Ok(out.set(of.as_fd().as_raw_fd())))
    })
}

#[no_mangle]
pub extern "C" fn glebe_reclaimer_start(reclaimer: glebe_reclaimer) -> c_int {
    call(|| {
        on(reclaimer, Reclaimer::start)?;
        Ok(GLEBE_OK)
    })
}

#[no_mangle]
pub extern "C" fn glebe_reclaimer_refills(reclaimer: glebe_reclaimer) -> c_int {
    call(|| {
        let are_allowed = with(reclaimer, |of| Ok(of.refills().are_allowed()))?;
        Ok(if are_allowed { GLEBE_REFILLS_ALLOWED } else { GLEBE_REFILLS_WITHHELD })
    })
}

#[no_mangle]
pub extern "C" fn glebe_budget_new(most_bytes: u64, budget: Out<glebe_budget>) -> c_int {
    call(|| {
        let out = budget.checked("budget")?;
        let make = || Ok(each(Budget::new(Bytes::new(most_bytes))));
        Ok(out.set(insert(Process::create()?, make)?))
    })
}

#[no_mangle]
pub extern "C" fn glebe_budget_free(budget: glebe_budget) -> c_int {
    call(|| end(budget))
}

#[no_mangle]
pub extern "C" fn glebe_budget_set_held(budget: glebe_budget, held_bytes: u64) -> c_int {
    call(|| {
        with(budget, |of| {
            of.set_held(Bytes::new(held_bytes));
            Ok(GLEBE_OK)
        })
    })
}

#[no_mangle]
pub extern "C" fn glebe_budget_allowed(budget: glebe_budget, allowed_bytes: Out<u64>) -> c_int {
    call(|| {
        let out = allowed_bytes.checked("allowed_bytes")?;
        with(budget, |of| Ok(out.set(of.allowed().get())))
    })
}
