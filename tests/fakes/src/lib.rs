//! Fakes of the services that Stepwatch uses: Slack, PagerDuty, a mail relay, an OpenID provider,
//! and a receiver of signed webhooks.
//!
//! Each fake is a real server on a free loopback port that keeps state and refuses what the real
//! service refuses, so that a test can check what a person would have seen, and need not count
//! calls. Each has a [`Script`] of faults, including the most difficult one: the message was
//! accepted, and the connection died before the answer. Slack and PagerDuty have a page for people
//! at `/`.
//!
//! This is not a mock library: the fakes have no expectations.

mod alertmanager;
mod echo;
mod fault;
mod html;
mod oidc;
mod pagerduty;
mod pulse;
mod server;
mod slack;
mod smtp;
mod webhook;

pub use alertmanager::AlertmanagerApi;
pub use echo::Echo;
pub use fault::{Fault, Script};
pub use oidc::{OidcProvider, Signing};
pub use pagerduty::{Alert, AlertState, LogEntry, Page, PagerDuty, Standing, is_about, pagerduty_signature};
pub use pulse::Pulse;
pub use server::{Answer, Fake, Received, Reply, Service, TimedOut};
pub use slack::{
    Channel, File, HistoryLimit, Post, RateLimit, Slack, SlackSocket, Whisper, interaction_body,
    slack_signature,
};
pub use smtp::{Encryption, FakeSmtp, Mail, Smtp, SmtpFault};
pub use webhook::{Delivery, WebhookSink, signature};

/// Slack's Web API and its incoming webhooks.
pub type FakeSlack = Fake<Slack>;
/// PagerDuty's Events API v2.
pub type FakePagerDuty = Fake<PagerDuty>;
/// A service whose answers repeat whatever it was sent.
pub type FakeEcho = Fake<Echo>;
/// An OpenID provider.
pub type FakeOidc = Fake<OidcProvider>;
/// A dead man's switch.
pub type FakePulse = Fake<Pulse>;
/// A receiver of signed, idempotent webhooks.
pub type FakeWebhook = Fake<WebhookSink>;
