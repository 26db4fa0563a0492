//! The whole engine from outside: events, alerts and answers in, incidents and messages out, on
//! virtual time. One program, because each links the engine anew.

mod admission;
mod beside;
mod episodes;
mod nodes;
mod noise;
mod overrides;
mod ranks;
mod replay;
mod reports;
mod sentences;
mod silences;
mod state;
mod stored_layout;
mod timeline;
