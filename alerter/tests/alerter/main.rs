//! The program from outside: its configuration, and what it finds in recorded runs.

mod backtest;
mod sample_config;
mod straggler;
