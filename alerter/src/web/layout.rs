//! The common frame of pages: the navigation, the number of unacknowledged incidents, who is on
//! call, and the age of the page.

use axum::http::HeaderMap;
use stepwatch_respond::incident::State;

use super::form::remembered;
use super::format::clock;
use super::page::Result;
use crate::api::Api;
use crate::api::auth::Caller;
use crate::clock::wall;
use crate::store::Filter;

/// A page in the navigation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Incidents,
    Runs,
    Nodes,
    Silences,
    OnCall,
    Receivers,
    Detectors,
    Runbooks,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Tab {
    pub(super) place: Place,
    pub(super) href: &'static str,
    pub(super) label: &'static str,
}

/// The tabs of the navigation, in order.
const TABS: &[Tab] = &[
    Tab { place: Place::Incidents, href: "/", label: "Incidents" },
    Tab { place: Place::Runs, href: "/runs", label: "Runs" },
    Tab { place: Place::Nodes, href: "/nodes", label: "Nodes" },
    Tab { place: Place::Silences, href: "/silences", label: "Silences" },
    Tab { place: Place::OnCall, href: "/oncall", label: "On call" },
    Tab { place: Place::Receivers, href: "/receivers", label: "Receivers" },
    Tab { place: Place::Detectors, href: "/detectors", label: "Detectors" },
    Tab { place: Place::Runbooks, href: "/runbooks", label: "Runbooks" },
];

/// The people on call of one schedule; empty if there are none.
#[derive(Debug, Clone)]
pub(super) struct Duty {
    pub(super) schedule: String,
    pub(super) users: String,
}

/// The data of `base.html` around the content of a page.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    pub(super) place: Place,
    pub(super) title: String,
    /// The URL of this page with its query, which a refresh requests.
    pub(super) url: String,
    /// Whether the page refreshes itself.
    pub(super) renews: bool,
    /// Whether it also refreshes without a script, which loses form input.
    pub(super) reloads: bool,
    /// The number of unacknowledged tickets and pages.
    pub(super) unacknowledged: usize,
    pub(super) on_call: Vec<Duty>,
    /// The time of rendering.
    pub(super) at: String,
    /// The authenticated caller.
    pub(super) who: Option<String>,
    /// For a caller without authentication: the name in the cookie, which may be empty.
    pub(super) name: Option<String>,
    /// The CSRF token for forms of the session.
    pub(super) csrf: Option<String>,
    pub(super) store_refuses: bool,
    /// The error of the request that led to this page.
    pub(super) alarm: Option<String>,
    pub(super) version: &'static str,
}

impl Frame {
    /// # Errors
    /// The store does not answer.
    pub(super) async fn new(
        api: &Api,
        caller: &Caller,
        place: Place,
        title: &str,
        url: &str,
    ) -> Result<Self> {
        let unanswered =
            Filter { state: Some(State::Open), unresolved: true, no_info: true, ..Filter::default() };
        let (view, oncall, now) = (api.runtime.views.get(), api.oncall(), wall());
        // Pages are decided by the engine's clock.
        let decides = api.runtime.clock.now();
        let duty = |schedule: &str| Duty {
            schedule: schedule.to_owned(),
            users: oncall.duty(schedule, decides).unwrap_or_default().users.join(", "),
        };
        Ok(Self {
            place,
            title: title.to_owned(),
            url: url.to_owned(),
            renews: true,
            reloads: true,
            unacknowledged: api.count(caller, &unanswered).await?,
            on_call: oncall.config().schedules.iter().map(|s| duty(&s.name)).collect(),
            at: clock(now),
            who: caller.actor(),
            name: caller.actor().is_none().then(String::new),
            csrf: caller.csrf(),
            store_refuses: view.store_refuses,
            alarm: None,
            version: stepwatch_kit::build_info::VERSION,
        })
    }

    /// Adds the name in the browser's cookie.
    pub(super) fn of(self, headers: &HeaderMap) -> Self {
        Self { name: self.name.map(|_| remembered(headers)), ..self }
    }

    /// Disables reloads, for a page with form input.
    pub(super) fn typed(self) -> Self {
        Self { reloads: false, ..self }
    }

    /// The tabs of the navigation, and whether each is this page.
    pub(super) fn nav(&self) -> impl Iterator<Item = (&'static Tab, bool)> {
        let place = self.place;
        TABS.iter().map(move |tab| (tab, tab.place == place))
    }
}
