//! First-class allocation that cannot fail, second-class tenants in what is idle.
