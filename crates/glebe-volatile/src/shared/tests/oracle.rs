//! Compares random calls on two `Shared` of one file with an oracle.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug, Default)]
struct Granule {
    /// Within a priority, the least place is purged first.
    mark: Option<(u8, Order, i64)>,
    is_present: bool,
    is_lost: bool,
    pins: u32,
    byte: u8,
}

#[derive(Debug, Default)]
struct Oracle {
    granules: [Granule; GRANULES as usize],
    time: i64,
}

impl Oracle {
    fn of(&mut self, run: &Range<u64>) -> impl Iterator<Item = (u64, &mut Granule)> {
        let run = run.start as usize..run.end as usize;
        let first = run.start as u64;
        self.granules[run].iter_mut().enumerate().map(move |(at, one)| (first + at as u64, one))
    }

    fn place(order: Order, time: i64) -> i64 {
        match order {
            Order::Fifo => (1 << 40) + time,
            Order::Lifo => -time,
        }
    }

    fn pin(&mut self, run: &Range<u64>) -> Vec<u64> {
        let mut lost = Vec::new();
        for (at, granule) in self.of(run) {
            granule.pins += 1;
            granule.is_present = true;
            lost.extend(granule.is_lost.then_some(at));
        }
        lost
    }

    fn restore(&mut self, run: &Range<u64>) {
        self.time += 1;
        let time = self.time;
        for (_, granule) in self.of(run).filter(|(_, granule)| granule.is_lost) {
            granule.is_lost = false;
            if let Some((_, order, place)) = &mut granule.mark {
                *place = Self::place(*order, time);
            }
        }
    }

    fn mark(&mut self, run: &Range<u64>, priority: u8, order: Order) {
        self.time += 1;
        let time = self.time;
        for (_, granule) in self.of(run) {
            granule.mark.get_or_insert((priority, order, Self::place(order, time)));
        }
    }

    fn unmark(&mut self, run: &Range<u64>) -> Vec<u64> {
        let mut lost = Vec::new();
        for (at, granule) in self.of(run) {
            lost.extend(granule.is_lost.then_some(at));
            (granule.is_lost, granule.mark) = (false, None);
        }
        lost
    }

    fn purge(&mut self, run: &Range<u64>, target: u64, up_to: u8) -> u64 {
        let mut first: Vec<_> = self
            .of(run)
            .filter(|(_, granule)| granule.is_present && granule.pins == 0)
            .filter_map(|(at, granule)| granule.mark.map(|(level, _, place)| (level, place, at)))
            .filter(|(level, ..)| *level <= up_to)
            .collect();
        first.sort_unstable();
        first.truncate(target as usize);
        for (.., at) in &first {
            let granule = &mut self.granules[*at as usize];
            (granule.is_present, granule.is_lost, granule.byte) = (false, true, 0);
        }
        first.len() as u64
    }
}

#[derive(Clone, Debug)]
enum Call {
    Pin,
    Unpin(usize),
    Write(usize, u8),
    Restored(usize),
    Mark(u8, bool),
    Unmark,
    Purge(u64, u8),
    Drop,
}

fn calls() -> impl Strategy<Value = (Call, bool, u64, u64)> {
    let call = prop_oneof![
        3 => Just(Call::Pin),
        3 => any::<usize>().prop_map(Call::Unpin),
        2 => (any::<usize>(), 1..u8::MAX).prop_map(|(nth, byte)| Call::Write(nth, byte)),
        1 => any::<usize>().prop_map(Call::Restored),
        4 => (0..8_u8, any::<bool>()).prop_map(|(level, lifo)| Call::Mark(level, lifo)),
        2 => Just(Call::Unmark),
        3 => (0..8_u64, 0..8_u8).prop_map(|(target, level)| Call::Purge(target, level)),
        1 => Just(Call::Drop),
    ];
    (call, any::<bool>(), 0..GRANULES, 1..6_u64)
}

fn lost_of(purged: &Purged) -> Vec<u64> {
    purged.runs().iter().flat_map(|run| run.start()..run.end()).collect()
}

type Pinned<'a> = (Pin<'a>, Range<u64>);

fn step<'a>(
    shared: &'a Shared,
    pins: &mut Vec<Pinned<'a>>,
    oracle: &mut Oracle,
    call: &Call,
    run: Range<u64>,
) {
    let bytes = at(run.start)..at(run.end);
    let nth = |nth: usize, pins: &[_]| (!pins.is_empty()).then(|| nth % pins.len());
    match *call {
        Call::Pin => {
            let pin = shared.pin(bytes).unwrap();
            assert_eq!(lost_of(pin.lost()), oracle.pin(&run));
            pins.push((pin, run));
        }
        Call::Unpin(which) => {
            let Some(which) = nth(which, pins) else { return };
            let (_, run) = pins.swap_remove(which);
            oracle.of(&run).for_each(|(_, granule)| granule.pins -= 1);
        }
        Call::Write(which, byte) => {
            let Some(which) = nth(which, pins) else { return };
            let (pin, run) = &pins[which];
            pin.write(Bytes::ZERO, &vec![byte; pin.len().as_usize()]).unwrap();
            oracle.of(run).for_each(|(_, granule)| granule.byte = byte);
        }
        Call::Restored(which) => {
            let Some(which) = nth(which, pins) else { return };
            pins[which].0.restored().unwrap();
            oracle.restore(&pins[which].1);
        }
        Call::Mark(level, lifo) => {
            let order = if lifo { Order::Lifo } else { Order::Fifo };
            mark(shared, run.clone(), level, order);
            oracle.mark(&run, level, order);
        }
        Call::Unmark => {
            assert_eq!(lost_of(&shared.unmark(bytes).unwrap()), oracle.unmark(&run));
        }
        Call::Purge(target, level) => {
            let freed = shared.purge(at(target), Priority::new(level).unwrap()).unwrap();
            assert_eq!(freed, at(oracle.purge(&(0..GRANULES), target, level)));
        }
        Call::Drop => {
            let gone = shared.drop_now(bytes).unwrap();
            assert_eq!(gone.get(), oracle.purge(&run, u64::MAX, 7));
        }
    }
}

fn compare(shared: &Shared, oracle: &Oracle) {
    let stats = shared.stats();
    let count = |is: fn(&Granule) -> bool| {
        Pages::new(oracle.granules.iter().filter(|granule| is(granule)).count() as u64)
    };
    assert_eq!(stats.marked, count(|granule| granule.mark.is_some()));
    assert_eq!(stats.present, count(|granule| granule.is_present));
    assert_eq!(stats.lost, count(|granule| granule.is_lost));
    for (level, bytes) in stats.by_priority.iter().enumerate() {
        let marked = oracle.granules.iter().filter_map(|granule| granule.mark);
        let marked = marked.filter(|(priority, ..)| usize::from(*priority) == level).count();
        assert_eq!(*bytes, at(marked as u64), "priority {level}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn two_users_are_as_one_that_is_plainly_right(
        program in prop::collection::vec(calls(), 1..80)
    ) {
        let one = made();
        let two = again(&one);
        let (mut pins, mut oracle) = (Vec::new(), Oracle::default());
        for (call, second, start, len) in &program {
            let shared = if *second { &two } else { &one };
            let run = *start..(start + len).min(GRANULES);
            step(shared, &mut pins, &mut oracle, call, run);
            compare(&one, &oracle);
            for (pin, run) in &pins {
                let mut buf = vec![0; pin.len().as_usize()];
                pin.read(Bytes::ZERO, &mut buf).unwrap();
                for ((_, granule), bytes) in oracle.of(run).zip(buf.chunks(page().as_usize())) {
                    prop_assert!(bytes.iter().all(|byte| *byte == granule.byte));
                }
            }
        }
    }
}
