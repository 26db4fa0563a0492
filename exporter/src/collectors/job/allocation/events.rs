//! Streams jobs: when one begins, changes or ends, and every ten minutes, so that an alerter that
//! starts late gets the jobs of all GPUs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use stepwatch_wire::{Event, Kind, Value};

use super::found::Job;
use crate::clock::unix_now;
use crate::collector::Context;
use crate::origin::Origin;

const AGAIN: Duration = Duration::from_mins(10);
/// The most devices and runs that an event of a job names.
const MAX_NAMED: usize = 64;

#[derive(Debug, Default)]
pub(super) struct JobEvents(BTreeMap<String, Published>);

#[derive(Debug)]
struct Published {
    event: Event,
    at: Instant,
}

impl JobEvents {
    pub(super) fn report(&mut self, cx: &Context<'_>, jobs: &[Job], now: Instant) {
        let gone = self.0.extract_if(.., |id, _| jobs.iter().all(|j| j.id != *id));
        let gone: Vec<Event> = gone.map(|(_, published)| published.event).collect();
        for event in gone {
            publish(cx, ended(event));
        }
        for job in jobs {
            let event = job.event();
            let last = self.0.get(&job.id);
            let same = last.is_some_and(|last| last.event == event);
            if same && last.is_some_and(|last| now.saturating_duration_since(last.at) < AGAIN) {
                continue;
            }
            let mut current = event.clone();
            if same {
                current.extra.insert("again".into(), Value::Bool(true));
            }
            self.0.insert(job.id.clone(), Published { event, at: now });
            publish(cx, current);
        }
    }
}

fn publish(cx: &Context<'_>, event: Event) {
    cx.hub.publish(Origin::Node, Event { ts: Some(unix_now()), ..event });
}

fn ended(mut event: Event) -> Event {
    event.code = Some(0);
    event.text =
        event.extra.get("job").and_then(Value::as_str).map(|job| format!("job {job} has left this node"));
    event
}

impl Job {
    fn event(&self) -> Event {
        let i = &self.identity;
        let mut event = Event {
            name: Some("job".into()),
            code: Some(1),
            level: Some("info".into()),
            text: Some(self.sentence()),
            uid: self.uid,
            ..Event::new(Kind::Health)
        };
        let mut say = |key: &str, value: Value| _ = event.extra.insert(key.into(), value);
        say("job", Value::Text(self.id.clone()));
        if self.attested {
            say("attested", Value::Bool(true));
        }
        if let Some(left) = &self.left {
            let pids = left.iter().take(MAX_NAMED).map(|pid| Value::Number(f64::from(*pid)));
            say("over", Value::Bool(true));
            say("pids", Value::List(pids.collect()));
        }
        let texts = [
            ("job_name", &i.name),
            ("user", &i.user),
            ("account", &i.account),
            ("partition", &i.partition),
            ("qos", &i.qos),
            ("nodes", &i.nodes),
        ];
        for (key, text) in texts {
            if let Some(text) = text {
                say(key, Value::Text(text.clone()));
            }
        }
        if !self.scheduler.as_str().is_empty() {
            say("scheduler", Value::Text(self.scheduler.as_str().into()));
        }
        for (key, time) in [("started", i.start), ("ends", i.end)] {
            if let Some(time) = time {
                say(key, Value::Number(time));
            }
        }
        let unnamed = self.gpus.saturating_sub(self.devices.len().min(MAX_NAMED));
        if unnamed > 0 {
            say("unnamed_gpus", Value::Number(unnamed as f64));
        }
        let gpus = self.devices.iter().map(|d| match d.gi {
            Some(gi) => format!("{}/{gi}", d.gpu),
            None => d.gpu.clone(),
        });
        for (key, names) in
            [("gpus", gpus.collect()), ("runs", self.runs.iter().cloned().collect::<Vec<_>>())]
        {
            if !names.is_empty() {
                say(key, Value::List(names.into_iter().take(MAX_NAMED).map(Value::Text).collect()));
            }
        }
        event
    }

    fn sentence(&self) -> String {
        let i = &self.identity;
        let scheduler = match self.scheduler.as_str() {
            "" => String::new(),
            scheduler => format!("{scheduler} "),
        };
        let name = i.name.as_ref().filter(|n| !self.id.ends_with(n.as_str())).map(|n| format!(" ({n})"));
        let user = i.user.as_ref().map(|u| format!(" of {u}"));
        let gpus = match self.gpus {
            0 => "without a GPU".to_owned(),
            1 => "on 1 GPU".to_owned(),
            n => format!("on {n} GPUs"),
        };
        let [name, user] = [name, user].map(Option::unwrap_or_default);
        if let Some(left) = &self.left {
            let many = left.len();
            let job = format!("{scheduler}job {}{name}{user}", self.id);
            return format!("{job} is over, and has training processes left: {many}");
        }
        format!("{scheduler}job {}{name}{user} is here, {gpus}", self.id)
    }
}
