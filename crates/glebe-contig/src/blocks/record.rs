//! [`Record`] lists memory blocks before they are changed.
//!
//! Lines have equal length and do not cross pages, so a kill cannot cut a line's write.
//!
//! ```text
//! glebe-blocks 1 BOOT_ID
//! BLOCK ZONE OWNER
//! ```
//!
//! `ZONE` is the zone before the change. `OWNER` is `bank`, `nobody` or `process N`, which
//! holds claim N (a lock on one byte) while it lives. Free lines are spaces. Text of another boot
//! and malformed lines are ignored.

use glebe_os::internal::sys::machine::memory_block::Zone;

const HEADER: &str = "glebe-blocks 1";
pub(super) const LINE: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Bank,
    Process(u32),
    /// The block could not be given back yet.
    Nobody,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub block: u64,
    pub zone: Zone,
    pub owner: Owner,
}

impl Line {
    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        let owner = match fields.get(2..)? {
            ["bank"] => Owner::Bank,
            ["nobody"] => Owner::Nobody,
            ["process", number] => Owner::Process(number.parse().ok()?),
            _ => return None,
        };
        let (block, zone) = (fields[0].parse().ok()?, Zone::named(fields[1])?);
        Some(Self { block, zone, owner })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    pub slots: Vec<Option<Line>>,
}

impl Record {
    /// The strings describe ignored lines.
    pub fn parse(text: &[u8], boot_id: &str) -> (Self, Vec<String>) {
        let mut lines = text.chunks(LINE).map(String::from_utf8_lossy);
        let header = lines.next().unwrap_or_default();
        if header.trim_end() != format!("{HEADER} {boot_id}") {
            let foreign = !header.is_empty() && !header.starts_with(HEADER);
            let ignored = format!("header {:.60?} is not {HEADER:?}: ignored", header.trim_end());
            return (Self::default(), foreign.then_some(ignored).into_iter().collect());
        }
        let (mut slots, mut ignored) = (Vec::new(), Vec::new());
        for line in lines {
            let line = line.trim();
            let read = Line::parse(line);
            if read.is_none() && !line.is_empty() {
                ignored.push(format!("line {line:.60?} names no block: ignored"));
            }
            slots.push(read);
        }
        (Self { slots }, ignored)
    }

    pub fn lines(&self) -> impl Iterator<Item = Line> + '_ {
        self.slots.iter().filter_map(|slot| *slot)
    }

    pub fn of(&self, block: u64) -> Option<Line> {
        self.lines().find(|line| line.block == block)
    }

    /// Returns the offset and the bytes to write.
    pub fn set(&mut self, line: Line) -> (u64, Vec<u8>) {
        let own = self.slots.iter().position(|slot| slot.is_some_and(|s| s.block == line.block));
        let free = || self.slots.iter().position(Option::is_none);
        let slot = own.or_else(free).unwrap_or(self.slots.len());
        if slot == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[slot] = Some(line);
        self.text(slot)
    }

    pub fn strike(&mut self, block: u64) -> Option<(u64, Vec<u8>)> {
        let of = |slot: &Option<Line>| slot.is_some_and(|line| line.block == block);
        let slot = self.slots.iter().position(of)?;
        self.slots[slot] = None;
        Some(self.text(slot))
    }

    fn text(&self, slot: usize) -> (u64, Vec<u8>) {
        let text = self.slots[slot].map_or_else(String::new, |line| {
            let owner = match line.owner {
                Owner::Bank => "bank".to_owned(),
                Owner::Nobody => "nobody".to_owned(),
                Owner::Process(number) => format!("process {number}"),
            };
            format!("{} {} {owner}", line.block, line.zone.as_str())
        });
        (((slot + 1) * LINE) as u64, filled(&text))
    }
}

pub(super) fn header(boot_id: &str) -> Vec<u8> {
    filled(&format!("{HEADER} {boot_id}"))
}

fn filled(text: &str) -> Vec<u8> {
    let mut line = text.as_bytes().to_vec();
    line.resize(LINE - 1, b' ');
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOOT: &str = "0f1c2d3e-0000-4000-8000-0123456789ab";

    fn line(block: u64, owner: Owner) -> Line {
        Line { block, zone: Zone::Normal, owner }
    }

    fn apply(text: &mut Vec<u8>, (at, bytes): (u64, Vec<u8>)) {
        let at = at as usize;
        text.resize(text.len().max(at + bytes.len()), b' ');
        text[at..at + bytes.len()].copy_from_slice(&bytes);
    }

    #[test]
    fn what_is_written_is_read_again_and_free_lines_are_used_again() {
        let (mut text, mut record) = (header(BOOT), Record::default());
        assert_eq!(text.len(), LINE);
        let owners = [Owner::Bank, Owner::Process(u32::MAX), Owner::Nobody];
        for (n, owner) in owners.into_iter().enumerate() {
            let change = record.set(line(n as u64, owner));
            apply(&mut text, change);
        }
        let change = record.strike(1).unwrap();
        apply(&mut text, change);
        let change = record.set(line(u64::MAX, Owner::Process(0)));
        apply(&mut text, change);
        let change = record.set(Line { zone: Zone::Dma32, ..line(0, Owner::Nobody) });
        apply(&mut text, change);
        assert_eq!(text.len(), 4 * LINE);
        assert_eq!(Record::parse(&text, BOOT), (record.clone(), vec![]));
        assert_eq!(record.lines().map(|l| l.block).collect::<Vec<_>>(), [0, u64::MAX, 2]);
        assert_eq!(record.of(0).unwrap().zone, Zone::Dma32);
        assert_eq!((record.of(1), record.strike(1)), (None, None));
    }

    #[test]
    fn another_boot_and_garbled_lines_say_nothing() {
        let (mut text, mut record) = (header(BOOT), Record::default());
        let change = record.set(line(7, Owner::Bank));
        apply(&mut text, change);
        assert_eq!(Record::parse(&text, "another"), (Record::default(), vec![]));
        assert_eq!(Record::parse(b"", BOOT), (Record::default(), vec![]));
        for bad in ["8 Normal", "8 Norm bank", "x Normal bank", "8 Normal process -1", "\x1b[2J"] {
            apply(&mut text, (2 * LINE as u64, filled(bad)));
            let (read, ignored) = Record::parse(&text, BOOT);
            assert_eq!((read.lines().count(), ignored.len()), (1, 1), "{bad}");
            assert!(!ignored[0].contains('\x1b'));
        }
        assert_eq!(Record::parse(b"something else", BOOT).1.len(), 1);
    }

    proptest! {
        #[test]
        fn any_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Record::parse(&bytes, BOOT);
            let mut text = header(BOOT);
            text.extend(bytes);
            let _ = Record::parse(&text, BOOT);
        }
    }
}
