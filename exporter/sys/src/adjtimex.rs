//! State of the clock of the kernel, by `adjtimex(2)`.
