//! How much of what was read may wait for the runtime, in bytes, of all sources and of each.
//!
//! A record in memory is larger than its text: a short one by what every event takes, a long one by
//! what its values take. Room is taken by that before the text is read, and given back when the
//! runtime has dropped what became of it. Who waits for room is served in turn.

use std::sync::Arc;

use stepwatch_wire::Event;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of what waits, of all sources.
const QUEUE_BYTES: usize = 8 << 20;
/// Of one source: others find room, whatever it sends.
const SOURCE_BYTES: usize = QUEUE_BYTES / 8;
/// Text that is read at once.
pub(super) const PART_BYTES: usize = 16 << 10;
/// How many times larger than its text the values of a record may be.
const VALUES_OVER_TEXT: usize = 4;

/// The room of all sources.
#[derive(Debug, Clone)]
pub(crate) struct Queue(Arc<Semaphore>);

/// The room of one source within that of all.
#[derive(Debug)]
pub(crate) struct Share {
    own: Arc<Semaphore>,
    all: Queue,
}

/// Room that is taken until this is dropped.
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
    pub(super) fn of(all: &Queue) -> Self {
        Self { own: Arc::new(Semaphore::new(SOURCE_BYTES)), all: all.clone() }
    }

    pub(super) fn try_take(&self, text: &[u8]) -> Option<Taken> {
        let bytes = weight(text);
        let own = Arc::clone(&self.own).try_acquire_many_owned(bytes).ok()?;
        let all = Arc::clone(&self.all.0).try_acquire_many_owned(bytes).ok()?;
        Some(Taken { _held: Some((own, all)) })
    }

    /// Waits until there is room.
    pub(super) async fn take(&self, text: &[u8]) -> Taken {
        let bytes = weight(text);
        // Neither is ever closed.
        let own = Arc::clone(&self.own).acquire_many_owned(bytes).await.ok();
        let all = Arc::clone(&self.all.0).acquire_many_owned(bytes).await.ok();
        Taken { _held: own.zip(all) }
    }
}

/// What a text becomes in memory, at most what one source may have.
fn weight(text: &[u8]) -> u32 {
    let records = memchr::memchr_iter(b'\n', text).count();
    let bytes = VALUES_OVER_TEXT * text.len() + records * size_of::<Event>();
    bytes.min(SOURCE_BYTES) as u32
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    /// How often this much is taken before there is no room.
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
        let sources: Vec<Share> = (0..9).map(|_| Share::of(&queue)).collect();
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
        let share = Share::of(&queue);
        let part: Vec<u8> = b"{\"k\":\"hb\"}\n".iter().copied().cycle().take(PART_BYTES).collect();
        let mut taken = Vec::new();
        let parts = fill(&share, &part, &mut taken);
        let events = parts * memchr::memchr_iter(b'\n', &part).count();
        assert!(parts >= 1 && events * size_of::<Event>() <= SOURCE_BYTES, "{parts} parts");
    }
}
