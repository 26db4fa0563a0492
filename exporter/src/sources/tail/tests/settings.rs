//! Tests of the settings of the configuration.

use stepwatch_formats::Rule;
use stepwatch_kit::config::Period;
use stepwatch_wire::Value;

use super::*;

#[test]
fn where_to_begin() {
    let begins = |from: From, age: f64| {
        let mut b = Bench::with("run.log", |c| c.from = from);
        b.steps("run.log", 1..3);
        let written = std::time::UNIX_EPOCH + Duration::from_secs_f64(UNIX - age);
        OpenOptions::new().append(true).open(b.path("run.log")).unwrap().set_modified(written).unwrap();
        let first = b.poll_steps();
        b.steps("run.log", 3..4);
        assert_eq!(b.poll_steps(), [3]);
        first
    };
    assert_eq!(begins(From::Start, 1e6), [1, 2]);
    assert_eq!(begins(From::End, 0.0), NONE);
    assert_eq!(begins(From::Auto, 3600.0), [1, 2]);
    assert_eq!(begins(From::Auto, 1e6), NONE, "the log of a job that is over");
    // Files that appear later are new, wherever the first one begins.
    let mut b = Bench::with("run.log", |c| c.from = From::End);
    b.poll();
    b.steps("run.log", 1..3);
    assert_eq!(b.poll_steps(), [1, 2]);
    // Inside a line, its rest has no meaning alone.
    let mut b = Bench::with("run.log", |c| c.from = From::End);
    b.append("run.log", &step(1)[..5]);
    b.poll();
    b.append("run.log", &step(1)[5..]);
    b.steps("run.log", 2..3);
    assert_eq!(b.poll_steps(), [2]);
}

#[test]
fn labels_of_the_configuration() {
    let mut b = Bench::with("run.log", |c| {
        (c.run, c.rank, c.node) = (Some("llama".into()), Some(7), Some("node9".into()));
    });
    b.steps("run.log", 1..2);
    let e = b.poll().remove(0);
    assert_eq!((e.run.as_deref(), e.rank, e.node.as_deref()), (Some("llama"), Some(7), Some("node9")));
    let mut b = Bench::new("mine.jsonl");
    b.append("mine.jsonl", "{\"k\":\"step\",\"run\":\"theirs\",\"rank\":3,\"step\":1,\"m\":{\"loss\":NaN}}\n{\"step\":2,\"loss\":1}\n");
    b.wait(Duration::ZERO);
    let events = b.poll();
    assert_eq!((events[0].run.as_deref(), events[0].rank), (Some("theirs"), Some(3)));
    assert!(events[0].m.get("loss").unwrap().is_nan());
    assert_eq!((events[1].run.as_deref(), events[1].rank), (Some("mine"), Some(3)), "the file's only rank");
}

#[test]
fn keys_of_the_configuration() {
    let mut b = Bench::with("x.jsonl", |c| {
        c.keys = [("step", "it"), ("loss", "a.b")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    });
    b.append("x.jsonl", "{\"it\":5,\"a\":{\"b\":2.5}}\n");
    let e = b.poll().remove(0);
    assert_eq!((e.step, e.m.get("loss")), (Some(5), Some(2.5)));
}

#[test]
fn mistakes_of_the_configuration_are_named() {
    let config = |yaml: &str| stepwatch_kit::config::parse::<Vec<crate::sources::SourceConfig>>("c", yaml);
    let good = config("- tail: {path: /logs/run.log, format: auto, run: llama-70b}").unwrap();
    assert_eq!(crate::sources::check(&good), NO_MISTAKES);
    let bad = config(
        "- tail: {path: '', format: megatorn}\n- tail: {path: '/a/***', keys: {loss: x}, format: llmc, poll_interval: 1ms}\n\
         - tail: {path: /a, world: 0, model: {hidden: 4096}, dtype: ''}\n- tail: {path: /a, rule: {regex: '(?P<step>'}}\n\
         - tail: {path: /a, format: llmc, rules: [{logfmt: {step: s, loss: l}}]}",
    );
    let wrong = crate::sources::check(&bad.unwrap()).join("\n");
    insta::assert_snapshot!(wrong.replace(&stepwatch_formats::names().join(", "), "NAMES"), @r#"
    sources[0].tail.path: must not be empty
    sources[0].tail.format: unknown log format "megatorn"; known are NAMES
    sources[1].tail.path: Pattern syntax error near position 5: wildcards are either regular `*` or recursive `**`
    sources[1].tail.keys: must give the key of the step (step: ...)
    sources[1].tail.keys: are for JSON lines, but the format is llmc
    sources[1].tail.poll_interval: must be at least 10ms
    sources[2].tail.world: must be at least 1
    sources[2].tail.model: has nothing that FLOPs could be counted from: n_params, or layers, hidden_size and the like
    sources[2].tail.dtype: must not be empty
    sources[3].tail.rule.regex: unclosed group
    sources[4].tail.rules: takes the place of format and keys, so set only one of them
    "#);
    assert!(config("- tail: {path: /a, fromat: x}").is_err());
    assert!(config("- tial: {path: /a}").is_err());
}

#[test]
fn what_a_log_said_of_its_model_is_said_again_to_who_does_not_know_it() {
    let step = |n: i64| {
        format!(" iteration {n}/ 100 | elapsed time per iteration (ms): 1000.0 | lm loss: 2.5E+00 |\n")
    };
    let mut b = Bench::with("llama.log", |_| ());
    b.append("llama.log", "------------------------ arguments ------------------------\n");
    b.append(
        "llama.log",
        "  hidden_size ..................... 4096\n  num_layers ...................... 32\n",
    );
    b.append("llama.log", "-------------------- end of arguments ---------------------\n");
    b.append("llama.log", &step(1));
    let kinds = |b: &mut Bench| b.poll().iter().map(|e| e.kind).collect::<Vec<_>>();
    assert_eq!(kinds(&mut b), [Kind::Hello, Kind::Step]);
    b.append("llama.log", &step(2));
    assert_eq!(kinds(&mut b), [Kind::Step]);
    // This is more than the context that is read again to find the writer.
    b.append("llama.log", &"noise\n".repeat(20_000));
    assert_eq!(kinds(&mut b), []);
    b.kill();
    b.append("llama.log", &step(3));
    let events = b.poll();
    assert_eq!(events.iter().map(|e| e.kind).collect::<Vec<_>>(), [Kind::Hello, Kind::Step]);
    assert_eq!(events[0].extra["model"].get("num_layers").and_then(Value::as_f64), Some(32.0));
    b.append("llama.log", &step(4));
    assert_eq!(kinds(&mut b), [Kind::Step]);
    *b.list.forgotten.lock().unwrap() = Some("llama".into());
    b.append("llama.log", &step(5));
    assert_eq!(kinds(&mut b), [Kind::Hello, Kind::Step]);
}

#[test]
fn what_a_log_does_not_contain_is_published_once() {
    let about = |c: &mut TailConfig| {
        let dimensions = stepwatch_kit::config::parse::<TailConfig>(
            "c",
            "path: /x\nmodel: {name: llama-3-8b, n_params: 8030261248, layers: 32, gated: true, n_inner: null}",
        );
        c.model = dimensions.unwrap().model;
        (c.world, c.dtype, c.gpu) = (Some(8), Some("bf16".into()), Some("H100".into()));
        c.framework = Some("megatron".into());
    };
    let mut b = Bench::with("llama.log", about);
    assert_eq!(b.poll(), []);
    b.append("llama.log", "noise\n");
    assert_eq!(b.poll(), [], "of nothing there is nothing to say");
    b.steps("llama.log", 1..3);
    let events = b.poll();
    assert_eq!(events.iter().map(|e| e.kind).collect::<Vec<_>>(), [Kind::Hello, Kind::Step, Kind::Step]);
    let hello = events[0].to_json();
    insta::assert_snapshot!(hello.replace(&events[0].ts.unwrap().to_string(), "TS"), @r#"{"v":1,"k":"hello","ts":TS,"run":"llama","world":8,"dtype":"bf16","framework":"megatron","gpu":"H100","model":{"gated":true,"layers":32,"n_inner":null,"n_params":8030261248,"name":"llama-3-8b"},"source":"tail"}"#);
    assert_eq!(events[0].ts, events[1].ts);
    b.steps("llama.log", 3..4);
    assert_eq!(b.poll().len(), 1);
    b.kill();
    b.steps("llama.log", 4..5);
    assert_eq!(b.poll().len(), 2, "a new exporter knows nothing of the model");
    *b.list.forgotten.lock().unwrap() = Some("llama".into());
    b.steps("llama.log", 5..8);
    let kinds: Vec<_> = b.poll().iter().map(|e| e.kind).collect();
    assert_eq!(
        kinds,
        [Kind::Hello, Kind::Step, Kind::Step, Kind::Step],
        "nor does one that has forgotten the run"
    );
}

#[test]
fn a_log_alone_is_enough_for_mfu() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("llama.log");
    let line = "[titan] 2026-08-21 10:00:00,000 - root - INFO - step: 20  loss: 2.5  grad_norm: 0.5  memory: 48.87GiB(51.44%)  \
                tps: 9,500  tflops: 253.41  mfu: 25.62%\n";
    fs::write(&path, line).unwrap();
    let config = format!(
        "{{path: {}, from: start, world: 8, dtype: bf16, gpu: NVIDIA H100 80GB HBM3, \
         model: {{n_params: 7504924672, layers: 32, heads: 32, head_dim: 128, seq_len: 8192}}}}",
        path.display()
    );
    let config: TailConfig = stepwatch_kit::config::parse("c", &config).unwrap();
    assert_eq!(config.check(), NO_MISTAKES);
    let hub = crate::testing::hub();
    let mut tail = Tail::new(config, Box::new(hub.clone()), dir.path(), Path::new("/proc"));
    while tail.poll(Instant::now(), crate::clock::unix_now()) {}
    let events = crate::testing::published(&hub);
    let step = events.last().unwrap();
    assert_eq!(step.m.get("tokens_per_second"), Some(76_000.0), "of all processes");
    assert!(step.m.get("mfu").is_some_and(|mfu| (mfu - 0.556).abs() < 0.001), "{step:?}");
    assert!(hub.processes(&Roots::default()).is_empty(), "no process has spoken");
}

#[test]
fn rules_of_the_configuration() {
    let mut b = Bench::with("mine.log", |c| {
        c.rule = Some(Rule { regex: Some(r"<(?P<step>\d+)> L=(?P<loss>\S+)".into()), ..Rule::default() });
    });
    b.append("mine.log", "<5> L=2.5\nelse\n");
    let e = b.poll().remove(0);
    assert_eq!((e.step, e.m.get("loss"), e.run.as_deref()), (Some(5), Some(2.5), Some("mine")));
}

#[tokio::test]
async fn the_thread_stops_when_asked() {
    let mut b = Bench::with("run.log", |c| c.poll_interval = Period::millis(10));
    b.steps("run.log", 1..3);
    let (trigger, shutdown) = Shutdown::manual();
    run(new_tail(&b.config, &b.list, b.dir.path()), shutdown);
    let deadline = Instant::now() + Duration::from_secs(20);
    let until = async |condition: &dyn Fn() -> bool| {
        while !condition() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(condition());
    };
    until(&|| b.list.events.lock().unwrap().len() == 2).await;
    trigger.fire();
    until(&|| b.page().is_empty()).await;
    assert!(Path::new(&b.config.path).exists());
    b.now += Duration::ZERO;
}
