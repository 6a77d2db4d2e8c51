//! [`Bytes`], [`Pages`] and [`Pfn`] are separate types, so that the compiler rejects mixed units.

use std::fmt;
use std::ops::{Add, Sub};

/// An amount of memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(u64);

/// A number of pages of one size, or the index of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pages(u64);

/// A physical page frame number, as in `/proc/PID/pagemap`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pfn(u64);

/// The size of a page, a power of two in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageSize {
    shift: u32,
}

macro_rules! unit {
    ($name:ident) => {
        impl $name {
            /// Wraps a number.
            #[must_use]
            pub const fn new(n: u64) -> Self {
                Self(n)
            }

            /// Returns the number.
            #[must_use]
            pub const fn get(self) -> u64 {
                self.0
            }

            /// Returns the number as a `usize`.
            ///
            /// # Panics
            /// If the number does not fit `usize`.
            #[must_use]
            pub fn as_usize(self) -> usize {
                usize::try_from(self.0).expect("larger than the address space")
            }
        }
    };
}

unit!(Bytes);
unit!(Pages);
unit!(Pfn);

macro_rules! amount {
    ($name:ident) => {
        impl $name {
            /// Zero.
            pub const ZERO: Self = Self(0);

            /// Returns the sum, or `None` on overflow.
            #[must_use]
            pub const fn checked_add(self, other: Self) -> Option<Self> {
                match self.0.checked_add(other.0) {
                    Some(n) => Some(Self(n)),
                    None => None,
                }
            }

            /// Returns the difference, or zero if it would be negative.
            #[must_use]
            pub const fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }

        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }
    };
}

amount!(Bytes);
amount!(Pages);

impl Bytes {
    /// Returns `n` MiB.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// Returns `n` GiB.
    #[must_use]
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }

    /// Returns the number of whole pages, rounded down.
    #[must_use]
    pub const fn pages_down(self, page: PageSize) -> Pages {
        Pages(self.0 >> page.shift)
    }

    /// Returns the number of pages, rounded up.
    #[must_use]
    pub const fn pages_up(self, page: PageSize) -> Pages {
        let part = self.0 & (page.bytes().0 - 1);
        Pages((self.0 >> page.shift) + (part != 0) as u64)
    }
}

impl Pages {
    /// Returns the length in bytes, or `None` on overflow.
    #[must_use]
    pub const fn checked_bytes(self, page: PageSize) -> Option<Bytes> {
        match self.0.checked_mul(page.bytes().0) {
            Some(n) => Some(Bytes(n)),
            None => None,
        }
    }

    /// Returns the length in bytes.
    ///
    /// # Panics
    /// On overflow; [`Pages::checked_bytes`] returns `None` instead.
    #[must_use]
    pub fn bytes(self, page: PageSize) -> Bytes {
        self.checked_bytes(page).expect("more bytes than a u64 counts")
    }
}

impl Pfn {
    /// Returns the frame number plus `pages`.
    #[must_use]
    pub const fn plus(self, pages: Pages) -> Self {
        Self(self.0 + pages.0)
    }
}

impl PageSize {
    /// Returns a page size; `None` if `bytes` is no power of two.
    #[must_use]
    pub const fn new(bytes: u64) -> Option<Self> {
        if bytes.is_power_of_two() {
            Some(Self { shift: bytes.trailing_zeros() })
        } else {
            None
        }
    }

    /// Returns the bytes in a page.
    #[must_use]
    pub const fn bytes(self) -> Bytes {
        Bytes(1 << self.shift)
    }

    /// Returns log2 of the size in bytes.
    #[must_use]
    pub const fn shift(self) -> u32 {
        self.shift
    }
}

impl fmt::Display for Bytes {
    /// Prints the amount in the largest binary unit that fits, such as `1.5 GiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, name) in
            [(60, "EiB"), (50, "PiB"), (40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")]
        {
            let unit = 1u64 << shift;
            if self.0 >= unit {
                return if self.0 % unit == 0 {
                    write!(f, "{} {name}", self.0 / unit)
                } else {
                    write!(f, "{:.1} {name}", self.0 as f64 / unit as f64)
                };
            }
        }
        write!(f, "{} B", self.0)
    }
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pages", self.0)
    }
}

impl fmt::Display for Pfn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_round_as_named() {
        let page = PageSize::new(4 << 10).unwrap();
        assert_eq!(Bytes::new(1).pages_up(page), Pages::new(1));
        assert_eq!(Bytes::new(1).pages_down(page), Pages::ZERO);
        assert_eq!(Bytes::new(u64::MAX).pages_up(page), Pages::new(1 << 52));
        assert_eq!(Pages::new(1 << 52).checked_bytes(page), None);
        assert_eq!(PageSize::new(3000), None);
    }

    #[test]
    fn amounts_read_well() {
        assert_eq!(Bytes::mib(2).to_string(), "2 MiB");
        assert_eq!(Bytes::mib(1536).to_string(), "1.5 GiB");
        assert_eq!(Bytes::new(100).to_string(), "100 B");
        assert_eq!(Bytes::new(1 << 63).to_string(), "8 EiB");
        assert_eq!(Bytes::new(u64::MAX).to_string(), "16.0 EiB");
    }
}
