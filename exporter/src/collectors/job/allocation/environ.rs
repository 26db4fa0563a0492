//! Reads the job from the environment of a process. Only the variables named here are read, because
//! the rest may hold secrets.

use std::collections::BTreeMap;

use stepwatch_wire::{run_name, words};

/// The most characters of a value, enough for a name or a list of sixteen UUIDs.
const MAX_CHARS: usize = 1024;

/// The most components of a heterogeneous job.
const MAX_COMPONENTS: usize = 128;

/// Variables of the job's id, each with its scheduler; the nearest first.
const JOBS: &[(&str, Scheduler)] = &[
    ("SLURM_JOB_ID", Scheduler::Slurm),
    ("SLURM_JOBID", Scheduler::Slurm),
    ("PBS_JOBID", Scheduler::Pbs),
    ("LSB_JOBID", Scheduler::Lsf),
];

/// The variables of each fact, the best first.
const NAME: &[&str] = &["SLURM_JOB_NAME", "PBS_JOBNAME", "LSB_JOBNAME"];
const USER: &[&str] = &["SLURM_JOB_USER", "PBS_O_LOGNAME", "LSB_UNIXGROUP_USER", "USER"];
const ACCOUNT: &[&str] = &["SLURM_JOB_ACCOUNT", "PBS_ACCOUNT"];
const PARTITION: &[&str] = &["SLURM_JOB_PARTITION", "PBS_QUEUE", "LSB_QUEUE"];
const QOS: &[&str] = &["SLURM_JOB_QOS"];
const NODES: &[&str] = &["SLURM_JOB_NUM_NODES", "SLURM_NNODES"];
const ARRAY: &[&str] = &["SLURM_ARRAY_JOB_ID"];
const ARRAY_TASK: &[&str] = &["SLURM_ARRAY_TASK_ID"];
const START: &[&str] = &["SLURM_JOB_START_TIME"];
const END: &[&str] = &["SLURM_JOB_END_TIME"];
/// The GPUs of the whole job on the node of its script, by minor number. Steps inherit it on any
/// node, and from any job that starts them.
const JOB_GPUS: &[&str] = &["SLURM_JOB_GPUS"];
/// The GPUs of the step on this node, by minor number.
const STEP_GPUS: &[&str] = &["SLURM_STEP_GPUS"];
/// The devices that the program may use: UUIDs, or numbers that may be relative to those that a
/// control group allows.
const VISIBLE: &[&str] = &["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"];
/// Devices that are not NVIDIA's. They are counted but not named, because they have no UUID.
const VISIBLE_OTHERS: &[&str] = &["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"];
const HOST: &[&str] = &["HOSTNAME"];
const DEVICE_ORDER: &[&str] = &["CUDA_DEVICE_ORDER"];
/// The prefix for the id of each component of a heterogeneous job. Other variables have the second
/// text and the component's number after their names.
const COMPONENT: &str = "SLURM_JOB_ID_HET_GROUP_";
const OF_COMPONENT: &str = "_HET_GROUP_";

const KNOWN: &[&[&str]] = &[
    NAME,
    USER,
    ACCOUNT,
    PARTITION,
    QOS,
    NODES,
    ARRAY,
    ARRAY_TASK,
    START,
    END,
    JOB_GPUS,
    STEP_GPUS,
    VISIBLE,
    VISIBLE_OTHERS,
    HOST,
    DEVICE_ORDER,
];

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scheduler {
    Slurm,
    Pbs,
    Lsf,
    Kubernetes,
    /// A scheduler without a name, or known from a prolog's file.
    #[default]
    Unknown,
}

/// The identity of a job, as far as any source gives it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Identity {
    pub(super) name: Option<String>,
    pub(super) user: Option<String>,
    pub(super) account: Option<String>,
    pub(super) partition: Option<String>,
    pub(super) qos: Option<String>,
    pub(super) nodes: Option<String>,
    /// The job array and task, such as `1200_7`.
    pub(super) array: Option<String>,
    pub(super) start: Option<f64>,
    /// The Unix time when the scheduler will end it.
    pub(super) end: Option<f64>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Facts {
    pub(super) job: Option<(Scheduler, String)>,
    pub(super) identity: Identity,
    /// The identity of each component of a heterogeneous job, by its id.
    components: BTreeMap<String, Identity>,
    pub(super) job_gpus: Option<String>,
    pub(super) step_gpus: Option<String>,
    /// The values of variables that name devices for the program, unparsed.
    pub(super) visible: Vec<String>,
    pub(super) visible_others: Option<String>,
    /// Whether CUDA's numbers are in the order of the bus rather than in CUDA's own.
    pub(super) bus_order: bool,
    pub(super) host: Option<String>,
    /// The name of its run, by which a run is found through its files if its processes do not
    /// report.
    pub(super) run: Option<String>,
}

impl Scheduler {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Slurm => "slurm",
            Self::Pbs => "pbs",
            Self::Lsf => "lsf",
            Self::Kubernetes => "kubernetes",
            Self::Unknown => "",
        }
    }
}

impl Facts {
    /// Parses `/proc/PID/environ`.
    pub(super) fn parse(environ: &[u8]) -> Self {
        let pairs = environ.split(|b| *b == 0).filter_map(|v| core::str::from_utf8(v).ok()?.split_once('='));
        let known = |key: &str| {
            let key = key.split_once(OF_COMPONENT).map_or(key, |(key, _)| key);
            KNOWN.iter().any(|keys| keys.contains(&key)) || JOBS.iter().any(|(name, _)| *name == key)
        };
        let asked = pairs.clone().filter(|(key, _)| run_name::is_asked(key));
        let asked = asked.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let env = Variables(pairs.filter(|(key, _)| known(key)).collect());
        // Ids with a slash are those of pods, which no environment has.
        let id = |key: &str| env.text(&[key]).filter(|id| !id.contains('/'));
        let job = JOBS.iter().find_map(|(key, scheduler)| Some((*scheduler, id(key)?)));
        let array = env.text(ARRAY).zip(env.text(ARRAY_TASK)).map(|(job, task)| format!("{job}_{task}"));
        let identity = Identity {
            name: env.text(NAME),
            user: env.text(USER),
            account: env.text(ACCOUNT),
            partition: env.text(PARTITION),
            qos: env.text(QOS),
            nodes: env.text(NODES),
            array,
            start: env.time(START),
            end: env.time(END),
        };
        Self {
            job,
            components: env.components(&identity),
            identity,
            job_gpus: env.text(JOB_GPUS),
            step_gpus: env.text(STEP_GPUS),
            visible: VISIBLE.iter().filter_map(|key| env.text(&[key])).collect(),
            visible_others: env.text(VISIBLE_OTHERS),
            bus_order: env.text(DEVICE_ORDER).as_deref() == Some("PCI_BUS_ID"),
            host: env.text(HOST),
            run: run_name::name_by_environment(&asked).map(|named| named.run),
        }
    }
}

impl Facts {
    /// The identity of the job `id`, if this process belongs to it. In all components of a
    /// heterogeneous job, the environment has the id of the first one, but each component has
    /// control groups of its own.
    pub(super) fn identity_of(&self, id: &str) -> Option<&Identity> {
        let whole = || self.job.as_ref().filter(|(_, job)| job == id).map(|_| &self.identity);
        self.components.get(id).or_else(whole)
    }

    /// Whether the process belongs to another job.
    pub(super) fn is_foreign_to(&self, id: &str) -> bool {
        self.job.is_some() && self.identity_of(id).is_none()
    }
}

impl Identity {
    /// Fills in facts that are unknown so far.
    pub(super) fn learn(&mut self, other: &Self) {
        let texts = [
            (&mut self.name, &other.name),
            (&mut self.user, &other.user),
            (&mut self.account, &other.account),
            (&mut self.partition, &other.partition),
            (&mut self.qos, &other.qos),
            (&mut self.nodes, &other.nodes),
            (&mut self.array, &other.array),
        ];
        for (ours, theirs) in texts {
            if ours.is_none() {
                ours.clone_from(theirs);
            }
        }
        self.start = self.start.or(other.start);
        self.end = self.end.or(other.end);
    }
}

struct Variables<'a>(BTreeMap<&'a str, &'a str>);

impl Variables<'_> {
    /// The first of these variables that is set.
    fn text(&self, keys: &[impl AsRef<str>]) -> Option<String> {
        let mut values = keys.iter().filter_map(|k| self.0.get(k.as_ref())).map(|v| v.trim());
        let value = values.find(|v| !v.is_empty() && v.len() <= MAX_CHARS)?;
        Some(words::line(value).into_owned())
    }

    /// The identity of each component: its own variables, and otherwise the values of the `whole`
    /// job.
    fn components(&self, whole: &Identity) -> BTreeMap<String, Identity> {
        let numbers = self.0.keys().filter_map(|key| key.strip_prefix(COMPONENT)).take(MAX_COMPONENTS);
        let component = |number: &str| {
            let text = |keys: &[&str]| {
                let keys: Vec<String> = keys.iter().map(|k| format!("{k}{OF_COMPONENT}{number}")).collect();
                self.text(&keys)
            };
            let id = self.text(&[format!("{COMPONENT}{number}")])?;
            let mut identity = Identity {
                name: text(NAME),
                account: text(ACCOUNT),
                partition: text(PARTITION),
                qos: text(QOS),
                nodes: text(NODES),
                ..Identity::default()
            };
            identity.learn(whole);
            Some((id, identity))
        };
        numbers.filter_map(component).collect()
    }

    /// Unix seconds; `None` for a time before this century.
    fn time(&self, keys: &[&str]) -> Option<f64> {
        self.text(keys)?.parse().ok().filter(|t: &f64| (1e9..1e11).contains(t))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts_of(variables: &[&str]) -> Facts {
        Facts::parse(variables.join("\0").as_bytes())
    }

    #[test]
    fn a_task_of_slurm() {
        let facts = facts_of(&[
            "SLURM_JOB_ID=1207",
            "SLURM_JOB_NAME=llama-70b",
            "SLURM_JOB_USER=ada",
            "USER=root",
            "SLURM_JOB_ACCOUNT=research",
            "SLURM_JOB_PARTITION=h100",
            "SLURM_JOB_NUM_NODES=64",
            "SLURM_ARRAY_JOB_ID=1200",
            "SLURM_ARRAY_TASK_ID=7",
            "SLURM_JOB_START_TIME=1795227416",
            "SLURM_JOB_END_TIME=0",
            "SLURM_JOB_GPUS=0,1,2,3",
            "CUDA_VISIBLE_DEVICES=0",
            "WANDB_API_KEY=dummy",
        ]);
        assert_eq!(facts.job, Some((Scheduler::Slurm, "1207".into())));
        let id = &facts.identity;
        assert_eq!((id.name.as_deref(), id.user.as_deref()), (Some("llama-70b"), Some("ada")));
        assert_eq!((id.array.as_deref(), id.nodes.as_deref()), (Some("1200_7"), Some("64")));
        assert_eq!((id.start, id.end), (Some(1_795_227_416.0), None));
        assert_eq!((facts.job_gpus.as_deref(), &facts.visible[..]), (Some("0,1,2,3"), &["0".to_owned()][..]));
    }

    #[test]
    fn a_component_of_a_heterogeneous_job() {
        let facts = facts_of(&[
            "SLURM_JOB_ID=300",
            "SLURM_JOB_NAME=rl",
            "SLURM_JOB_USER=ada",
            "SLURM_JOB_PARTITION=cpu",
            "SLURM_JOB_ID_HET_GROUP_0=300",
            "SLURM_JOB_ID_HET_GROUP_1=301",
            "SLURM_JOB_PARTITION_HET_GROUP_1=h100",
            "SECRET_HET_GROUP_1=dummy",
        ]);
        let partition = |id| facts.identity_of(id).and_then(|i| i.partition.as_deref());
        assert_eq!((partition("300"), partition("301"), partition("302")), (Some("cpu"), Some("h100"), None));
        let second = facts.identity_of("301").unwrap();
        assert_eq!((second.name.as_deref(), second.user.as_deref()), (Some("rl"), Some("ada")));
        assert!(facts.is_foreign_to("302") && !facts.is_foreign_to("301"));
        assert!(!facts_of(&["HOME=/root"]).is_foreign_to("302"), "of none");
    }

    #[test]
    fn other_schedulers_and_none() {
        assert_eq!(facts_of(&["PBS_JOBID=12.server"]).job, Some((Scheduler::Pbs, "12.server".into())));
        assert_eq!(facts_of(&["LSB_JOBID=9", "LSB_QUEUE=gpu"]).identity.partition.as_deref(), Some("gpu"));
        assert_eq!(facts_of(&["HOME=/root", "SLURM_JOB_ID="]).job, None);
        assert_eq!(facts_of(&["SLURM_JOB_ID=ml/llama-0"]).job, None, "the id of a pod");
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_an_environment(bytes: Vec<u8>) {
            let _ = Facts::parse(&bytes);
        }

        #[test]
        fn components_are_limited(ids in proptest::collection::vec("[0-9]{1,6}", 0..300)) {
            let variables: Vec<String> =
                ids.iter().enumerate().map(|(i, id)| format!("SLURM_JOB_ID_HET_GROUP_{i}={id}")).collect();
            let facts = facts_of(&variables.iter().map(String::as_str).collect::<Vec<_>>());
            proptest::prop_assert!(facts.components.len() <= ids.len().min(MAX_COMPONENTS));
            proptest::prop_assert!(ids.is_empty() || !facts.components.is_empty());
        }

        #[test]
        fn a_job_is_read_back_whatever_stands_beside_it(job in 1u32.., noise in "[A-Z_]{1,9}=[^\0]{0,40}") {
            let facts = facts_of(&[&noise, &format!("SLURM_JOB_ID={job}"), "X"]);
            proptest::prop_assert_eq!(facts.job, Some((Scheduler::Slurm, job.to_string())));
        }
    }
}
