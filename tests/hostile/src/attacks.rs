//! The attacks, one file and one line each.

mod bodies;
mod descriptors;
mod discovered;
mod events;
mod exporter;
mod flood;
mod hello;
mod http2;
mod idle;
mod invented;
mod large;
mod links;
mod logs;
mod otlp;
mod processes;
mod ras;
mod readers;
mod remote_write;
mod series;
mod several;
mod sites;
mod sockets;
mod store;
mod textfile;
mod unfinished;
mod unread;
mod values;
mod words;

use anyhow::Context;

use crate::attack::Attack;

pub(crate) const ALL: &[Attack] = &[
    otlp::ATTACK,
    otlp::ABANDONED,
    otlp::ATTRIBUTES,
    otlp::QUEUE,
    http2::HEADS,
    http2::BODIES,
    flood::ATTACK,
    bodies::ATTACK,
    bodies::SMALL,
    bodies::LINES,
    hello::ATTACK,
    processes::WRAPPED,
    processes::MAPPED,
    processes::EVICTED,
    events::MODELS,
    events::LINES,
    events::RESTARTS,
    events::FLAPS,
    invented::ATTACK,
    invented::MANY,
    invented::DATAGRAMS,
    exporter::ATTACK,
    exporter::NESTED,
    exporter::SIGNALS,
    exporter::FAULTS,
    store::ATTACK,
    links::ATTACK,
    discovered::LINKS,
    idle::EXPORTER,
    idle::ALERTER,
    idle::BUSY_EXPORTER,
    idle::BUSY_ALERTER,
    unread::EXPORTER,
    unread::ALERTER,
    unread::LISTS,
    readers::ATTACK,
    series::ATTACK,
    sockets::ATTACK,
    descriptors::ATTACK,
    unfinished::STREAMS,
    unfinished::NAMES,
    unfinished::LOGS,
    logs::MANY,
    discovered::LOGS,
    logs::SPARSE,
    logs::HISTORY,
    sites::ATTACK,
    textfile::ATTACK,
    ras::ATTACK,
    words::ATTACK,
    large::SILENCES,
    large::TEXTS,
    large::ALERTS,
    values::EVENTS,
    values::FILES,
    values::ALERTS,
    values::SERIES,
    remote_write::BOMBS,
    remote_write::SERIES,
    remote_write::WATCHED,
    remote_write::SAMPLES,
    remote_write::RUNS,
    several::ATTACK,
];

pub(crate) fn named(name: &str) -> anyhow::Result<&'static Attack> {
    let names = || ALL.iter().map(|a| a.name).collect::<Vec<_>>().join(", ");
    ALL.iter().find(|a| a.name == name).with_context(|| format!("no attack {name}; there are {}", names()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_attack_is_found_by_its_name() {
        let names: BTreeSet<_> = ALL.iter().map(|a| a.name).collect();
        assert_eq!(names.len(), ALL.len());
        assert!(names.iter().all(|name| named(name).is_ok_and(|a| a.name == *name)));
        assert!(named("kindness").unwrap_err().to_string().contains("otlp-bomb"));
    }
}
