//! A stand-in for `libnvidia-ml.so.1`, told what to say by a file.
