//! Tests `glebe lend`, with a double of Mooncake's package, and with the package itself if the
//! variable `GLEBE_TEST_MOONCAKE_PYTHON` names a Python that has it.

mod lending;
mod real;
mod recalled;
mod troubles;
