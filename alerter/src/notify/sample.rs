//! A sample message to test a receiver or a template, with all optional parts.

use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Cause, Kind, Observation, Plan, PlanCost, Remedy, Severity, Suspect, Target};
use stepwatch_respond::effect::{Action, Notification};
use stepwatch_respond::matcher::Labels;
use stepwatch_respond::message::{
    Checkpoint, Cost, Details, Evidence, Fact, Link, LinkRole, Message, Reason, RunDetails, Status,
};

/// A test message. Its title and summary say that it is only a test.
pub fn test_notification(receiver: &str, incident: &str, now: Ts) -> Notification {
    let fact = |label: &str, text: &str| Fact { label: label.into(), text: text.into() };
    Notification {
        incident: incident.to_owned(),
        receiver: receiver.to_owned(),
        seq: 1,
        action: Action::Trigger,
        idem_key: format!("{incident}/{receiver}/1"),
        page: false,
        users: Vec::new(),
        slack_ids: Vec::new(),
        path: None,
        despite_suppression: false,
        left_to: None,
        source: String::new(),
        reporter: String::new(),
        message: Message {
            incident: incident.to_owned(),
            run: "test-run".into(),
            nodes: Vec::new(),
            kind: Kind::GradSpike,
            severity: Severity::Info,
            status: Status::Firing,
            ended: None,
            title: "TEST: this is how an incident looks here".into(),
            summary:
                "Sent by `stepwatch-alerter notify test`. No run is in trouble, nobody needs to do anything."
                    .into(),
            marked_up: false,
            facts: vec![
                fact("Since step", "12345"),
                fact("Value", "27.3 (expected 0.9)"),
                fact("Suspect", "rank 17 on node gpu-042: first to show it"),
                fact("Last good checkpoint", "step 12000, 9m ago"),
                fact("Cost", "$1,310 an hour"),
            ],
            details: details(now),
            because: Reason::Test,
            reason: "a test of this receiver".into(),
            links: vec![Link {
                role: LinkRole::Runbook,
                text: "Runbook".into(),
                href: "https://example.com/runbook".into(),
            }],
            chart: None,
            labels: Labels::new(),
            started_at: now,
            at: now,
        },
    }
}

/// The data of the message, with all optional parts.
pub(crate) fn details(now: Ts) -> Details {
    let seen = Observation::Stated { words: "first to show it".into() };
    Details {
        cause: Some(Cause::Numerics),
        evidence: Evidence {
            signal: "grad_norm".into(),
            value: Some(27.3),
            expected: Some(0.9),
            score: Some(38.0),
            text: "27.3 (expected 0.9)".into(),
            step: Some(12_345),
            announced_step: Some(12_348),
        },
        suspects: vec![Suspect::new(Target::rank(17, Some("gpu-042")), seen)],
        run: RunDetails {
            name: "test-run".into(),
            gpus: Some(512),
            nodes: 64,
            attempt: 2,
            last_step: Some(12_348),
            step_seconds: Some(1.6),
            start_seconds: Some(310.0),
        },
        checkpoint: Some(Checkpoint {
            step: Some(12_000),
            at: Ts(now.0 - Span::secs(540).0),
            age_seconds: 540.0,
            after_onset: false,
            good_step: Some(12_000),
            unsaved_seconds: 557.0,
        }),
        cost: Some(Cost { per_gpu_hour: 2.56, per_hour: 1310.72, so_far: 4.37 }),
        advice: Some("roll back to step 12000".into()),
        plan: Some(Box::new(plan())),
        level: 1,
        returns: 1,
        acknowledged_by: Some("alice".into()),
        unacknowledged_by: None,
    }
}

fn plan() -> Plan {
    let roll_back = Remedy::RollBack {
        checkpoint: 12_000,
        skip_from: 12_340,
        skip_to: 12_545,
        if_it_stays: false,
        later_checkpoints: 0,
        spoilt: None,
        may_be_gone: false,
        passed_over: Vec::new(),
    };
    let cost = PlanCost {
        gpus: Some(512),
        dollars_per_gpu_hour: Some(2.56),
        steps_redone: Some(345),
        redo_seconds: Some(1449.0),
        ..PlanCost::default()
    };
    Plan { remedies: vec![roll_back], cost }
}
