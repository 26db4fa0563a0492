use super::*;
use crate::Value;

fn text<'a>(of: &'a Value, key: &str) -> Option<&'a str> {
    of.get(key).and_then(Value::as_str)
}

fn process(of: &Value) -> Process {
    let env = match of.get("env") {
        Some(Value::Map(env)) => {
            env.iter().filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned()))).collect()
        }
        _ => BTreeMap::new(),
    };
    Process {
        env,
        argv: text(of, "argv").unwrap_or_default().split_whitespace().map(str::to_owned).collect(),
        started: of.get("started").and_then(Value::as_f64).unwrap_or(0.0),
        mark: text(of, "mark").unwrap_or_default().to_owned(),
    }
}

/// These cases also test the Python client.
#[test]
fn the_cases() {
    let Value::List(cases) = Value::parse(include_bytes!("cases.json")).unwrap() else { panic!("a list") };
    assert!(cases.len() >= 30);
    for case in cases {
        let title = text(&case, "title").unwrap();
        let Some(Value::List(chain)) = case.get("chain") else { panic!("{title}: chain") };
        let chain: Vec<Process> = chain.iter().map(process).collect();
        let named = name(&chain);
        assert_eq!(Some(named.run.as_str()), text(&case, "run"), "{title}: {}", named.why);
        assert_eq!(Some(named.by.as_str()), text(&case, "by"), "{title}");
        assert_eq!(Some(named.why.as_str()), text(&case, "why"), "{title}");
        assert_eq!(named.job.map(|job| job.id).as_deref(), text(&case, "job"), "{title}");
        let unnamed = text(&case, "unnamed").unwrap_or(&named.run);
        assert_eq!(named.unnamed, unnamed, "{title}");
        let restarts = case.get("restarts").and_then(Value::as_f64).map(|n| n as u32);
        assert_eq!(named.restarts, restarts, "{title}");
        let asked = |p: &Process| p.env.keys().all(|key| is_asked(key) || key == "HOME");
        assert!(chain.iter().all(asked), "{title}: variables that the rule does not ask for");
    }
}

#[test]
fn the_documentation_prints_the_rule() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/frameworks.md");
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(RULE), "put wire/src/run_name/rule.md into docs/frameworks.md");
}

#[test]
fn times_are_those_of_the_calendar() {
    for (unix, want) in [
        (0.0, "19700101-000000"),
        (951_782_399.9, "20000228-235959"),
        (951_782_400.0, "20000229-000000"),
        (1_795_386_942.0, "20261122-223542"),
        (f64::NAN, "19700101-000000"),
        (1e300, "99991231-235959"),
    ] {
        assert_eq!(stamp(unix), want, "{unix}");
    }
}

#[test]
fn the_end_of_a_name_is_never_cut() {
    let long = "x".repeat(300);
    let run = joined(&long, "101");
    assert_eq!((run.chars().count(), run.ends_with("x-101")), (MAX_CHARS, true));
    assert!(joined("a", &long).chars().count() <= MAX_CHARS);
}

proptest::proptest! {
    #[test]
    fn anything_has_a_name(
        values in proptest::collection::vec(("[A-Z_]{1,20}", ".{0,40}"), 0..8),
        argv in proptest::collection::vec(".{0,20}", 0..6),
        started: f64,
    ) {
        let known = ["STEPWATCH_RUN", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "RANK", "MASTER_ADDR", "WORLD_SIZE"];
        let env: BTreeMap<String, String> = values
            .into_iter()
            .enumerate()
            .map(|(i, (key, value))| (known.get(i).map_or(key, |k| (*k).to_owned()), value))
            .collect();
        let process = Process { env, argv, started, mark: "m".into() };
        let named = name(&[process.clone(), process]);
        proptest::prop_assert!(!named.run.is_empty() && named.run.chars().count() <= MAX_CHARS);
    }

    /// Two processes of one node never share a name that differs only by their start, unless they
    /// have the same mark.
    #[test]
    fn marks_distinguish_processes(a in 0u32..100_000, b in 0u32..100_000) {
        let name = |pid: u32| {
            let argv = vec!["python".to_owned(), "train.py".to_owned()];
            name(&[Process { argv, started: 1.0e9, mark: format!("boot/1/{pid}/77"), ..Process::default() }]).run
        };
        proptest::prop_assert_eq!(a == b, name(a) == name(b));
    }
}
