//! The input queue of the runtime: the reports of the sources, and a limit on their bytes, for all
//! sources and for each.
//!
//! A record in memory is larger than its text: a short one by the fixed size of an event, a long
//! one by the size of its values. That size is reserved before parsing, and released when the
//! runtime has dropped the events. Readers wait for room in order.

use std::sync::Arc;

use stepwatch_wire::Event;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The most bytes in the queue, of all sources.
const QUEUE_BYTES: usize = 8 << 20;
/// The most bytes of one source, so that others always find room.
const SOURCE_BYTES: usize = QUEUE_BYTES / 8;
/// The number of bytes of text that are parsed at once.
pub(crate) const PART_BYTES: usize = 16 << 10;
/// The largest ratio of a record's values in memory to its text.
const VALUES_OVER_TEXT: usize = 4;

/// Reports of one source, in order.
#[derive(Debug)]
pub struct Feed {
    pub source: Arc<str>,
    pub news: News,
    /// The reserved room in the queue, released on drop.
    pub room: Taken,
}

#[derive(Debug)]
pub enum News {
    Events(Vec<Event>),
    Up {
        /// Whether the configuration allows the source to forward events of other nodes.
        many_nodes: bool,
    },
    Down {
        reason: String,
    },
    /// The source was removed from the configuration or the discovery.
    Gone,
}

/// The room for all sources.
#[derive(Debug, Clone)]
pub(crate) struct Queue(Arc<Semaphore>);

/// The room for one source within that of all.
#[derive(Debug)]
pub(crate) struct Share {
    own: Arc<Semaphore>,
    all: Queue,
}

/// Reserved room, released when this is dropped.
#[derive(Debug, Default)]
pub struct Taken {
    _held: Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)>,
}

impl Default for Queue {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(QUEUE_BYTES)))
    }
}

impl Share {
    pub(crate) fn new(all: &Queue) -> Self {
        Self { own: Arc::new(Semaphore::new(SOURCE_BYTES)), all: all.clone() }
    }

    pub(crate) fn try_take(&self, text: &[u8]) -> Option<Taken> {
        let bytes = weight(text);
        let own = Arc::clone(&self.own).try_acquire_many_owned(bytes).ok()?;
        let all = Arc::clone(&self.all.0).try_acquire_many_owned(bytes).ok()?;
        Some(Taken { _held: Some((own, all)) })
    }

    /// Waits until there is room.
    pub(crate) async fn take(&self, text: &[u8]) -> Taken {
        let bytes = weight(text);
        // The semaphores are never closed.
        let own = Arc::clone(&self.own).acquire_many_owned(bytes).await.ok();
        let all = Arc::clone(&self.all.0).acquire_many_owned(bytes).await.ok();
        Taken { _held: own.zip(all) }
    }
}

/// The size of a text's events in memory, limited to the share of one source.
fn weight(text: &[u8]) -> u32 {
    let records = memchr::memchr_iter(b'\n', text).count();
    let bytes = VALUES_OVER_TEXT * text.len() + records * size_of::<Event>();
    bytes.min(SOURCE_BYTES) as u32
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    /// The number of times that this text can be reserved until there is no room.
    fn fill(share: &Share, text: &[u8], taken: &mut Vec<Taken>) -> usize {
        let had = taken.len();
        while let Some(more) = share.try_take(text) {
            taken.push(more);
        }
        taken.len() - had
    }

    #[tokio::test]
    async fn one_source_leaves_room_to_others_and_all_have_a_limit() {
        let queue = Queue::default();
        let (mut taken, part) = (Vec::new(), [b'x'; PART_BYTES]);
        let sources: Vec<Share> = (0..9).map(|_| Share::new(&queue)).collect();
        for share in &sources[..8] {
            assert_eq!(fill(share, &part, &mut taken), 16);
        }
        assert_eq!(fill(&sources[8], &part, &mut taken), 0, "all have their limit");
        assert!(sources[8].take(&part).now_or_never().is_none());
        taken.pop();
        assert!(sources[8].take(&part).now_or_never().is_some());
    }

    #[test]
    fn short_records_weigh_what_an_event_takes() {
        let queue = Queue::default();
        let share = Share::new(&queue);
        let part: Vec<u8> = b"{\"k\":\"hb\"}\n".iter().copied().cycle().take(PART_BYTES).collect();
        let mut taken = Vec::new();
        let parts = fill(&share, &part, &mut taken);
        let events = parts * memchr::memchr_iter(b'\n', &part).count();
        assert!(parts >= 1 && events * size_of::<Event>() <= SOURCE_BYTES, "{parts} parts");
    }
}
