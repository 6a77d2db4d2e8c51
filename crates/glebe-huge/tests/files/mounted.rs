//! Files on hugetlbfs.
