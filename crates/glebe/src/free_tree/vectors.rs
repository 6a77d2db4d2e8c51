//! [`Vectors`]: the same code once more for processors with wider registers.
//!
//! Owns nothing. The loops over lanes are plain ones of which the compiler makes vector
//! instructions; what every x86-64 processor has is four lanes at a time, without a maximum of
//! unsigned ones. What runs in [`Vectors::run`] is compiled twice, and the processor is asked once
//! which it can run.
//!
//! # Safety
//! [`Vectors::of_processor`] is the only maker, and says yes only where all features are there.
#![allow(unsafe_code)]

/// Whether wider vector instructions are to be used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vectors {
    #[cfg(target_arch = "x86_64")]
    wide: bool,
}

impl Vectors {
    /// As the processor has them.
    pub(super) fn of_processor() -> Self {
        Self {
            #[cfg(target_arch = "x86_64")]
            wide: is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("lzcnt")
                && is_x86_feature_detected!("popcnt"),
        }
    }

    /// As if it had none but those that all have.
    #[cfg(test)]
    pub(super) fn plain() -> Self {
        Self {
            #[cfg(target_arch = "x86_64")]
            wide: false,
        }
    }

    /// Does `work`, with them if there are any.
    #[inline(always)]
    pub(super) fn run<W: Work>(self, work: W) -> W::Answer {
        #[cfg(target_arch = "x86_64")]
        if self.wide {
            // SAFETY: the processor has all the features: see `of_processor`.
            return unsafe { run_wide(work) };
        }
        run_plain(work)
    }
}

/// What there is to do: a closure that is sure to be inlined.
pub(super) trait Work {
    type Answer;

    /// Does it. To be marked `inline(always)`, as must be what gains from wide vectors below it.
    fn run(self) -> Self::Answer;
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
#[inline(never)]
unsafe fn run_wide<W: Work>(work: W) -> W::Answer {
    work.run()
}

#[inline(never)]
fn run_plain<W: Work>(work: W) -> W::Answer {
    work.run()
}
