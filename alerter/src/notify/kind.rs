//! What distinguishes kinds of receivers for those who route to them.

/// What the configuration of a kind of receiver says of it, where it is not as most are.
pub(super) trait ReceiverKind {
    /// Whether it wakes people, unless `wakes` says otherwise.
    fn wakes(&self) -> bool {
        false
    }

    /// What repeats a call that was made, in words.
    fn repeated_by(&self) -> Option<&'static str> {
        None
    }

    /// Why it is sent no reports.
    fn shows_no_reports(&self) -> Option<&'static str> {
        None
    }

    /// Whether it shows later changes of an incident besides its first message.
    fn is_thread(&self) -> bool {
        false
    }
}
