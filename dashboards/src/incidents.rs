//! Incidents and on-call: what is open, is somebody notified, and do answers come back?

use crate::head::{self, INCIDENTS_PAGE};
use crate::layout::{Board, Chart, Row};
use crate::model::Unit;
use crate::series::{Expr, of};

pub(crate) fn board() -> Board {
    Board {
        uid: "stepwatch-incidents",
        title: "Stepwatch / Incidents and on-call",
        description: "Incidents of the alerter, the messages about them, and the people and services that answer.",
        variables: head::of_alerter,
        annotations: || vec![head::incidents()],
        rows: vec![at_a_glance(), incidents(), delivery(), waiting(), answers(), on_call(), other_programs()],
    }
}

fn one(name: &'static str) -> Expr {
    of(name).max("instance")
}

fn at_a_glance() -> Row {
    let open = |severity: &str, state: &str| {
        of("stepwatch_alerter_incidents")
            .with(&format!(r#"severity="{severity}", state="{state}""#))
            .max("instance")
            .sum("")
    };
    Row::open(
        "Does anything wait for somebody?",
        vec![
            Chart::number(
                "Pages nobody answered",
                "How many open pages has nobody acknowledged?",
                Unit::Count,
            )
            .threshold(1.0, "red")
            .show(open("page", "open"), "{{cluster}} pages")
            .link("Incidents", INCIDENTS_PAGE),
            Chart::number("Pages acknowledged", "How many open pages does somebody work on?", Unit::Count)
                .show(open("page", "acknowledged"), "{{cluster}} pages"),
            Chart::number("Open tickets", "How many tickets are open?", Unit::Count)
                .threshold(1.0, "orange")
                .show(open("ticket", "open"), "{{cluster}} tickets"),
            Chart::number(
                "Oldest page not delivered",
                "Is there a page that no receiver has taken?",
                Unit::Seconds,
            )
            .threshold(15.0, "orange")
            .threshold(60.0, "red")
            .show(one("stepwatch_alerter_outbox_oldest_page_age_seconds"), "{{instance}}"),
            Chart::number("Receivers down", "How many receivers take nothing?", Unit::Count)
                .threshold(1.0, "red")
                .show(
                    of("stepwatch_alerter_receiver_down")
                        .max("instance, receiver")
                        .is(1.0)
                        .sum("")
                        .or_zero(&of("stepwatch_alerter_build_info").max("")),
                    "{{cluster}} down",
                ),
            Chart::number(
                "Silenced incidents",
                "Of how many open incidents is nobody notified because of a silence?",
                Unit::Count,
            )
            .show(one("stepwatch_alerter_incidents_silenced"), "{{instance}}"),
        ],
    )
}

fn incidents() -> Row {
    Row::open(
        "What happens?",
        vec![
            Chart::lines(
                "Open incidents",
                "How many incidents are open, by severity and state?",
                Unit::Count,
            )
            .stacked()
            .from_zero()
            .show(
                of("stepwatch_alerter_incidents").max("instance, state, severity").sum("state, severity"),
                "{{severity}} {{state}}",
            ),
            Chart::lines("Opened, by kind", "Which kinds of incident opened, an hour?", Unit::Count)
                .bars()
                .from_zero()
                .show(
                    of("stepwatch_alerter_incidents_opened_total")
                        .increase_in("1h")
                        .max("instance, kind, severity")
                        .sum("kind, severity")
                        .above(0.0)
                        .top(),
                    "{{severity}} {{kind}}",
                ),
            Chart::lines(
                "Resolved and still firing",
                "How many come back because a person resolved them too early?",
                Unit::Count,
            )
            .from_zero()
            .show(
                of("stepwatch_alerter_incidents_resolved_still_firing")
                    .max("instance, severity")
                    .sum("severity"),
                "{{severity}}",
            ),
            Chart::lines(
                "Silences",
                "How many silences are in force, and how many are yet to begin?",
                Unit::Count,
            )
            .from_zero()
            .show(
                of("stepwatch_alerter_silences")
                    .with(r#"state!="expired""#)
                    .max("instance, state")
                    .sum("state"),
                "{{state}}",
            )
            .show(
                of("stepwatch_alerter_silences_forgotten_total").increase().max("instance"),
                "forgotten for want of room",
            ),
        ],
    )
}

fn delivery() -> Row {
    let rate = |name| of(name).increase().max("instance, receiver, action").sum("receiver");
    let latency = of("stepwatch_alerter_notification_latency_seconds_bucket")
        .rate()
        .max("instance, receiver, le")
        .sum("receiver, le");
    Row::open(
        "Is everybody notified?",
        vec![
            Chart::lines("Messages", "How many messages did which receiver take?", Unit::Count)
                .bars()
                .from_zero()
                .show(rate("stepwatch_alerter_notifications_sent_total"), "{{receiver}}"),
            Chart::lines("Messages given up", "Which receiver refused messages for good?", Unit::Count)
                .bars()
                .from_zero()
                .show(rate("stepwatch_alerter_notifications_failed_total"), "{{receiver}}"),
            Chart::lines(
                "Latency",
                "How long from the decision until a receiver has the message?",
                Unit::Seconds,
            )
            .log()
            .show(latency.quantile_of_buckets(0.5), "{{receiver}} median")
            .show(latency.quantile_of_buckets(0.99), "{{receiver}} 99 %"),
            Chart::lines(
                "Attempts that are repeated",
                "Why does a message not get through at once?",
                Unit::Count,
            )
            .bars()
            .from_zero()
            .show(
                of("stepwatch_alerter_notification_retries_total")
                    .increase()
                    .max("instance, receiver, reason")
                    .sum("receiver, reason"),
                "{{receiver}} {{reason}}",
            ),
        ],
    )
}

fn waiting() -> Row {
    Row::open(
        "Who is not notified, or not yet?",
        vec![
            Chart::states("Receivers", "Which receiver takes nothing, and since when?")
                .word(1.0, "down", "red")
                .word(0.0, "up", "green")
                .show(
                    of("stepwatch_alerter_receiver_down").max("instance, receiver"),
                    "{{instance}} {{receiver}}",
                ),
            Chart::lines("Waiting messages", "How much is not delivered yet?", Unit::Count)
                .from_zero()
                .show(one("stepwatch_alerter_outbox_depth"), "{{instance}}"),
            Chart::lines(
                "Left out",
                "Which messages were left out by a budget, or sent from memory?",
                Unit::Count,
            )
            .from_zero()
            .show(
                of("stepwatch_alerter_notifications_left_out_total").increase().max("instance, receiver"),
                "{{receiver}} over its budget",
            )
            .show(
                of("stepwatch_alerter_notifications_unrecorded_total").increase().max("instance"),
                "{{instance}} sent from memory",
            )
            .show(
                of("stepwatch_alerter_notifications_unrecorded_left_out_total").increase().max("instance"),
                "{{instance}} neither recorded nor held",
            ),
            Chart::lines(
                "Templates that fail",
                "Which receiver has the built-in words instead of yours?",
                Unit::Count,
            )
            .from_zero()
            .show(
                of("stepwatch_alerter_template_failures_total").increase().max("instance, receiver"),
                "{{instance}} {{receiver}}",
            ),
            Chart::lines("Heartbeats", "Does the watchdog hear from us?", Unit::Count)
                .bars()
                .from_zero()
                .show(
                    of("stepwatch_alerter_heartbeats_total").increase().max("instance, result"),
                    "{{instance}} {{result}}",
                ),
        ],
    )
}

fn answers() -> Row {
    Row::folded(
        "Do answers come back?",
        vec![
            Chart::lines(
                "Callbacks",
                "What do Slack and PagerDuty send back, and what comes of it?",
                Unit::Count,
            )
            .bars()
            .from_zero()
            .show(
                of("stepwatch_alerter_callbacks_total")
                    .increase()
                    .max("instance, service, result")
                    .sum("service, result"),
                "{{service}} {{result}}",
            ),
            Chart::lines(
                "Slack sockets",
                "Do clicks in Slack arrive? 0 means that they do not.",
                Unit::Count,
            )
            .from_zero()
            .show(one("stepwatch_alerter_slack_sockets"), "{{instance}} open")
            .show(
                of("stepwatch_alerter_slack_socket_failures_total").increase().max("instance"),
                "{{instance}} failures",
            ),
            Chart::lines("Audit log", "Who changes something, by which door?", Unit::Count)
                .bars()
                .from_zero()
                .show(
                    of("stepwatch_alerter_audit_entries_total")
                        .increase()
                        .max("instance, door, outcome")
                        .sum("door, outcome"),
                    "{{door}} {{outcome}}",
                ),
            Chart::lines("Gaps of the audit log", "What does the audit log not have?", Unit::Count)
                .from_zero()
                .show(
                    of("stepwatch_alerter_audit_unwritten_total").increase().max("instance"),
                    "{{instance}} not written",
                )
                .show(
                    of("stepwatch_alerter_audit_forgotten_total").increase().max("instance"),
                    "{{instance}} forgotten",
                ),
        ],
    )
}

fn on_call() -> Row {
    Row::folded(
        "Do we know who is on call?",
        vec![
            Chart::lines(
                "Age of calendars",
                "How old is the copy of which schedule's calendar?",
                Unit::Seconds,
            )
            .from_zero()
            .show(
                of("stepwatch_alerter_calendar_read_timestamp_seconds").max("instance, schedule").age(),
                "{{instance}} {{schedule}}",
            ),
            Chart::lines(
                "Calendars that fail",
                "Which calendar cannot be read, or not in full?",
                Unit::Count,
            )
            .from_zero()
            .show(
                of("stepwatch_alerter_calendar_failures_total").increase().max("instance, schedule"),
                "{{instance}} {{schedule}} failures",
            )
            .show(
                of("stepwatch_alerter_calendar_events_skipped").max("instance, schedule"),
                "{{instance}} {{schedule}} events left out",
            ),
            Chart::lines(
                "Overrides",
                "How many overrides of schedules are in force, and how many are yet to begin?",
                Unit::Count,
            )
            .from_zero()
            .show(of("stepwatch_alerter_oncall_overrides").max("instance, state").sum("state"), "{{state}}")
            .show(
                of("stepwatch_alerter_oncall_overrides_forgotten_total").increase().max("instance"),
                "forgotten for want of room",
            ),
        ],
    )
}

fn other_programs() -> Row {
    Row::folded(
        "What do other programs report?",
        vec![
            Chart::lines("Alerts that fire", "How many alerts of Prometheus and others fire?", Unit::Count)
                .from_zero()
                .show(one("stepwatch_alerter_alerts"), "{{instance}}"),
            Chart::lines("Alerts received", "How many come in, and what becomes of them?", Unit::PerSecond)
                .from_zero()
                .show(
                    of("stepwatch_alerter_alerts_received_total").rate().max("instance"),
                    "{{instance}} received",
                )
                .show(
                    of("stepwatch_alerter_alerts_invalid_total").rate().max("instance"),
                    "{{instance}} invalid",
                )
                .show(of("stepwatch_alerter_alerts_cut_total").rate().max("instance"), "{{instance}} cut")
                .show(
                    of("stepwatch_alerter_alerts_refused_total").rate().max("instance"),
                    "{{instance}} refused",
                ),
        ],
    )
}
