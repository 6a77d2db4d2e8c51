//! Gives statistics as structures and as text, and serves a reserve's statistics to other
//! processes.
#![allow(unsafe_code)] // exported names

use std::ffi::{c_char, c_int};
use std::os::unix::ffi::OsStrExt;

use glebe::reserve::LentObjectPoolStats as Lent;
use glebe::{reclaim, reserve, zpool};

use crate::abi::*;
use crate::boundary::{call, In, Out, Text};
use crate::failure::Failure;
use crate::process::{with, Objects};

pub(crate) fn form<S: ToString>(
    format: u64,
    stats: &S,
    to_json: fn(&S) -> String,
    to_openmetrics: fn(&S) -> String,
) -> Result<String, Failure> {
    match format {
        GLEBE_FORMAT_TEXT => Ok(stats.to_string()),
        GLEBE_FORMAT_JSON => Ok(to_json(stats)),
        GLEBE_FORMAT_OPENMETRICS => Ok(to_openmetrics(stats)),
        other => Err(Failure::bad("format", other)),
    }
}

#[no_mangle]
pub extern "C" fn glebe_reserve_get_stats(
    reserve: glebe_reserve,
    stats: Out<glebe_reserve_stats>,
) -> c_int {
    call(|| {
        let out = stats.sized()?;
        Ok(out.set_lines(&with(reserve, |of| Ok(of.stats().lines()))?))
    })
}

#[no_mangle]
pub extern "C" fn glebe_reserve_format_stats(
    reserve: glebe_reserve,
    format: u64,
    text: Out<c_char>,
    text_len_bytes: usize,
    needed_bytes: Out<usize>,
) -> c_int {
    call(|| {
        let text = Text::new(text, text_len_bytes, needed_bytes)?;
        let to_json = reserve::Stats::to_json;
        let to_openmetrics = reserve::Stats::to_openmetrics;
        text.set(with(reserve, |of| form(format, &of.stats(), to_json, to_openmetrics))?)
    })
}

#[no_mangle]
pub extern "C" fn glebe_reserve_serve_stats(
    reserve: glebe_reserve,
    directory: In<c_char>,
    socket: Out<c_char>,
    socket_len_bytes: usize,
    needed_bytes: Out<usize>,
) -> c_int {
    call(|| {
        let text = Text::new(socket, socket_len_bytes, needed_bytes)?;
        let socket = with(reserve, |of| {
            let socket = match directory.path() {
                None => of.serve_stats()?,
                Some(directory) => of.serve_stats_in(directory)?,
            };
            Ok(socket.to_owned())
        })?;
        text.set(socket.as_os_str().as_bytes())
    })
}

#[no_mangle]
pub extern "C" fn glebe_zpool_get_stats(pool: glebe_zpool, stats: Out<glebe_zpool_stats>) -> c_int {
    call(|| {
        let out = stats.sized()?;
        Ok(out.set_lines(&with(pool, |of| match &of.object {
            Objects::Own(pool) => Ok(pool.stats().lines()),
            Objects::Lent(pool) => {
                let now = pool.stats();
                Ok([now.objects.lines(), now.lines()].concat())
            }
        })?))
    })
}

#[no_mangle]
pub extern "C" fn glebe_zpool_format_stats(
    pool: glebe_zpool,
    format: u64,
    text: Out<c_char>,
    text_len_bytes: usize,
    needed_bytes: Out<usize>,
) -> c_int {
    call(|| {
        let text = Text::new(text, text_len_bytes, needed_bytes)?;
        text.set(with(pool, |of| match (&of.object, format) {
            (Objects::Own(pool), GLEBE_FORMAT_CLASSES) => Ok(pool.stats().class_table()),
            (Objects::Lent(pool), GLEBE_FORMAT_CLASSES) => Ok(pool.stats().objects.class_table()),
            (Objects::Own(pool), _) => {
                let stats = pool.stats();
                form(format, &stats, zpool::Stats::to_json, zpool::Stats::to_openmetrics)
            }
            (Objects::Lent(pool), _) => {
                let (to_json, to_openmetrics) = (Lent::to_json, Lent::to_openmetrics);
                form(format, &pool.stats(), to_json, to_openmetrics)
            }
        })?)
    })
}

#[no_mangle]
pub extern "C" fn glebe_reclaimer_get_stats(
    reclaimer: glebe_reclaimer,
    stats: Out<glebe_reclaimer_stats>,
) -> c_int {
    call(|| {
        let out = stats.sized()?;
        Ok(out.set_lines(&with(reclaimer, |of| Ok(of.stats().lines()))?))
    })
}

#[no_mangle]
pub extern "C" fn glebe_reclaimer_format_stats(
    reclaimer: glebe_reclaimer,
    format: u64,
    text: Out<c_char>,
    text_len_bytes: usize,
    needed_bytes: Out<usize>,
) -> c_int {
    call(|| {
        let text = Text::new(text, text_len_bytes, needed_bytes)?;
        let to_json = reclaim::Stats::to_json;
        let to_openmetrics = reclaim::Stats::to_openmetrics;
        text.set(with(reclaimer, |of| form(format, &of.stats(), to_json, to_openmetrics))?)
    })
}
