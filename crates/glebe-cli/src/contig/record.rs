//! [`Recorded`] counts the pages that `glebe contig reserve --record` added to a pool and that no
//! release gave back. It holds the file's lock.

use std::error::Error;
use std::path::Path;

use glebe::contig::PoolLock;
use glebe::internal::sys::files::lock_file::{LockFile, Locked};
use glebe::internal::sys::files::private::own_dir;
use glebe::internal::sys::processes::process::boot_id;
use glebe::units::{Bytes, PageSize};

pub struct Recorded {
    locked: Locked,
    boot: String,
    size: PageSize,
    pub pages: u64,
}

impl Recorded {
    /// Opens a record of pages of `size`, or makes an empty one.
    ///
    /// # Errors
    /// If the file belongs to another user, or counts pages of another size.
    pub fn open(path: &Path, size: PageSize) -> Result<Self, Box<dyn Error>> {
        if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            if !dir.exists() {
                own_dir(dir)?;
            }
        }
        let locked = LockFile::at(path).lock(PoolLock::PATIENCE)?;
        let (text, boot) = (String::from_utf8(locked.record()?)?, boot_id()?);
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        let pages = match fields[..] {
            // A boot empties pools.
            [] => 0,
            [of, ..] if of != boot => 0,
            [_, bytes, pages] => {
                let (bytes, pages) = (bytes.parse::<u64>()?, pages.parse()?);
                let own = size.bytes();
                if bytes != own.get() && pages > 0 {
                    let at = path.display();
                    return Err(
                        format!("{at} counts pages of {}, not {own}", Bytes::new(bytes)).into()
                    );
                }
                pages
            }
            _ => return Err(format!("{} is no record of pages", path.display()).into()),
        };
        Ok(Self { locked, boot, size, pages })
    }

    pub fn set(&mut self, pages: u64) -> Result<(), Box<dyn Error>> {
        self.pages = pages;
        let text = format!("{} {} {pages}\n", self.boot, self.size.bytes().get());
        Ok(self.locked.set_record(text.as_bytes())?)
    }
}
