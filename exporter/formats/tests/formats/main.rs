//! Logs and files of the frameworks, as they were captured or as their sources write them, and what
//! is read from them.

mod binary;
mod frameworks;
mod samples;
mod upstream;
