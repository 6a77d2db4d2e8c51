//! memfd_create(2) with `MFD_HUGETLB`.
