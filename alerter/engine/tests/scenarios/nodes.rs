//! Reports about nodes, through the whole engine: faults, links, throttled GPUs, memory errors,
//! setups, and how they become one incident with the run they hit.
#![allow(clippy::panic, reason = "a test fails by panicking")]

mod advice;
mod anew;
mod bench;
mod causes;
mod chaos;
mod dark;
mod energy;
mod falls;
mod faults;
mod gpus;
mod kernel_messages;
mod links;
mod merge;
mod outages;
mod save_windows;
mod saves;
mod scraped;
mod setups;
mod shared;
mod successors;
mod tenants;
mod waste;
mod words;
