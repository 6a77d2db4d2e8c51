//! Tests objects of every kind, and damage.

use super::samples::{noise, text};
use super::*;
use crate::codec::with_buffer;

pub(super) fn codecs() -> Vec<Codec> {
    vec![Codec::None, Codec::Lz4, Codec::Zstd(Zstd::default())]
}

fn kind(pool: &ObjectPool, handle: Handle) -> Kind {
    pool.objects.entry(handle.index(), handle.generation()).unwrap().kind()
}

#[test]
fn every_length_of_every_kind_comes_back() {
    let word = |word: u64, len: usize| word.to_le_bytes().repeat(len / 8);
    for codec in codecs() {
        let pool = ObjectPool::options().codec(codec.clone()).build().unwrap();
        let mut all = Vec::new();
        let lens = (1..80).chain([100, 255, 256, 1000, page() - 8, page() - 1, page()]);
        for len in lens {
            let fills = [word(0, len), word(0x0102_0304_0102_0304, len), word(1 << 40, len)];
            let whole = fills.into_iter().filter(|object| len % 8 == 0 && object.len() == len);
            for object in whole.chain([text(len as u64, len), noise(len as u64, len), vec![7; len]])
            {
                all.push((pool.insert(&object).unwrap(), object));
            }
        }
        pool.check();
        let stats = pool.stats();
        stats.check().unwrap();
        let given: usize = all.iter().map(|(_, object)| object.len()).sum();
        assert_eq!((stats.objects, stats.inserted_bytes), (all.len() as u64, given as u64));
        assert_eq!(stats.stored_bytes < given as u64, codec != Codec::None);
        assert_eq!(stats.same_objects > 0, codec != Codec::None);
        let mut buf = vec![0xee; page()];
        for (handle, object) in &all {
            let len = object.len();
            assert_eq!(pool.len_of(*handle).unwrap(), len);
            buf.fill(0xee);
            assert_eq!(pool.read(*handle, &mut buf).unwrap(), len);
            assert!(buf[..len] == **object && buf[len..].iter().all(|byte| *byte == 0xee));
            let small = pool.read(*handle, &mut buf[..len - 1]);
            let said = matches!(small, Err(Error::BufferTooSmall { given, len: said })
                if given == len - 1 && said == len);
            assert!(said, "{small:?} of {len}");
            let guard = pool.get(*handle).unwrap();
            assert_eq!(*guard, **object);
            assert_eq!(guard.is_in_place(), kind(&pool, *handle) == Kind::Raw);
        }
        for n in 0..all.len() {
            let object = all[(n * 7 + 3) % all.len()].1.clone();
            pool.replace(all[n].0, &object).unwrap();
            all[n].1 = object;
        }
        pool.check();
        pool.stats().check().unwrap();
        for (handle, object) in &all {
            assert_eq!(*pool.get(*handle).unwrap(), **object);
            pool.remove(*handle).unwrap();
        }
        let stats = pool.stats();
        stats.check().unwrap();
        let left = (stats.objects, stats.stored_bytes, stats.same_objects);
        assert_eq!(left, (0, 0, 0), "{codec:?}");
    }
}

#[test]
fn what_is_filled_takes_no_slot_and_what_does_not_pay_is_raw() {
    let pool = ObjectPool::options().build().unwrap();
    let before = pool.objects.memory.pages.used();
    let filled: Vec<Handle> =
        (0..1000_u32).map(|n| pool.insert(&n.to_le_bytes().repeat(page() / 4)).unwrap()).collect();
    assert_eq!(pool.objects.memory.pages.used(), before);
    let stats = pool.stats();
    stats.check().unwrap();
    assert_eq!((stats.same_objects, stats.stored_bytes), (1000, 0));
    assert_eq!(stats.inserted_bytes, 1000 * page() as u64);
    for (n, handle) in filled.iter().enumerate() {
        assert_eq!(kind(&pool, *handle), Kind::Filled);
        assert_eq!(*pool.get(*handle).unwrap(), *(n as u32).to_le_bytes().repeat(page() / 4));
    }
    let raw = pool.insert(&noise(1, page())).unwrap();
    // Compresses by some bytes, but not to a smaller class.
    let mut hardly = noise(1, page());
    hardly[..60].fill(0);
    let hardly = pool.insert(&hardly).unwrap();
    assert_eq!((kind(&pool, raw), kind(&pool, hardly)), (Kind::Raw, Kind::Raw));
    let coded = pool.insert(&text(1, page())).unwrap();
    assert_eq!(kind(&pool, coded), Kind::Coded);
    let stats = pool.stats();
    stats.check().unwrap();
}

#[test]
fn damaged_bytes_are_an_error_and_nothing_else() {
    for codec in codecs().into_iter().skip(1) {
        let pool = ObjectPool::options().codec(codec).build().unwrap();
        let around: Vec<(Handle, Vec<u8>)> =
            (0..20).map(|n| (pool.insert(&text(n, 900)).unwrap(), text(n, 900))).collect();
        let mut buf = vec![0; page()];
        for len in [300, page()] {
            let handle = pool.insert(&text(77, len)).unwrap();
            let name = (handle.index(), handle.generation());
            let stored = pool.objects.entry(name.0, name.1).unwrap().len();
            let mut refused = 0;
            for at in 0..stored {
                pool.objects.damage(name, at);
                match pool.read(handle, &mut buf) {
                    Err(Error::Codec(CodecError::Corrupt { .. })) => refused += 1,
                    // There is no checksum, so a byte may differ, but not the length.
                    Ok(now) => assert_eq!(now, len),
                    other => panic!("{other:?}"),
                }
                let _ = (pool.get(handle).map(|guard| guard.len()), pool.len_of(handle));
                pool.objects.damage(name, at);
            }
            assert!(refused > stored / 3, "{refused} of {stored}");
            assert_eq!(*pool.get(handle).unwrap(), *text(77, len));
            pool.objects.damage(name, stored - 1);
            pool.remove(handle).unwrap();
        }
        assert!(around.iter().all(|(handle, object)| *pool.get(*handle).unwrap() == **object));
    }
}

#[test]
fn a_codec_that_there_is_not_makes_no_pool() {
    let pool = ObjectPool::options().codec(Codec::Zstd(Zstd::new(1000))).build();
    assert!(matches!(pool, Err(Error::Codec(CodecError::Level { given: 1000, .. }))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn as_a_map_with_codecs(
        ops in prop::collection::vec(op(), 1..300), zstd: bool,
    ) {
        let codec = if zstd { Codec::Zstd(Zstd::default()) } else { Codec::Lz4 };
        run(&ObjectPool::options().codec(codec).build().unwrap(), ops);
    }
}

#[test]
fn a_destructor_of_a_thread_may_store_and_read() {
    struct AtEnd(std::sync::Arc<ObjectPool>, std::sync::mpsc::Sender<bool>);
    impl Drop for AtEnd {
        fn drop(&mut self) {
            let (object, mut buf) = (text(1, 900), vec![0; page()]);
            let handle = self.0.insert(&object).unwrap();
            let len = self.0.read(handle, &mut buf).unwrap();
            self.1.send(buf[..len] == object).unwrap();
        }
    }
    thread_local!(static AT_END: std::cell::OnceCell<AtEnd> = const { std::cell::OnceCell::new() });
    for (codec, has_buffers) in
        codecs().into_iter().flat_map(|codec| [(codec.clone(), false), (codec, true)])
    {
        let pool = std::sync::Arc::new(ObjectPool::options().codec(codec).build().unwrap());
        let (said, hears) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            if has_buffers {
                with_buffer(1, |_| ());
            }
            let other = std::sync::Arc::clone(&pool);
            AT_END.with(|at_end| assert!(at_end.set(AtEnd(other, said)).is_ok()));
            let handle = pool.insert(&text(2, 900)).unwrap();
            assert_eq!(*pool.get(handle).unwrap(), *text(2, 900));
        });
        thread.join().unwrap();
        assert!(hears.recv().unwrap());
    }
}
