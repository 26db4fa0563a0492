//! Run, rank and the rest of the identity of telemetry, from the attributes of a resource.

use std::collections::BTreeMap;

use stepwatch_wire::Value as Json;

use super::proto::{Any, KeyValue, Resource, attribute};
use crate::principal::Principal;
use crate::readings::{Place, Who, whole};

/// Attributes in which a user names the run.
const NAME: &[&str] = &["stepwatch.run", "nemo.run.id"];
/// Attributes that identify the run, the most certain first.
const RUN: &[&str] = &["nv.dl.job.uuid", "nv.dl.run.uuid"];
const JOB: &[&str] = &["slurm.job.id", "slurm.job_id", "pbs.job.id", "lsf.job.id"];
const JOB_NAME: &[&str] = &["slurm.job.name", "slurm.job_name", "pbs.job.name", "lsf.job.name"];
const RANK: &[&str] = &["stepwatch.rank", "dl.rank", "nv.dl.rank", "process.rank", "rank"];
const WORLD: &[&str] = &["dl.world_size", "nv.dl.world_size", "world_size"];
/// The parallel sizes whose product is the number of ranks, if that is not given.
const SIZES: &[&str] = &["data", "tensor", "pipeline", "context"];
/// Attributes published in the `hello` of a rank, and the keys they get there.
const ABOUT: &[(&str, &str)] = &[
    ("dl.local_rank", "local_rank"),
    ("nv.dl.local_rank", "local_rank"),
    ("service.name", "framework"),
    ("service.version", "version"),
    ("slurm.job.id", "job"),
    ("megatron.precision", "dtype"),
    ("dl.tensor_parallel.size", "tp"),
    ("dl.pipeline_parallel.size", "pp"),
    ("dl.data_parallel.size", "dp"),
];
/// The name that the SDK gives an unnamed service.
const UNNAMED: &str = "unknown_service";
/// The most characters of the name of a run.
const MAX_RUN: usize = 128;

pub(super) fn who(resource: Option<&Resource>) -> Who {
    let attributes = resource.map_or(&[][..], |r| &r.attributes);
    let text = |key: &str| attribute(attributes, key).map(ToString::to_string).filter(|t| !t.is_empty());
    let instance = text("service.instance.id");
    let parts = instance.as_deref().and_then(split_instance);
    let given = NAME.iter().find_map(|key| Some((*key, text(key)?)));
    let run = given.clone().map(|(_, name)| name).or_else(|| RUN.iter().find_map(|key| text(key)));
    let run = run.or_else(|| parts.map(|(run, _)| run.to_owned()));
    let first = |keys: &[&str]| keys.iter().find_map(|key| text(key));
    let place = Place {
        given: given.map(|(key, _)| key),
        // NeMo Lens names the processes of a job like this.
        job: first(JOB).or_else(|| parts.map(|(run, _)| run.to_owned())),
        job_name: first(JOB_NAME),
        pid: number(attributes, &["process.pid"]),
        host: text("host.name"),
    };
    let certain = run.is_some();
    let service = || text("service.name").unwrap_or_else(|| UNNAMED.to_owned());
    // With an instance id made up at every start, each restart would be another run.
    let named = instance.as_deref().filter(|i| !is_uuid(i));
    let run = run.unwrap_or_else(|| named.map_or_else(service, |i| format!("{}/{i}", service())));
    let rank = rank(attributes).or(parts.map(|(_, rank)| rank));
    Who {
        run: run.chars().take(MAX_RUN).collect(),
        rank: rank.unwrap_or(0),
        certain,
        world: world(attributes),
        about: about(attributes),
        place,
        // Set later, from the connection.
        principal: Principal::Unknown,
    }
}

/// The rank that the attributes of a resource or of a point give.
pub(super) fn rank(attributes: &[KeyValue]) -> Option<u32> {
    number(attributes, RANK)
}

pub(super) fn is_rank(key: &str) -> bool {
    RANK.contains(&key)
}

fn number(attributes: &[KeyValue], keys: &[&str]) -> Option<u32> {
    let found = keys.iter().find_map(|key| whole(attribute(attributes, key)?.number()?));
    found.and_then(|n| u32::try_from(n).ok())
}

fn world(attributes: &[KeyValue]) -> Option<u32> {
    number(attributes, WORLD).or_else(|| {
        let size = |kind: &&str| number(attributes, &[&format!("dl.{kind}_parallel.size")]);
        // The data-parallel size must be given: the other sizes alone cover only a part of the job.
        number(attributes, &["dl.data_parallel.size"])?;
        SIZES.iter().filter_map(size).try_fold(1u32, |all, n| all.checked_mul(n))
    })
}

fn about(attributes: &[KeyValue]) -> BTreeMap<String, Json> {
    let mut about = BTreeMap::new();
    for (theirs, ours) in ABOUT {
        let said = match attribute(attributes, theirs) {
            Some(Any::Int(n)) => Some(Json::Number(*n as f64)),
            Some(Any::Text(text)) if !text.starts_with(UNNAMED) => Some(Json::Text(text.clone())),
            _ => None,
        };
        about.extend(said.map(|said| ((*ours).to_owned(), said)));
    }
    about
}

/// `123456-rank7`, as NeMo Lens names the process of a rank.
fn split_instance(instance: &str) -> Option<(&str, u32)> {
    let (run, rank) = instance.rsplit_once("-rank")?;
    Some((run, rank.parse().ok()?)).filter(|(run, _)| !run.is_empty())
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36 && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingest::otlp::proto::AnyValue;

    fn who_from(pairs: &[(&str, Any)]) -> Who {
        let pair = |(key, value): &(&str, Any)| KeyValue {
            key: (*key).into(),
            value: Some(AnyValue { value: Some(value.clone()) }),
        };
        who(Some(&Resource { attributes: pairs.iter().map(pair).collect() }))
    }

    fn text(t: &str) -> Any {
        Any::Text(t.into())
    }

    #[test]
    fn runs_and_ranks() {
        let megatron = who_from(&[
            ("service.instance.id", text("123456-rank7")),
            ("service.name", text("megatron-training")),
            ("nemo.run.id", text("llama")),
            ("dl.local_rank", Any::Int(3)),
            ("dl.data_parallel.size", text("4")),
            ("dl.tensor_parallel.size", Any::Int(8)),
        ]);
        assert_eq!((megatron.run.as_str(), megatron.rank, megatron.world), ("llama", 7, Some(32)));
        assert_eq!(megatron.about["local_rank"], Json::Number(3.0));
        assert_eq!(megatron.about["framework"].as_str(), Some("megatron-training"));
        let ours = who_from(&[
            ("stepwatch.run", text("a")),
            ("nemo.run.id", text("b")),
            ("process.rank", text("2")),
        ]);
        assert_eq!((ours.run.as_str(), ours.rank), ("a", 2));
        let rl = who_from(&[
            ("nv.dl.job.uuid", text("job")),
            ("nv.dl.rank", Any::Int(1)),
            ("nv.dl.world_size", Any::Int(16)),
        ]);
        assert_eq!((rl.run.as_str(), rl.rank, rl.world), ("job", 1, Some(16)));
        assert_eq!(who_from(&[("service.instance.id", text("j-rank5"))]).run, "j");
        let job = who_from(&[("slurm.job.id", Any::Int(101)), ("slurm.job.name", text("pretrain"))]).place;
        assert_eq!(
            (job.job.as_deref(), job.job_name.as_deref(), job.given),
            (Some("101"), Some("pretrain"), None)
        );
        assert_eq!(who_from(&[("stepwatch.run", text("a"))]).place.given, Some("stepwatch.run"));
    }

    #[test]
    fn services_without_a_run() {
        let uuid = text("3b8e0a3c-3f5e-4a55-9f52-6a3d1f2b9c11");
        assert_eq!(who_from(&[("service.name", text("sft")), ("service.instance.id", uuid)]).run, "sft");
        assert_eq!(
            who_from(&[("service.name", text("sft")), ("service.instance.id", text("a"))]).run,
            "sft/a"
        );
        assert_eq!(who(None).run, UNNAMED);
        assert_eq!(who_from(&[("stepwatch.run", text("x")), ("rank", Any::Int(-1))]).rank, 0);
    }
}
