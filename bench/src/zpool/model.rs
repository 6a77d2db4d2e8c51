//! [`Model`]: a pool of which only the arithmetic is there: which zspage an object lies in.
//!
//! It does what the kernel's zsmalloc does since Linux 6.3: objects go to the first zspage of the
//! fullest group that has room; a zspage that changes its group goes to the front of the new one;
//! compaction moves from the emptiest to the fullest until no whole zspage can be freed. A real
//! pool that does the same must hold as many pages. Lengths in bytes; every operation O(1), a
//! compaction O(objects moved).

use glebe::units::{Bytes, Pages};
use glebe::zpool::{SizeClass, Table};

/// Empty, ten tenths of fullness, full.
const GROUPS: usize = 12;
const FULL: usize = GROUPS - 1;
const NONE: u32 = u32::MAX;

/// An object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object(u32);

/// A zspage, or a place for one.
#[derive(Debug)]
struct Zspage {
    class: usize,
    objects: Vec<u32>,
    group: usize,
    next: u32,
    previous: u32,
}

/// Where an object lies: in which zspage, and at which place of its list.
#[derive(Clone, Copy, Debug)]
struct Place {
    zspage: u32,
    at: u32,
}

#[derive(Debug)]
struct Class {
    shape: SizeClass,
    /// The first zspage of each group.
    groups: [u32; GROUPS],
    zspages: u64,
    objects: u64,
}

/// The pool.
#[derive(Debug)]
pub struct Model {
    table: Table,
    /// In front of each object.
    header: usize,
    classes: Vec<Class>,
    zspages: Vec<Zspage>,
    free_zspages: Vec<u32>,
    places: Vec<Place>,
    free_places: Vec<u32>,
}

impl Model {
    /// An empty pool with the classes of `table`, that puts `header` bytes in front of objects
    /// that do not take a page each.
    #[must_use]
    pub fn new(table: Table, header: Bytes) -> Self {
        let class = |shape: &SizeClass| Class {
            shape: *shape,
            groups: [NONE; GROUPS],
            zspages: 0,
            objects: 0,
        };
        let classes = table.classes().iter().map(class).collect();
        Self {
            table,
            header: header.as_usize(),
            classes,
            zspages: Vec::new(),
            free_zspages: Vec::new(),
            places: Vec::new(),
            free_places: Vec::new(),
        }
    }

    /// Stores an object.
    ///
    /// # Panics
    /// If it has no bytes or more than a page.
    pub fn store(&mut self, len: usize) -> Object {
        let page = self.table.rules().page.bytes().as_usize();
        assert!(len <= page, "{len} bytes do not fit into a page of {page}");
        // A page has no room for a header; the kernel keeps it elsewhere.
        let slot = (len + self.header).min(page);
        let class = self.table.class_of(slot).expect("1 byte to a page");
        let zspage = self.with_room(class);
        let object = self.free_places.pop().unwrap_or_else(|| {
            self.places.push(Place { zspage: NONE, at: 0 });
            self.places.len() as u32 - 1
        });
        self.put(object, zspage);
        self.regroup(zspage);
        self.classes[class].objects += 1;
        Object(object)
    }

    /// Drops an object.
    pub fn drop(&mut self, object: Object) {
        let zspage = self.take(object.0);
        self.free_places.push(object.0);
        self.classes[self.zspages[zspage as usize].class].objects -= 1;
        self.regroup(zspage);
        self.free_if_empty(zspage);
    }

    /// Moves objects until no class can free a whole zspage; returns how many.
    pub fn compact(&mut self) -> u64 {
        (0..self.classes.len()).rev().map(|class| self.compact_class(class)).sum()
    }

    /// Pages of all zspages.
    #[must_use]
    pub fn pages(&self) -> Pages {
        Pages::new(self.classes.iter().map(|c| c.zspages * c.shape.pages.get()).sum())
    }

    /// Pages that compaction would free.
    #[must_use]
    pub fn freeable(&self) -> Pages {
        let of = |c: &Class| freeable(c) * c.shape.pages.get();
        Pages::new(self.classes.iter().map(of).sum())
    }

    fn compact_class(&mut self, class: usize) -> u64 {
        let mut moved = 0;
        let mut to = NONE;
        while freeable(&self.classes[class]) > 0 {
            if to == NONE {
                to = self.isolate(class, (1..FULL).rev());
            }
            let from = self.isolate(class, 1..FULL);
            if from == NONE {
                break;
            }
            let room = self.classes[class].shape.objects as usize;
            while self.zspages[to as usize].objects.len() < room {
                let Some(object) = self.zspages[from as usize].objects.last() else { break };
                let object = *object;
                self.take(object);
                self.put(object, to);
                moved += 1;
            }
            self.link(from);
            self.free_if_empty(from);
            if self.zspages[to as usize].objects.len() == room {
                self.link(to);
                to = NONE;
            }
        }
        if to != NONE {
            self.link(to);
        }
        moved
    }

    /// Takes the first zspage out of the first of `groups` that has one.
    fn isolate(&mut self, class: usize, mut groups: impl Iterator<Item = usize>) -> u32 {
        let first = |group: usize| self.classes[class].groups[group];
        let Some(zspage) = groups.find_map(|group| (first(group) != NONE).then(|| first(group)))
        else {
            return NONE;
        };
        self.unlink(zspage);
        zspage
    }

    /// The zspage that the next object of `class` goes to.
    fn with_room(&mut self, class: usize) -> u32 {
        let groups = &self.classes[class].groups;
        if let Some(zspage) = groups[..FULL].iter().rev().find(|first| **first != NONE) {
            return *zspage;
        }
        let fresh = Zspage { class, objects: Vec::new(), group: 0, next: NONE, previous: NONE };
        let zspage = match self.free_zspages.pop() {
            Some(zspage) => {
                self.zspages[zspage as usize] = fresh;
                zspage
            }
            None => {
                self.zspages.push(fresh);
                self.zspages.len() as u32 - 1
            }
        };
        self.classes[class].zspages += 1;
        self.link(zspage);
        zspage
    }

    fn put(&mut self, object: u32, zspage: u32) {
        let objects = &mut self.zspages[zspage as usize].objects;
        self.places[object as usize] = Place { zspage, at: objects.len() as u32 };
        objects.push(object);
    }

    /// Takes an object out of its zspage, which is returned.
    fn take(&mut self, object: u32) -> u32 {
        let Place { zspage, at } = self.places[object as usize];
        let objects = &mut self.zspages[zspage as usize].objects;
        assert_eq!(objects.swap_remove(at as usize), object, "dropped twice");
        if let Some(moved) = objects.get(at as usize) {
            self.places[*moved as usize].at = at;
        }
        zspage
    }

    fn free_if_empty(&mut self, zspage: u32) {
        if self.zspages[zspage as usize].objects.is_empty() {
            self.unlink(zspage);
            self.classes[self.zspages[zspage as usize].class].zspages -= 1;
            self.free_zspages.push(zspage);
        }
    }

    fn regroup(&mut self, zspage: u32) {
        let of = &self.zspages[zspage as usize];
        if of.group != group(of.objects.len(), &self.classes[of.class].shape) {
            self.unlink(zspage);
            self.link(zspage);
        }
    }

    /// Puts a zspage to the front of its group.
    fn link(&mut self, zspage: u32) {
        let of = &mut self.zspages[zspage as usize];
        let class = &mut self.classes[of.class];
        of.group = group(of.objects.len(), &class.shape);
        let first = std::mem::replace(&mut class.groups[of.group], zspage);
        (of.previous, of.next) = (NONE, first);
        if first != NONE {
            self.zspages[first as usize].previous = zspage;
        }
    }

    fn unlink(&mut self, zspage: u32) {
        let Zspage { class, group, next, previous, .. } = self.zspages[zspage as usize];
        match previous {
            NONE => self.classes[class].groups[group] = next,
            previous => self.zspages[previous as usize].next = next,
        }
        if next != NONE {
            self.zspages[next as usize].previous = previous;
        }
    }
}

/// Zspages of a class that compaction would free.
fn freeable(class: &Class) -> u64 {
    class.zspages - class.objects.div_ceil(u64::from(class.shape.objects))
}

/// The group of a zspage with `objects`.
fn group(objects: usize, shape: &SizeClass) -> usize {
    let slots = shape.objects as usize;
    match objects {
        0 => 0,
        all if all == slots => FULL,
        some => 100 * some / slots / 10 + 1,
    }
}
