//! tests/fakes
