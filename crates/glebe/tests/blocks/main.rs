//! The source `blocks` on the machine itself.

use std::time::Instant;

use glebe::contig::{Contig, Source};
use glebe::units::Bytes;

#[test]
fn one_run() {
    for mib in [16, 128, 100, 1024] {
        let t = Instant::now();
        let got = Contig::options().source(Source::Blocks).map(Bytes::mib(mib));
        println!("{mib} MiB: {:?}", t.elapsed());
        match got {
            Ok(c) => {
                println!(
                    "{:?} {:?} {} {:?}",
                    c.runs(),
                    c.why_not_better(),
                    c.held_by(),
                    c.why_not_pinned()
                );
                let t = Instant::now();
                drop(c);
                println!("given back {:?}", t.elapsed());
            }
            Err(e) => println!("{e}"),
        }
    }
}
