//! Compares a volatile cache of decoded pictures with a cache of fixed size. The volatile cache
//! uses free memory, and decodes a picture again after the kernel took its pages.
//!
//! `image_cache [DIR]` shows the PNG files of `DIR`, or pictures that it draws. A tight memory
//! cgroup (`systemd-run --scope -p MemoryMax=24M`) makes the kernel take pages.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use glebe_volatile::units::Bytes;
use glebe_volatile::{BuildError, Cache};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

const DRAWN: u32 = 48;
const SIDE: u32 = 256;
const VIEWS: u32 = 300;

struct Picture {
    path: PathBuf,
    len: usize,
    sum: u64,
}

impl Picture {
    fn open(path: &Path) -> Outcome<Self> {
        let reader = reader(path)?;
        let len = reader.output_buffer_size().ok_or("a picture larger than memory")?;
        let mut picture = Self { path: path.to_owned(), len, sum: 0 };
        let mut pixels = vec![0; len];
        picture.decode(&mut pixels)?;
        picture.sum = sum(&pixels);
        Ok(picture)
    }

    fn decode(&self, pixels: &mut [u8]) -> Result<(), png::DecodingError> {
        reader(&self.path)?.next_frame(pixels).map(drop)
    }
}

fn reader(path: &Path) -> Result<png::Reader<BufReader<File>>, png::DecodingError> {
    let mut decoder = png::Decoder::new(BufReader::new(File::open(path)?));
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    decoder.read_info()
}

fn sum(pixels: &[u8]) -> u64 {
    pixels.iter().map(|byte| u64::from(*byte)).sum()
}

trait Viewer {
    fn view(&mut self, pictures: &[Picture], which: usize) -> Outcome<u64>;
    fn decoded(&self) -> u64;
}

struct Volatile(Cache<usize, u8>);

impl Viewer for Volatile {
    fn view(&mut self, pictures: &[Picture], which: usize) -> Outcome<u64> {
        let picture = &pictures[which];
        let entry = self.0.get_or_build(which, picture.len, |pixels| picture.decode(pixels));
        Ok(sum(&entry.map_err(|why: BuildError<_>| format!("{}: {why}", picture.path.display()))?))
    }

    fn decoded(&self) -> u64 {
        self.0.stats().built
    }
}

struct Fixed {
    pictures: HashMap<usize, (u64, Vec<u8>)>,
    most: usize,
    len: usize,
    views: u64,
    decoded: u64,
}

impl Viewer for Fixed {
    fn view(&mut self, pictures: &[Picture], which: usize) -> Outcome<u64> {
        self.views += 1;
        if let Some((viewed, pixels)) = self.pictures.get_mut(&which) {
            *viewed = self.views;
            return Ok(sum(pixels));
        }
        let mut pixels = vec![0; pictures[which].len];
        pictures[which].decode(&mut pixels)?;
        self.decoded += 1;
        let sum = sum(&pixels);
        self.len += pixels.len();
        self.pictures.insert(which, (self.views, pixels));
        while self.len > self.most {
            let oldest = self.pictures.iter().min_by_key(|(_, (viewed, _))| *viewed);
            let Some(oldest) = oldest.map(|(which, _)| *which) else { break };
            self.len -= self.pictures.remove(&oldest).map_or(0, |(_, pixels)| pixels.len());
        }
        Ok(sum)
    }

    fn decoded(&self) -> u64 {
        self.decoded
    }
}

fn show(viewer: &mut impl Viewer, pictures: &[Picture]) -> Outcome<(u64, Duration)> {
    let (before, start) = (viewer.decoded(), Instant::now());
    let mut random = 1_u64;
    for _ in 0..VIEWS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let unit = (random >> 11) as f64 / (1_u64 << 53) as f64;
        let which = (pictures.len() as f64).powf(unit) as usize - 1;
        if viewer.view(pictures, which)? != pictures[which].sum {
            return Err(format!("{} is wrong", pictures[which].path.display()).into());
        }
    }
    Ok((viewer.decoded() - before, start.elapsed()))
}

fn draw(path: &Path, number: u32) -> Outcome {
    let wave = |at: u32, step: u32| f64::from(at * step + number * 7).mul_add(0.05, 0.5).sin();
    let channel = |x, y, step| ((wave(x, step) + wave(y, step + 1) + 2.0) * 63.0) as u8;
    let pixels: Vec<u8> = (0..SIDE * SIDE)
        .map(|at| (at % SIDE, at / SIDE))
        .flat_map(|(x, y)| [channel(x, y, 1), channel(y, x, 2), channel(x, x ^ y, 3), 255])
        .collect();
    let mut encoder = png::Encoder::new(BufWriter::new(File::create(path)?), SIDE, SIDE);
    encoder.set_color(png::ColorType::Rgba);
    encoder.set_depth(png::BitDepth::Eight);
    Ok(encoder.write_header()?.write_image_data(&pixels)?)
}

struct Drawn(PathBuf);

impl Drawn {
    fn new() -> Outcome<Self> {
        let name = format!("glebe-image-cache-{}", std::process::id());
        let drawn = Self(std::env::temp_dir().join(name));
        fs::create_dir(&drawn.0)?;
        (0..DRAWN).try_for_each(|nth| draw(&drawn.0.join(format!("{nth:02}.png")), nth))?;
        Ok(drawn)
    }
}

impl Drop for Drawn {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn pictures_in(dir: &Path) -> Outcome<Vec<Picture>> {
    let mut paths: Vec<_> = fs::read_dir(dir)?.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "png"));
    paths.sort();
    let pictures: Vec<_> = paths.iter().filter_map(|path| Picture::open(path).ok()).collect();
    if pictures.is_empty() {
        return Err(format!("no PNG file in {}", dir.display()).into());
    }
    Ok(pictures)
}

fn main() -> Outcome {
    let mut out = io::stdout();
    let given = std::env::args_os().nth(1).map(PathBuf::from);
    let drawn = if given.is_none() { Some(Drawn::new()?) } else { None };
    let dir = given.as_deref().or(drawn.as_ref().map(|drawn| &*drawn.0)).ok_or("no directory")?;
    let pictures = pictures_in(dir)?;
    let all: usize = pictures.iter().map(|picture| picture.len).sum();
    let quarter = all / 4;
    writeln!(out, "{} pictures, decoded {}", pictures.len(), Bytes::new(all as u64))?;

    let mut fixed = Fixed { pictures: HashMap::new(), most: quarter, len: 0, views: 0, decoded: 0 };
    // Addresses cost little memory, so the cache gets at least twice the bytes of all pictures.
    let addresses = Bytes::new(2 * all as u64).max(Bytes::mib(16));
    let mut volatile = Volatile(Cache::new(addresses)?);
    for round in ["first", "again", "after memory was short"] {
        if round.starts_with("after") {
            let lost = volatile.0.drop_marked()?;
            writeln!(
                out,
                "{lost} of pictures are dropped, as the kernel does when memory is short"
            )?;
        }
        for (who, (decoded, time)) in [
            ("volatile", show(&mut volatile, &pictures)?),
            ("fixed size", show(&mut fixed, &pictures)?),
        ] {
            let per_s = f64::from(VIEWS) / time.as_secs_f64();
            writeln!(out, "{round}: {who} decoded {decoded}, {per_s:.0} views/s")?;
        }
    }
    writeln!(out, "{}", volatile.0.stats())?;
    Ok(())
}
