//! The properties of kinds of receivers that matter for routing.

/// The properties of a kind of receiver, with the defaults of most kinds.
pub(super) trait ReceiverKind {
    /// Whether the receiver wakes people, unless `wakes` is set.
    fn wakes(&self) -> bool {
        false
    }

    /// The service that repeats a call, as text.
    fn repeated_by(&self) -> Option<&'static str> {
        None
    }

    /// Why the receiver gets no reports; `None` if it does.
    fn shows_no_reports(&self) -> Option<&'static str> {
        None
    }

    /// Whether the receiver shows later changes of an incident in addition to its first message.
    fn is_thread(&self) -> bool {
        false
    }
}
