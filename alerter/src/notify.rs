//! Receivers, which deliver a message to a person's screen or phone, or to a program.
//!
//! A notifier sends one message once and returns the result. It does not retry, wait, or keep state
//! between calls, except for the memory that it returns. Those are tasks of the outbox, whose state
//! survives a crash.
//!
//! Each kind of receiver has one file with its configuration, rendering, sending and evaluation of
//! answers, and one line in `notifiers!` below.

mod attempt;
mod budget;
pub(crate) mod http;
mod kind;
mod mistake;
mod notifier;
mod report;
mod sample;
mod secret;
mod templates;
pub(crate) mod text;
pub(crate) mod trial;

#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use attempt::{Attempt, Failure, FailureClass, Picture, Receipt, Ring};
pub use budget::Budget;
use kind::ReceiverKind;
pub use mistake::Mistake;
pub use notifier::{CallbackConfig, Gallery, Notifier, Pace, PictureError};
pub(crate) use report::{IncidentLine, ScheduledReport};
pub use sample::test_notification;
pub use secret::SecretSource;
pub(crate) use secret::url_of;
pub use templates::{FactTemplate, LinkTemplate, TemplatesConfig};
pub(crate) use text::{hex, line};

macro_rules! notifiers {
    ($($module:ident,)*) => {
        $(pub mod $module;)*

        /// An entry of `receivers:`: a name and exactly one kind.
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct ReceiverConfig {
            pub name: String,
            /// Whether its messages may wake a person. Only pages fall back to such a receiver. By
            /// default only PagerDuty wakes.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub wakes: Option<bool>,
            /// The limit of messages that wake nobody.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub budget: Option<Budget>,
            /// The receiver's own templates, which replace the common ones.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub templates: Option<templates::TemplatesConfig>,
            $(#[serde(default, skip_serializing_if = "Option::is_none")] pub $module: Option<$module::Config>,)*
        }

        impl ReceiverConfig {
            /// The settings of the receiver's kind; `None` if there are none.
            fn kind(&self) -> Option<&dyn ReceiverKind> {
                let mut kind: Option<&dyn ReceiverKind> = None;
                $(if let Some(config) = &self.$module { kind = Some(config); })*
                kind
            }

            /// Whether the receiver may wake a person: with each call, unless the service repeats
            /// the call ([`Self::repeated_by`]).
            pub fn wakes(&self) -> bool {
                self.wakes.unwrap_or(self.kind().is_some_and(ReceiverKind::wakes))
            }

            /// The keys of all kinds of receivers.
            pub const KINDS: &[&str] = &[$(stringify!($module)),*];

            /// The service that repeats a call, as text, if a second call has no effect.
            pub fn repeated_by(&self) -> Option<&'static str> {
                self.kind()?.repeated_by()
            }

            /// Why the receiver gets no reports, which must not wake anybody.
            pub fn shows_no_reports(&self) -> Option<&'static str> {
                let by_kind = self.kind().and_then(ReceiverKind::shows_no_reports);
                by_kind.or_else(|| self.wakes().then_some("it wakes people (wakes: true)"))
            }

            /// Whether the receiver shows later changes of an incident in addition to its first
            /// message.
            pub fn is_thread(&self) -> bool {
                self.kind().is_some_and(ReceiverKind::is_thread)
            }

            /// Reads the secrets and builds the notifier.
            pub fn build(&self) -> Result<Arc<dyn Notifier>, Mistake> {
                let mut built: Vec<Result<Arc<dyn Notifier>, Mistake>> = Vec::new();
                $(if let Some(config) = &self.$module {
                    let one = config.build().map(|n| Arc::new(n) as Arc<dyn Notifier>);
                    built.push(one.map_err(|mistake| mistake.under(stringify!($module))));
                })*
                match (built.len(), built.pop()) {
                    (1, Some(one)) => budget::within(self.budget, one?),
                    (n, _) => {
                        let kinds = Self::KINDS.join(", ");
                        Err(format!("has {n} kinds, needs exactly one of: {kinds}").into())
                    }
                }
            }
        }
    };
}

notifiers! { slack, pagerduty, email, webhook, alertmanager, stdout, }
