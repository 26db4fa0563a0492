//! Examples of requests and responses. Tests parse each as its type.

use serde_json::{Value, json};

pub(crate) fn by() -> Value {
    json!({"by": "alice"})
}

pub(crate) fn resolution() -> Value {
    json!({"by": "alice", "as": "real"})
}

pub(crate) fn note() -> Value {
    json!({"by": "alice", "note": "the switch is being replaced"})
}

pub(crate) fn incident() -> Value {
    json!({
        "id": "01KAHTZ7", "run": "llama-70b", "nodes": [], "kind": "grad_spike", "cause": "numerics", "severity": "page",
        "state": "open", "signal": "grad_norm", "title": "gradient spike",
        "summary": "grad norm 27.3 is 31.38x its usual 0.87, and the loss is rising with it",
        "facts": {"now": 27.3, "times": 31.38, "usual": 0.87},
        "start_step": 12340, "opened_step": 12343, "detected_step": 12345, "end_step": null,
        "value": 27.3, "expected": 0.87, "score": 31.2,
        "suspects": [{
            "target": {"rank": {"rank": 17, "local_rank": null, "node": null}}, "what": "rank 17",
            "why": "stopped at step 12340, the others reached 12345",
            "evidence": [{
                "observation": {"stopped_early": {"step": 12340, "others": 12345}},
                "words": "stopped at step 12340, the others reached 12345",
                "value": 12340.0, "expected": 12345.0, "unit": "step", "strength": 1.0,
            }],
        }],
        "opened_at": "2026-11-21T02:16:56.980Z", "resolved_at": null, "acked_by": null, "acked_at": null,
        "level": 1, "next_escalation_at": "2026-11-21T02:21:56.980Z", "flaps": 0,
        "labels": {"alertname": "StepwatchGradSpike", "kind": "grad_spike", "run": "llama-70b", "severity": "page"},
        "suppression": null, "ended": null, "resolved_by": null, "resolved_as": null, "silent_since": null, "reopens_at": null,
    })
}

pub(crate) fn timeline() -> Value {
    json!({"at": "2026-11-21T02:18:01.980Z", "actor": "alice", "what": "acknowledged after 1m 5s; escalation stops"})
}

pub(crate) fn delivery() -> Value {
    json!({
        "key": "01KAHTZ7/primary/1", "receiver": "primary", "seq": 1, "action": "trigger", "page": true,
        "state": "delivered", "attempts": 1, "created_at": "2026-11-21T02:16:57.000Z", "next_at": null,
        "done_at": "2026-11-21T02:16:57.310Z", "error": null,
    })
}

pub(crate) fn wish() -> Value {
    json!({
        "matchers": ["node=\"gpu-042\""], "duration": "2h", "created_by": "alice", "comment": "the switch is being replaced",
    })
}

pub(crate) fn silence() -> Value {
    json!({
        "id": "5f0c1d9e-7a34-4b8e-9b1f-0c6f2f9d1a42", "state": "active", "matchers": ["node=\"gpu-042\""],
        "starts_at": "2026-11-21T02:00:00.000Z", "ends_at": "2026-11-21T04:00:00.000Z", "created_by": "alice",
        "comment": "the switch is being replaced", "updated_at": "2026-11-21T02:00:00.000Z",
        "expire_on_resolve": false, "planned_by": null, "incidents": ["01KAHTZ7"],
    })
}

pub(crate) fn preview_wish() -> Value {
    json!({"matchers": ["run=\"llama-70b\"", "kind=~\"hang|straggler\""], "days": 7})
}

pub(crate) fn run() -> Value {
    json!({
        "run": "llama-70b", "attempt": 2, "last_step": 12345, "last_step_at": "2026-11-21T02:16:56.980Z",
        "last_step_age_seconds": 1.2, "last_heard_at": "2026-11-21T02:16:57.200Z", "steps": 12346, "world": 64,
        "ranks": 64, "sources": ["gpu-001:9765"], "lost_sources": [], "last_checkpoint_step": 12000,
        "duplicate_steps": 0, "stale_steps": 0, "ended": null, "goodput": 0.9,
        "time": [
            {"state": "productive", "seconds": 45000.0, "gpu_seconds": 2880000.0, "dollars": 2000.0},
            {"state": "saving", "seconds": 5000.0, "gpu_seconds": 320000.0, "dollars": 222.22},
        ],
    })
}

pub(crate) fn source() -> Value {
    json!({
        "source": "gpu-001:9765", "up": true, "since": "2026-11-20T18:00:00.000Z", "error": null, "cursor": "b1:81234",
        "last_record_at": "2026-11-21T02:16:57.200Z", "records": 81234, "malformed_records": 0, "gaps": 0,
        "lost_records": 0, "refused_records": 0, "refused": null,
    })
}

pub(crate) fn status() -> Value {
    json!({
        "version": "0.1.0", "revision": "3475748", "started_at": "2026-11-20T18:00:00.000Z", "sources": 8,
        "sources_up": 8, "runs": 1, "open_incidents": 1, "pending_effects": 0, "store": "ok",
        "next_deadline_at": "2026-11-21T02:21:56.980Z", "next_deadline": "escalation",
    })
}

pub(crate) fn replicas() -> Value {
    let replica = |address, leads| {
        json!({
            "address": address, "version": "0.1.0", "configuration": "5f3a0c19be72", "leads": leads, "running": true,
            "differs": false,
        })
    };
    json!({
        "epoch": 7, "leads_since": "2026-11-20T18:00:00.000Z",
        "replicas": [replica("http://10.0.0.7:9766", true), replica("http://10.0.0.8:9766", false)],
    })
}

pub(crate) fn schedule() -> Value {
    let shift = json!({
        "from": "2026-11-16T08:00:00.000Z", "to": "2026-11-23T08:00:00.000Z", "users": ["alice"], "by": "layer weekly",
    });
    json!({
        "schedule": "primary", "time_zone": "Europe/Berlin", "at": "2026-11-21T02:00:00.000Z",
        "on_call": [{"user": "alice", "receivers": ["alice-phone"]}], "by": "layer weekly",
        "until": "2026-11-23T08:00:00.000Z", "fallback": ["chat"], "calendar": null, "shifts": [shift],
    })
}

pub(crate) fn oncall_override() -> Value {
    let cover = json!({
        "user": "bob", "replaces": null, "from": "2026-12-24T08:00:00.000Z", "until": "2026-12-27T08:00:00.000Z",
    });
    json!({
        "id": "0b6f4a52-3c1e-4f7a-9d2b-7e5a1c8d4f60", "state": "coming", "effective": true,
        "stored": true, "schedule": "primary", "covers": [cover],
        "created_by": "alice", "note": "holidays", "created_at": "2026-11-21T02:00:00.000Z", "removed_by": null,
        "removed_at": null,
    })
}

pub(crate) fn override_wish() -> Value {
    json!({
        "schedule": "primary", "user": "bob", "from": "2026-12-24T09:00", "until": "2026-12-27T09:00",
        "created_by": "alice", "note": "holidays",
    })
}

pub(crate) fn swap_wish() -> Value {
    json!({
        "schedule": "primary",
        "first": {"user": "alice", "from": "2026-12-21T09:00", "until": "2026-12-28T09:00"},
        "second": {"user": "bob", "from": "2026-12-28T09:00", "until": "2027-01-04T09:00"},
        "created_by": "alice", "note": "holidays",
    })
}

pub(crate) fn postable_alert() -> Value {
    json!({
        "labels": {"alertname": "DiskFull", "severity": "critical", "instance": "gpu-001:9100"},
        "annotations": {"summary": "/scratch is 98 % full"}, "startsAt": "2026-11-21T02:16:56.000Z",
        "endsAt": "2026-11-21T02:21:56.000Z", "generatorURL": "http://prometheus:9090/graph",
    })
}

pub(crate) fn postable_silence() -> Value {
    json!({
        "matchers": [{"name": "instance", "value": "gpu-001:.*", "isRegex": true, "isEqual": true}],
        "startsAt": "2036-11-21T02:00:00.000Z", "endsAt": "2036-11-21T04:00:00.000Z", "createdBy": "alice",
        "comment": "new disks",
    })
}

pub(crate) fn series() -> Value {
    json!({
        "run": "llama-70b", "signal": "loss", "sequence": 12345, "step": [12336, 12344],
        "time": [1795227380.5, 1795227414.2], "min": [2.31, 2.35], "max": [2.4, 2.35], "last": [2.36, 2.35],
        "mean": [2.36, 2.35], "count": [8, 1], "nonfinite": [0, 0], "expected": [2.37, null], "low": [2.2, null],
        "high": [2.5, null],
        "incidents": [{
            "id": "01KAHTZ7", "kind": "loss_spike", "severity": "page", "state": "open", "title": "loss spike",
            "signal": "loss", "start_step": 12340, "end_step": null, "opened_at": "2026-11-21T02:16:56.980Z",
        }],
        "marks": [{"step": 12340, "at": "2026-11-21T02:16:40.000Z", "kind": "checkpoint"}],
    })
}

pub(crate) fn ranks() -> Value {
    json!({
        "run": "llama-70b", "hidden": 0, "steps": [12340, 12341],
        "at": ["2026-11-21T02:16:50.000Z", "2026-11-21T02:16:55.000Z"], "excess": [[0.001, 0.084]],
        "ranks": [{
            "rank": 17, "node": "gpu-042", "local_rank": 1, "stage": null, "last_step": 12341,
            "last_seen_at": "2026-11-21T02:16:56.980Z", "stale": false, "done": false, "excess": 0.084, "rise": 0.08,
            "compute_seconds": 4.21,
        }],
    })
}

pub(crate) fn attempts() -> Value {
    json!({
        "run": "llama-70b",
        "attempts": [{
            "attempt": 1, "began_at": "2026-11-21T02:16:50.000Z", "ended_at": null, "first_step": 12001,
            "last_step": 12345, "end": null,
            "changes": [{"of": "host", "name": "driver", "before": "550.54", "after": "560.28"}], "changes_hidden": 0,
            "start": [{
                "phase": "until_hello", "began_at": "2026-11-21T02:13:02.000Z", "ended_at": "2026-11-21T02:13:40.000Z",
                "seconds": 38.0, "usual_seconds": 35.0,
            }, {
                "phase": "load", "began_at": "2026-11-21T02:13:40.000Z", "ended_at": "2026-11-21T02:16:50.000Z",
                "seconds": 190.0, "usual_seconds": 60.5,
            }],
        }, {
            "attempt": 0, "began_at": "2026-11-20T18:00:00.000Z", "ended_at": "2026-11-21T02:11:02.000Z",
            "first_step": 0, "last_step": 12410,
            "end": {"how": "failed", "place": "rank 17 (gpu-042)", "code": null, "text": "CUDA error: out of memory"},
            "changes": [], "changes_hidden": 0, "start": [],
        }],
        "checkpoints": [{
            "at": "2026-11-21T02:05:11.000Z", "step": 12000, "seconds": 41.5, "bytes": 1.4e12, "outcome": "saved",
            "why": null,
        }],
        "stages": [{
            "step": 12000, "path": "/ckpt/iter_0012000", "bytes": 1.4e12, "counts": true,
            "stages": [{
                "stage": "save", "started_at": "2026-11-21T02:04:28.000Z", "ended_at": "2026-11-21T02:04:31.500Z",
                "seconds": 3.5, "bytes": null, "failed": false,
            }, {
                "stage": "durable", "started_at": null, "ended_at": "2026-11-21T02:05:11.000Z", "seconds": null,
                "bytes": 1.4e12, "failed": false,
            }],
        }],
        "load": null,
        "setup": [{"of": "size", "name": "processes", "value": "64"}],
        "since_good": {
            "run": "llama-70b", "attempt": 0, "at": "2026-11-21T02:01:00.000Z",
            "changes": [{"of": "host", "name": "driver", "before": "550.54", "after": "560.28"}], "changes_hidden": 0,
        },
        "forgotten": null,
        "starting": null,
    })
}

pub(crate) fn node() -> Value {
    json!({
        "node": "gpu-042", "state": "faulty", "last_heard_at": "2026-11-21T02:16:56.980Z", "runs": ["llama-70b"],
        "jobs": ["job 4711 of bob on slurm"], "gpus": 8, "conditions": 1, "worst": "GPU 3 has fallen off the bus",
        "incidents": 1,
    })
}
