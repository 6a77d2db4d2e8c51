//! Tests plans.

use proptest::prelude::*;

use super::*;
use crate::volatile::Priority;

const MIB: u64 = 1 << 20;

fn group(limit: u64, used: u64, files: u64, idle: u64) -> Pressure {
    let [limit, used, files, idle_files] = [limit, used, files, idle].map(Bytes::mib);
    Pressure { scope: Scope::Group, limit, used, files, idle_files, ..Pressure::default() }
}

/// MiB by class: priorities 0 and 4, waste, objects, budgets, reserve.
fn part(mib: [u64; 6]) -> PartStats {
    let mut part = PartStats { is_charged: true, ..PartStats::default() };
    let volatile = |priority| Class::Volatile(Priority::new(priority).unwrap());
    let rest = [Class::Waste, Class::Objects, Class::Budgets, Class::Reserve];
    let classes = [volatile(0), volatile(4)].into_iter().chain(rest);
    classes.zip(mib).for_each(|(class, mib)| part.sheddable[class.place()] = Bytes::mib(mib));
    part
}

fn told(targets: &Targets) -> [u64; 6] {
    let mib = |place: usize| targets.0[place].get() / MIB;
    [mib(0), mib(4), mib(8), mib(9), mib(10), mib(11)]
}

#[test]
fn each_class_gives_all_it_has_before_the_next_gives_any() {
    let parts = [part([1, 2, 1, 0, 3, 8]), part([1, 0, 0, 4, 0, 0])];
    // A row has used, files, idle files, and targets by class, in MiB. If less than 8 (the margin)
    // of 100 (the limit) is free, `plan` aims at 10.
    let table = [
        ((100, 8, 8), [0; 6]),
        ((100, 7, 7), [2, 1, 0, 0, 0, 0]),
        ((100, 5, 5), [2, 2, 1, 0, 0, 0]),
        ((96, 0, 0), [2, 2, 1, 1, 0, 0]),
        ((98, 0, 0), [2, 2, 1, 3, 0, 0]),
        ((100, 0, 0), [2, 2, 1, 4, 1, 0]),
        ((104, 0, 0), [2, 2, 1, 4, 1, 0]),
        ((100, 60, 0), [2, 2, 0, 0, 0, 0]),
        ((93, 60, 0), [2, 1, 0, 0, 0, 0]),
        ((92, 60, 0), [0; 6]),
        ((100, 4, 0), [2, 2, 1, 1, 0, 0]),
    ];
    for ((used, files, idle), gone) in table {
        let pressure = group(100, used, files, idle);
        let policy = Policy::default().margin(Bytes::mib(8));
        assert_eq!(told(&plan(&parts, &pressure, &policy)), gone, "{used} {files} {idle}");
    }
}

#[test]
fn memory_that_counts_in_no_group_helps_the_machine_alone() {
    let parts = [PartStats { is_charged: false, ..part([0, 0, 0, 0, 0, 64]) }];
    let policy = Policy::default().margin(Bytes::mib(8));
    let pressure = group(100, 98, 0, 0);
    assert!(plan(&parts, &pressure, &policy).is_calm());
    let pressure = Pressure { scope: Scope::Machine, ..pressure };
    assert_eq!(told(&plan(&parts, &pressure, &policy)), [0, 0, 0, 0, 0, 8]);
}

#[test]
fn what_is_about_to_come_is_not_asked_for_again() {
    let mut parts = [part([1, 0, 0, 0, 64, 64])];
    parts[0].coming = Bytes::mib(4);
    let policy = Policy::default().margin(Bytes::mib(8));
    assert_eq!(told(&plan(&parts, &group(100, 100, 0, 0), &policy)), [1, 0, 0, 0, 5, 0]);
    parts[0].coming = Bytes::mib(40);
    assert_eq!(told(&plan(&parts, &group(100, 100, 0, 0), &policy)), [1, 0, 0, 0, 0, 0]);
}

#[test]
fn files_matter_only_where_a_group_has_a_limit_and_the_policy_says_so() {
    let parts = [part([64, 0, 0, 0, 0, 0])];
    let policy = Policy::default().margin(Bytes::mib(8));
    let full = group(100, 100, 50, 0);
    assert_eq!(told(&plan(&parts, &full, &policy)), [10, 0, 0, 0, 0, 0]);
    assert!(plan(&parts, &full, &policy.keep_files(false)).is_calm());
    let machine = Pressure { scope: Scope::Machine, ..full };
    assert!(plan(&parts, &machine, &policy).is_calm());
}

#[test]
fn the_margin_grows_with_the_speed_of_the_rise_to_half_and_is_a_quarter_at_rest() {
    use std::time::Duration;
    let policy = Policy::default().lead(Duration::from_millis(100));
    let rising = |mib_a_second| {
        let rise_a_second = Bytes::mib(mib_a_second);
        policy.margin_at(&Pressure { rise_a_second, ..group(320, 0, 0, 0) })
    };
    assert_eq!(rising(0), Bytes::mib(20));
    assert_eq!(rising(100), Bytes::mib(30));
    assert_eq!(rising(1 << 40), Bytes::mib(160));
    let late = |delay_ms| {
        let policy = policy.late_by(Duration::from_millis(delay_ms));
        policy.margin_at(&Pressure { rise_a_second: Bytes::mib(100), ..group(320, 0, 0, 0) })
    };
    assert_eq!(late(25), Bytes::mib(30), "within the lead");
    let none = Policy::default().lead(Duration::ZERO);
    assert_eq!(none.late_by(Duration::from_secs(1)), none);
    assert_eq!(late(50), Bytes::mib(40));
    assert_eq!(late(3_600_000), Bytes::mib(160));
    assert_eq!(Policy::default().still_margin(Bytes::gib(64)), Bytes::mib(256));
    assert_eq!(Policy::default().still_margin(Bytes::mib(8)), Bytes::mib(2));
    assert_eq!(Policy::default().still_margin(Bytes::ZERO), Bytes::ZERO);
}

fn parts() -> impl Strategy<Value = Vec<PartStats>> {
    let amount = prop_oneof![Just(0), 0..64 * MIB, Just(u64::MAX)].prop_map(Bytes::new);
    let part = (prop::array::uniform12(amount), any::<bool>(), 0..MIB).prop_map(
        |(sheddable, is_charged, coming)| PartStats {
            is_lazy: false,
            sheddable,
            is_charged,
            coming: Bytes::new(coming),
        },
    );
    prop::collection::vec(part, 0..5)
}

fn pressures() -> impl Strategy<Value = Pressure> {
    let amount = || prop_oneof![0..256 * MIB, any::<u64>()].prop_map(Bytes::new);
    let numbers = (amount(), amount(), amount(), amount(), amount());
    (any::<bool>(), numbers).prop_map(|(is_group, (limit, used, files, idle_files, rise))| {
        let scope = if is_group { Scope::Group } else { Scope::Machine };
        Pressure { scope, limit, used, files, idle_files, rise_a_second: rise }
    })
}

proptest! {
    #[test]
    fn any_plan_keeps_the_rules(parts in parts(), pressure in pressures()) {
        let policy = Policy::default();
        let targets = plan(&parts, &pressure, &policy);
        let (short, crowded) = (policy.short(&pressure), policy.crowded(&pressure));
        prop_assert!(targets.total() <= short.max(crowded));
        if pressure.room() >= policy.margin_at(&pressure) {
            let others = Class::all().filter(|class| !class.is_volatile());
            prop_assert!(others.into_iter().all(|class| targets.of(class) == Bytes::ZERO));
        }
        let there = |class| there(&parts, class, pressure.scope);
        prop_assert!(Class::all().all(|class| targets.of(class) <= there(class)));
        let last = Class::all().filter(|class| targets.of(*class) > Bytes::ZERO).last();
        for class in Class::all().take_while(|class| Some(*class) < last) {
            prop_assert_eq!(targets.of(class), there(class), "{}", class);
        }
        let all: u128 = Class::all().map(|class| u128::from(there(class).get())).sum();
        let coming = sum(&parts, pressure.scope, |part| part.coming);
        let least = all.min(short.saturating_sub(coming).get().into());
        prop_assert!(u128::from(targets.total().get()) >= least);
    }
}

#[test]
fn the_places_of_classes_are_their_order() {
    let places: Vec<_> = Class::all().map(Class::place).collect();
    assert_eq!(places, (0..Class::COUNT).collect::<Vec<_>>());
    assert!(Class::all().zip(Class::all().skip(1)).all(|(one, next)| one < next));
}
