//! The stand-ins refuse what the real services refuse.

mod pagerduty;
mod slack;
mod webhook;
