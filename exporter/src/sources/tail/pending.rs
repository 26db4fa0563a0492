//! Limits the memory for incomplete lines and records of a file to the share of its user.

use stepwatch_formats::LogReader;

use super::follow::Follower;
use super::labels::Labels;
use crate::principal::Principal;
use crate::source::SourceHandle;
use crate::unfinished::{self, Room, Share};

#[derive(Debug)]
pub(super) struct Pending {
    share: Share,
    /// Whether the lack of room was logged.
    logged: bool,
}

impl Pending {
    pub(super) fn new(room: &Room) -> Self {
        Self { share: room.share(), logged: false }
    }

    /// Discards incomplete text for which there is no room.
    pub(super) fn check(
        &mut self,
        follower: &mut Follower,
        reader: &mut LogReader,
        health: &SourceHandle,
        labels: &Labels,
    ) {
        let whose = Principal::from_uid(follower.uid());
        if self.share.hold(whose, follower.pending_bytes() + reader.pending_bytes()) {
            return;
        }
        follower.give_up_pending();
        reader.give_up_pending();
        health.dropped(unfinished::LIMIT, 1);
        if !std::mem::replace(&mut self.logged, true) {
            tracing::warn!(path = %labels.path.display(), %whose, "there is no room for what is unfinished in a tailed file");
        }
    }
}
