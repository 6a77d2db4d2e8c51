//! [`Stats`] describes a pool.
//!
//! A replace counts as an insert and a remove.

use std::fmt::Write;

use crate::class::blocks::GROUPS;
use crate::objects::Objects;
use glebe_os::internal::stats::{
    families, json, listed, openmetrics, shown, Row, Set, Unit, Value,
};
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};

macro_rules! statistics {
    ($($kind:ident { $($name:ident $unit:ident $what:literal;)* })*) => {
        /// Holds the statistics of a pool at one moment.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[doc = $what] pub $name: u64,)*)*
            /// Classes that are in the table or have zspages, by size.
            pub classes: Vec<ClassStats>,
        }

        impl Stats {
            fn rows(&self) -> Vec<Row<'_>> {
                let row = |name, value, what| Row { name, value, what };
                vec![$($(
                    row(stringify!($name), Value::$kind(Unit::$unit, self.$name), $what),
                )*)*]
            }
        }
    };
}

statistics! {
    Counter {
        inserted Count "objects that were stored, by insert or replace";
        inserted_bytes Bytes "bytes of what was inserted, as it was given";
        inserted_stored_bytes Bytes "bytes of what was inserted, as it was stored";
        removed Count "objects that went by remove or replace";
        evicted Count "objects that were removed for others at the limit, or were recalled";
        moved Count "objects that compaction moved";
        compacted_pages Pages "pages that compaction freed (zram: pages_compacted)";
    }
    Gauge {
        objects Count "objects that are stored";
        stored_bytes Bytes "bytes of them as they are stored (zram: compr_data_size)";
        same_objects Count "objects that one word fills, which take no slot (zram: same_pages)";
        slot_bytes Bytes "bytes of their slots: with what rounding adds";
        limbo_slots Count "slots that wait until nobody reads there";
        zspages Count "zspages";
        used_pages Pages "pages of zspages (zram: mem_used_total)";
        sealed_pages Pages "pages of zspages that are lent by a reserve";
        kept_pages Pages "pages that wait for the next zspage";
        freeable_pages Pages "pages that compaction would free";
        metadata_bytes Bytes "bytes of everything that is held besides pages";
        held_bytes Bytes "bytes that are held, everything counted";
        held_bytes_max Bytes "the most bytes that were ever held";
        limit_bytes Bytes "the most that may be held; 0 without a limit";
    }
}

/// Holds the statistics of one class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClassStats {
    /// Bytes of the longest object that the class takes.
    pub size: Bytes,
    /// Pages of a zspage.
    pub pages_per_zspage: Pages,
    /// Slots of a zspage.
    pub objects_per_zspage: u64,
    /// Zspages by fullness: empty, below 10 %, below 20 % ... below 100 %, full.
    pub groups: [u64; GROUPS],
    /// Slots of all zspages.
    pub allocated: u64,
    /// Objects stored.
    pub used: u64,
    /// Slots that wait for readers.
    pub limbo: u64,
    /// Bytes of the objects as stored.
    pub stored: Bytes,
    /// Zspages.
    pub zspages: u64,
    /// Zspages whose pages a reserve lends.
    pub sealed: u64,
    /// Pages that compaction would free.
    pub freeable: Pages,
    /// True if the class is being emptied.
    pub is_retired: bool,
}

const PREFIX: &str = "glebe_zpool_";
const CLASS_PREFIX: &str = "glebe_zpool_class_";

const FULLNESS: [&str; GROUPS] =
    ["0%", "10%", "20%", "30%", "40%", "50%", "60%", "70%", "80%", "90%", "99%", "100%"];

impl ClassStats {
    fn rows(&self) -> Vec<Row<'_>> {
        let row = |name, unit, value, what| Row { name, value: Value::Gauge(unit, value), what };
        vec![
            row("allocated", Unit::Count, self.allocated, "slots of all zspages"),
            row("used", Unit::Count, self.used, "objects there"),
            row("limbo", Unit::Count, self.limbo, "slots that wait until nobody reads there"),
            row("stored_bytes", Unit::Bytes, self.stored.get(), "bytes of the objects as stored"),
            row("zspages", Unit::Count, self.zspages, "zspages"),
            row("sealed", Unit::Count, self.sealed, "zspages that are lent by a reserve"),
            row("freeable_pages", Unit::Pages, self.freeable.get(), "that compaction would free"),
        ]
    }

    fn labels(&self) -> Vec<(&'static str, String)> {
        vec![
            ("size", self.size.get().to_string()),
            ("pages_per_zspage", self.pages_per_zspage.get().to_string()),
            ("objects_per_zspage", self.objects_per_zspage.to_string()),
        ]
    }

    /// Returns the head of the kernel's table of classes.
    #[must_use]
    pub fn table_head() -> String {
        let mut out = String::from(" class  size");
        for name in &FULLNESS[1..] {
            let _ = write!(out, "{name:>9}");
        }
        out.push_str(" obj_allocated   obj_used pages_used pages_per_zspage freeable\n");
        out
    }

    /// Returns the class's line of the kernel's table.
    #[must_use]
    pub fn table_row(&self, number: u64) -> String {
        let mut out = format!("{number:>6} {:>5}", self.size.get());
        for zspages in &self.groups[1..] {
            let _ = write!(out, "{zspages:>9}");
        }
        let _ = writeln!(
            out,
            " {:>13} {:>10} {:>10} {:>16} {:>8}",
            self.allocated,
            self.used,
            self.zspages * self.pages_per_zspage.get(),
            self.pages_per_zspage.get(),
            self.freeable.get(),
        );
        out
    }

    fn to_json(&self) -> String {
        let shape = self.labels().into_iter().map(|(name, value)| format!("\"{name}\": {value}"));
        let shape: Vec<String> = shape.collect();
        let rows = json(&self.rows());
        let rows = rows.trim_matches(['{', '}', ' ']);
        format!("{{ {}, {rows}, \"groups\": {:?} }}", shape.join(", "), self.groups)
    }
}

impl Stats {
    pub(crate) fn of(objects: &Objects, (vectors, charged): (u64, u64)) -> Self {
        let memory = &objects.memory;
        let mut stats = Self::default();
        let (came, went, given) = objects.filled.counts();
        (stats.inserted, stats.removed, stats.inserted_bytes) = (came, went, given);
        stats.same_objects = came.saturating_sub(went);
        stats.objects = stats.same_objects;
        for class in objects.classes.all() {
            let state = class.lock();
            let (shape, counts) = (state.shape(), state.counts);
            stats.inserted += counts.came;
            stats.inserted_bytes += counts.came_given;
            stats.inserted_stored_bytes += counts.came_stored;
            stats.removed += counts.went;
            stats.evicted += counts.evicted;
            stats.moved += counts.moved;
            stats.compacted_pages += counts.compacted;
            let zspages = u64::from(state.zspages());
            if state.is_retired && zspages == 0 {
                continue;
            }
            stats.objects += counts.objects;
            stats.stored_bytes += counts.bytes;
            stats.slot_bytes += counts.objects * u64::from(shape.size);
            stats.limbo_slots += state.limbo() as u64;
            stats.zspages += zspages;
            let sealed = state.sealed();
            stats.sealed_pages += sealed * u64::from(shape.pages);
            stats.freeable_pages += state.freeable_pages();
            stats.classes.push(ClassStats {
                size: Bytes::new(state.longest.into()),
                pages_per_zspage: Pages::new(shape.pages.into()),
                objects_per_zspage: shape.objects.into(),
                groups: state.group_counts(),
                allocated: zspages * u64::from(shape.objects),
                used: counts.objects,
                limbo: state.limbo() as u64,
                stored: Bytes::new(counts.bytes),
                zspages,
                sealed,
                freeable: Pages::new(state.freeable_pages()),
                is_retired: state.is_retired,
            });
        }
        stats.classes.sort_by_key(|class| class.size);
        stats.used_pages = memory.pages.used();
        stats.kept_pages = memory.pages.kept();
        let pages = Pages::new(stats.used_pages + stats.kept_pages).bytes(page_size());
        stats.metadata_bytes =
            (memory.account.held() + vectors).saturating_sub(pages.get() + charged);
        stats.held_bytes = pages.get() + stats.metadata_bytes;
        stats.held_bytes_max = memory.account.most().max(stats.held_bytes);
        let limit = memory.account.limit();
        stats.limit_bytes = if limit == u64::MAX { 0 } else { limit };
        stats
    }
}

impl Stats {
    /// Returns the page bytes beyond the stored bytes, per stored byte. Zero if no byte is stored.
    #[must_use]
    pub fn overhead_of_pages(&self) -> f64 {
        let pages = Pages::new(self.used_pages).bytes(page_size());
        self.beyond_stored(pages.get())
    }

    /// Returns the held bytes beyond the stored bytes, per stored byte. Zero if no byte is stored.
    #[must_use]
    pub fn overhead(&self) -> f64 {
        self.beyond_stored(self.held_bytes)
    }

    fn beyond_stored(&self, held: u64) -> f64 {
        if self.stored_bytes == 0 {
            return 0.0;
        }
        (held as f64 - self.stored_bytes as f64) / self.stored_bytes as f64
    }

    /// Returns the classes as the kernel's table.
    #[must_use]
    pub fn class_table(&self) -> String {
        let rows = self.classes.iter().enumerate();
        let rows: String = rows.map(|(number, class)| class.table_row(number as u64)).collect();
        ClassStats::table_head() + &rows
    }

    fn classes_in_use(&self) -> impl Iterator<Item = &ClassStats> {
        self.classes.iter().filter(|class| class.zspages > 0)
    }

    /// Returns a JSON object of the totals and the classes in use. Names end in their unit, except
    /// those of counts.
    #[must_use]
    pub fn to_json(&self) -> String {
        let classes: Vec<String> = self.classes_in_use().map(ClassStats::to_json).collect();
        let totals = json(&self.rows());
        let totals = totals.trim_end_matches(['}', ' ']);
        format!("{totals}, \"classes\": [{}] }}", classes.join(", "))
    }

    /// Returns OpenMetrics 1.0 text of the totals and the classes in use, in bytes.
    #[must_use]
    pub fn to_openmetrics(&self) -> String {
        let page = page_size().bytes();
        let classes = self.classes_in_use();
        let classes = classes.map(|class| Set { labels: class.labels(), rows: class.rows() });
        let classes: Vec<Set> = classes.collect();
        let totals = [Set { labels: Vec::new(), rows: self.rows() }];
        families(CLASS_PREFIX, page, &classes) + &openmetrics(PREFIX, page, &totals)
    }

    /// Checks that totals and classes add up, which holds while no call runs.
    ///
    /// # Errors
    /// Returns the failed identity.
    pub fn check(&self) -> Result<(), String> {
        let page = page_size().bytes().get();
        let same = |what: &str, a: u64, b: u64| {
            (a == b).then_some(()).ok_or_else(|| format!("{what}: {a} is not {b}"))
        };
        same("inserted", self.inserted, self.objects + self.removed + self.evicted)?;
        let pages = (self.used_pages + self.kept_pages) * page;
        same("held", self.held_bytes, pages + self.metadata_bytes)?;
        let of = |part: fn(&ClassStats) -> u64| self.classes.iter().map(part).sum::<u64>();
        same("objects", self.objects, of(|class| class.used) + self.same_objects)?;
        same("stored", self.stored_bytes, of(|class| class.stored.get()))?;
        let pages = of(|class| (class.zspages - class.sealed) * class.pages_per_zspage.get());
        same("used pages", self.used_pages, pages)?;
        let sealed = of(|class| class.sealed * class.pages_per_zspage.get());
        same("sealed pages", self.sealed_pages, sealed)?;
        same("zspages", self.zspages, of(|class| class.groups.iter().sum()))?;
        let all_pages = self.used_pages + self.sealed_pages;
        if self.stored_bytes > self.slot_bytes || self.slot_bytes > all_pages * page {
            let (stored, slots) = (self.stored_bytes, self.slot_bytes);
            return Err(format!("stored {stored}, slots {slots}, pages {all_pages}"));
        }
        if self.inserted_stored_bytes > self.inserted_bytes {
            let (stored, given) = (self.inserted_stored_bytes, self.inserted_bytes);
            return Err(format!("{stored} bytes were stored of {given}"));
        }
        Ok(())
    }
}

listed!(Stats);

shown!(Stats);
