//! Services of the node, and the fabric manager's log since boot.

use super::item::Check;
use super::node::Node;
use super::report::{Findings, Verdict};
use crate::collectors::host::fabric_manager::{MESSAGES, Message};
use stepwatch_wire::conditions::NodeCondition;

pub(super) const CHECK: Check = Check {
    name: "services",
    about: "fabric manager, the container runtime and the other services of the node run",
    needs: &["services", "fabric_manager"],
    run,
};

fn run(node: &Node<'_>) -> Findings {
    let mut found = Findings::default();
    for event in node.events() {
        let name = event.name.as_deref().unwrap_or_default();
        if NodeCondition::parse(name) != Some(NodeCondition::ServiceDown) || event.code != Some(1) {
            continue;
        }
        let serious = event.level.as_deref() == Some("error");
        let verdict = if serious { Verdict::Unhealthy } else { Verdict::Warning };
        let service = event.extra.get("device").and_then(|v| v.as_str()).unwrap_or_default().to_owned();
        found
            .add(verdict, event.text.as_deref().unwrap_or(name))
            .action(format!("see why: systemctl status {service}"))
            .device(service);
    }
    for row in node.set(&MESSAGES) {
        let Some(message) = Message::named(row.label("message")) else { continue };
        let (verdict, what) = match message {
            Message::NvswitchFatal => (Verdict::Unhealthy, "a fatal NVSwitch error"),
            Message::VersionMismatch => {
                (Verdict::Unhealthy, "that its version does not match that of the driver")
            }
            Message::NvswitchNonfatal => (Verdict::Warning, "an NVSwitch error that was not fatal"),
            Message::UnknownGpu => (Verdict::Warning, "that a GPU of a job is not in its NVLink fabric"),
            Message::NoNvswitch | Message::Error => continue,
        };
        let times = if row.value > 1.0 { format!(" ({:.0} times)", row.value) } else { String::new() };
        found
            .add(verdict, format!("since the boot, fabric manager logged {what}{times}"))
            .device(message.as_str())
            .action("see its log");
    }
    found.or_ok(|| "none is missing".into())
}

#[cfg(test)]
mod tests {
    use stepwatch_wire::{Event, Kind, Value};

    use super::super::tests::says;
    use super::*;
    use crate::samples::Samples;

    #[test]
    fn a_service_that_is_down_and_what_fabric_manager_logged() {
        let mut event = Event {
            name: Some("service_down".into()),
            code: Some(1),
            level: Some("error".into()),
            text: Some("the service nvidia-fabricmanager is enabled and does not run".into()),
            ..Event::new(Kind::Hw)
        };
        event.extra.insert("device".into(), Value::Text("nvidia-fabricmanager".into()));
        let mut samples = Samples::default();
        for (message, count) in
            [("nvswitch_fatal", 2u64), ("unknown_gpu", 1), ("error", 5), ("no_nvswitch", 1)]
        {
            samples.set(&MESSAGES, &[message], count);
        }
        insta::assert_snapshot!(says(&CHECK, samples, vec![event]), @r"
        warning   services since the boot, fabric manager logged that a GPU of a job is not in its NVLink fabric; see its log
        unhealthy services the service nvidia-fabricmanager is enabled and does not run; see why: systemctl status nvidia-fabricmanager
        unhealthy services since the boot, fabric manager logged a fatal NVSwitch error (2 times); see its log
        ");
        insta::assert_snapshot!(says(&CHECK, Samples::default(), Vec::new()), @"ok        services none is missing");
    }
}
