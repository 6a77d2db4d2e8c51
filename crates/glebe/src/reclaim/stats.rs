//! Statistics of a reclaimer.

use glebe_os::internal::stats::{shown, statistics, texts};
use glebe_os::internal::sys::page_size;

statistics! {
    labels {}
    counters {
        Polls polls Count "looks at how much memory there is";
        Notices notices Count "looks that a notice of the kernel's came before";
        Blind blind Count "looks that could not tell";
        Sheds sheds Count "looks that asked for memory";
        Asked asked Pages "pages that were asked for";
        FreedVolatile freed_volatile Pages "pages freed that were marked volatile";
        FreedWaste freed_waste Pages "pages freed by compaction of object pools";
        FreedObjects freed_objects Pages "pages freed with objects of pools";
        FreedReserve freed_reserve Pages "pages that reserves gave back";
        AskedBudgets asked_budgets Pages "pages that budgets were lowered by";
        Measured measured Pages "pages by which usage fell meanwhile";
        Failed failed Count "parts that failed to give memory back";
        Withheld withheld Count "times that refills were withheld";
    }
    gauges {
        limit "limit_pages" "the tightest limit, at the last look";
        room "room_pages" "what could be had before the kernel kills, then";
        free "free_pages" "what could be had before the kernel drops files, then";
        margin "margin_pages" "below which memory is shed, then";
        marked "marked_pages" "what was marked in all parts, then";
    }
    durations {
        poll_ns "poll" "poll" "looks, with what was shed";
    }
}

shown!(Stats);

texts!(Stats, page_size().bytes(), "glebe_reclaim_");
