//! `glebe zpool` prints the size classes of a pool of compressed objects for any parameters.
//!
//! Without `--short`, the columns are those of the kernel's `zsmalloc/POOL/classes`, for a pool
//! with one full zspage in each class. Classes are numbered by their index among all sizes, as in
//! the kernel.

use std::io::{self, Write};

use glebe::page_size;
use glebe::units::{Bytes, PageSize, Pages};
use glebe::zpool::{ClassStats, Rules, SizeClass, Table};

use crate::{size, usage, Outcome};

/// Options of `glebe zpool`.
#[derive(clap::Args)]
pub struct ZpoolArgs {
    /// The table to print
    #[arg(value_enum)]
    what: What,
    /// Most pages of a zspage, at most 16
    #[arg(long, value_name = "N", default_value_t = 8)]
    chain: u64,
    /// Page size; the machine's if not given
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    page: Option<Bytes>,
    /// Step between class sizes, a power of two; 1/256 of a page if not given
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    step: Option<Bytes>,
    /// Size of the smallest class
    #[arg(long, value_name = "BYTES", value_parser = size::parse, default_value = "32")]
    min: Bytes,
    /// Do not merge classes whose zspages have equally many pages and objects
    #[arg(long)]
    no_merge: bool,
    /// Print fewer columns: the shape of a zspage, and its unused bytes
    #[arg(long)]
    short: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum What {
    /// The size classes
    Classes,
}

pub fn run(args: &ZpoolArgs, out: &mut dyn Write) -> Outcome {
    let bytes = args.page.unwrap_or(page_size().bytes());
    let Some(page) = PageSize::new(bytes.get()) else {
        return usage(format!("pages of {} B; a page is a power of two", bytes.get()));
    };
    let usual = Rules::of_page(page);
    let rules = Rules {
        step: args.step.unwrap_or(usual.step),
        min: args.min,
        chain: Pages::new(args.chain),
        merge: !args.no_merge,
        page,
    };
    match args.what {
        What::Classes => match Table::by_rules(&rules) {
            Ok(table) => Ok(write_classes(&table, args.short, out)?),
            // The rules come from the command line.
            Err(error) => usage(error.to_string()),
        },
    }
}

fn write_classes(table: &Table, short: bool, out: &mut dyn Write) -> io::Result<()> {
    let rules = table.rules();
    if short {
        writeln!(out, "class  size objs_per_zspage pages_per_zspage  tail tail_percent")?;
    } else {
        write!(out, "{}", ClassStats::table_head())?;
    }
    for class in table.classes() {
        let number = (class.size - rules.min).get().div_ceil(rules.step.get());
        if short {
            writeln!(out, "{number:5} {}", shape(class, rules))?;
        } else {
            write!(out, "{}", one_full_zspage(class).table_row(number))?;
        }
    }
    let count = table.classes().len();
    let classes = if count == 1 { "class" } else { "classes" };
    let mark = table.watermark().get();
    writeln!(out, "{count} {classes}; objects above {mark} B take a page each")
}

fn shape(class: &SizeClass, rules: &Rules) -> String {
    let tail = class.tail(rules.page).get();
    let percent = tail as f64 * 100.0 / class.pages.bytes(rules.page).get() as f64;
    let (size, pages) = (class.size.get(), class.pages.get());
    format!("{size:5} {:15} {pages:16} {tail:5} {percent:12.2}", class.objects)
}

fn one_full_zspage(class: &SizeClass) -> ClassStats {
    let mut stats = ClassStats::default();
    (stats.size, stats.pages_per_zspage) = (class.size, class.pages);
    (stats.allocated, stats.used, stats.zspages) = (class.objects.into(), class.objects.into(), 1);
    stats.groups[stats.groups.len() - 1] = 1;
    stats
}
