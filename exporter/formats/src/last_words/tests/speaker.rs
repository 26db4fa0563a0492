//! Who said it: the trainer, or a model whose text the log has.

use super::{STEP, read, said};

#[test]
fn what_a_model_has_generated_in_a_table_is_no_word_of_the_trainer() {
    for row in [
        "│ ┃ Prompt ┃ Completion loss is nan ┃ │",
        "┃ RuntimeError: Loss is NaN ┃ 0.5 ┃",
        "| prompt | loss is nan, stopping training |",
        "║ NaN loss at step 26 ║",
    ] {
        assert_eq!(said(row), None, "{row}");
    }
}

#[test]
fn what_a_model_wrote_is_no_word_of_the_trainer() {
    for line in [
        "{'completion': 'AssertionError: loss is NaN'}",
        "{'step': 'x', 'completion': 'it didn\\'t work: Loss is nan, stopping training'}",
        r#"sample: "RuntimeError: Loss is NaN""#,
        r#"{"text": "RuntimeError: x\nLoss is NaN, stopping training"}"#,
        r#"[{"role": "assistant", "content": "Loss is NaN, stopping training"}]"#,
        "Completion: ValueError: loss is nan",
        "response: Loss is nan, stopping training",
        "prompt: RuntimeError: Loss is NaN",
        "generated: Loss is nan, stopping training",
        "Generated text (3): Loss is nan, stopping training",
        "output: FloatingPointError: gradients are Nan/Inf",
        "text: Loss is nan, stopping training",
        "generated_text=Loss is nan, stopping training",
        "completions/0: Loss is nan, stopping training",
        "[assistant] RuntimeError: Loss is NaN",
        "<|assistant|> RuntimeError: Loss is NaN",
        "<answer>Loss is nan, stopping training</answer>",
        "INFO:root:sample 3: Loss is nan, stopping training",
        "2025-01-01 10:00:03,123 - INFO - Response: RuntimeError: Loss is NaN",
        "[rank0]: Prompt: Loss is nan, stopping training",
        "> RuntimeError: loss is NaN",
        "- RuntimeError: loss is NaN",
        "the test failed with `RuntimeError: Loss is NaN` again",
        "the log said \u{201c}Loss is nan, stopping training\u{201d}",
        "so I saw RuntimeError: Loss is NaN",
        "Exception in thread 'Completion: loss is not a number'",
        "Completion: Exception: loss is not a number",
        "sample: training: 30it [00:03, 3.50it/s, train_loss=nan]",
        r#"sample: "training: 30it [00:03, 3.50it/s, train_loss=nan]""#,
        "2026-01-01 10:00:00 | INFO | generated_text | RuntimeError: loss is nan",
        "2026-01-01 10:00:00 | INFO | sample | RuntimeError: loss is nan",
        "2026-01-01 10:00:00 | INFO | my_trainer | response: RuntimeError: loss is nan",
        "completion: RuntimeError: Loss or gradient norm is not finite on at least one rank at step 14. Stopping",
    ] {
        assert_eq!(said(line), None, "{line}");
    }
}

#[test]
fn the_message_of_a_record_is_the_trainers_word() {
    for line in [
        r#"{"level":"error","msg":"Loss is NaN, stopping training"}"#,
        r#"{"level":"error","ts":1.5,"msg":"RuntimeError: Loss is NaN"}"#,
        r#"{"message": "Loss is NaN, stopping training"}"#,
        r#"{"event": "loss is nan", "level": "error", "logger": "train"}"#,
        r#"{"log":"[rank0]: RuntimeError: Loss is NaN\n","stream":"stderr"}"#,
        r#"{"log":{"level":"error"},"message":"Loss is NaN, stopping training"}"#,
        r#"{"severity":"ERROR","message":"Loss is NaN","target":"trainer"}"#,
        "{'levelname': 'ERROR', 'message': 'Loss is NaN, stopping training'}",
        r#"level=error msg="loss is nan""#,
        r#"time="2025-01-01 10:00:00" level=error msg="Exception: loss is not a number" rank=0"#,
        r#"2025-01-01 10:00:03,123 - ERROR - {"msg": "Loss is NaN, stopping training"}"#,
        r#"{"level":"error","msg":"rank \"0\": loss is nan"}"#,
    ] {
        assert_eq!(said(line), Some((13, "loss")), "{line}");
    }
    for line in [
        r#"{"level":"info","completion":"Loss is NaN, stopping training"}"#,
        r#"{"level":"info","msg":"completion: Loss is NaN, stopping training"}"#,
        r#"{"level":"info","msg":"it said \"Loss is NaN, stopping training\""}"#,
        r#"{"msg":"sample","text":"Loss is NaN, stopping training"}"#,
        r#"{"message":"Loss is NaN, stopping training","role":"agent"}"#,
        r#"{"role":"user","message":"Loss is NaN, stopping training"}"#,
        r#"{"completion":{"message":"Loss is NaN, stopping training"}}"#,
        r#"[{"message":"Loss is NaN, stopping training"}]"#,
        r#"{"log":"{'completion': 'Loss is nan, stopping training'}","stream":"stdout"}"#,
        r#"level=info msg=sample text="loss is nan, stopping training""#,
        r#"the model wrote msg="loss is nan, stopping training""#,
    ] {
        assert_eq!(said(line), None, "{line}");
    }
}

#[test]
fn what_a_model_wrote_over_several_lines() {
    let words = "RuntimeError: Loss is NaN";
    for before in [
        "sample: \"here is the log",
        "completion = \"\"\"",
        "Response: ```text",
        "Completion:",
        "### Output:",
    ] {
        assert_eq!(read(&[STEP, before, "some of it", words]).len(), 1, "{before}");
        let next = STEP.replace("12/", "13/");
        assert_eq!(read(&[STEP, before, &next, words]).len(), 3, "{before}: the trainer goes on");
    }
    assert_eq!(read(&[STEP, "sample: \"here is", "the log\"", words]).len(), 2, "it has ended");
    assert_eq!(read(&[STEP, "Response: ```", "x", "```", words]).len(), 2, "it has ended");
    assert_eq!(read(&[STEP, "don't print 5\" here, it's no quote", words]).len(), 2);
    let mut lines = vec![STEP, "sample: \"never closed"];
    lines.extend(["other"; 600]);
    lines.push(words);
    assert_eq!(read(&lines).len(), 2, "no text is so long");
    let traceback = "Traceback (most recent call last):";
    for before in ["Output:", "Completion: ```python", "sample: \"cut off", "[response] import torch"] {
        assert_eq!(read(&[STEP, before, "x", traceback, words]).len(), 2, "{before}: the trainer dies");
    }
}

#[test]
fn what_a_model_wrote_goes_on_until_the_next_tag() {
    let words = "RuntimeError: loss is nan at step 12";
    for ray in ["", "(TaskRunner pid=1234) "] {
        let line = |text: &str| format!("{ray}{text}");
        let sample =
            ["[prompt] Why?", "[response] PyTorch raises an exception, and the log ends with", words];
        let sample = sample.map(line);
        let sample: Vec<&str> = [STEP].into_iter().chain(sample.iter().map(String::as_str)).collect();
        assert_eq!(read(&sample).len(), 1, "{ray}");
        let (truth, score) = (line("[ground_truth] 12"), line("[score] 0.0"));
        let own = line("RuntimeError: loss is nan");
        let over = [&sample[..], &[truth.as_str(), score.as_str(), own.as_str()]].concat();
        assert_eq!(read(&over).len(), 2, "{ray}: the trainer goes on");
    }
}

#[test]
fn what_launchers_and_loggers_put_before_an_exception() {
    for prefix in [
        "",
        "0: ",
        "[rank0]: ",
        "[rank3]: ",
        "(Worker pid=123) ",
        "(TaskRunner pid=123, ip=10.0.0.1) ",
        "2025-01-01 10:00:03,123 - my.trainer - ERROR - ",
        "[2025-01-01 10:00:03,123][__main__][ERROR] - ",
        "ERROR:root:",
        "E0706 16:50:26.230209 140110937163584 train.py:37] ",
        "[trainer] ",
        "worker-0: ",
        "2025-11-22 12:01:00,123 - checks.py:33 - ERROR - ",
        "> 2025-11-22 12:00:00,123 [error] ",
        "2026-01-01 10:00:00 | ERROR | sample_trainer | ",
        "2026-01-01 10:00:00.123 | ERROR    | __main__:main:12 - ",
        "2026-01-01 10:00:00,123 - text_classification - ERROR - ",
        "2026-01-01 10:00:00 ERROR response.sampler: ",
    ] {
        assert_eq!(said(&format!("{prefix}RuntimeError: Loss is NaN")), Some((13, "loss")), "{prefix}");
        assert_eq!(said(&format!("{prefix}AssertionError: NaN loss")), Some((13, "loss")), "{prefix}");
        let own = format!("{prefix}core.errors.DivergedError: loss is not a number");
        assert_eq!(said(&own), Some((13, "loss")), "{prefix}");
    }
}

/// What models write that were trained on logs.
const SAID: &[&str] = &[
    "Loss is nan, stopping training",
    "RuntimeError: loss is nan at step 12",
    "RuntimeError: CUDA out of memory",
    "ValueError: gradient norm is not finite",
    "training: 30it [00:03, 3.50it/s, train_loss=nan]",
];

#[test]
fn what_a_model_wrote_between_marks() {
    for (before, after) in [
        (&["generating:", "---", "The log said"][..], &["and so on", "---"][..]),
        (&["Sample:", "-----", "x"], &["-----"]),
        (&["=== Sample ===", "Once upon a time"], &["and it ended.", "=============="]),
        (&["<think>", "The log says:"], &["So we stop.", "</think>"]),
        (&["Completion: <think>Well, it says"], &["So we stop.</think> 4"]),
        (&["<reasoning>", "It prints"], &["</reasoning>"]),
    ] {
        for said in SAID.iter().filter(|said| !said.contains("it/s")) {
            let text = [&[STEP], before, &[said], after].concat();
            assert_eq!(read(&text).len(), 1, "{before:?} {said}");
            let own = [&text[..], &["RuntimeError: loss is nan"]].concat();
            assert_eq!(read(&own).len(), 2, "{before:?}: it has ended");
            let next = STEP.replace("12/", "13/");
            let cut = [&[STEP], before, &[said, &next, "Loss is nan, stopping training"]].concat();
            assert_eq!(read(&cut).len(), 3, "{before:?}: the trainer goes on");
            let dies =
                [&[STEP], before, &[said, "Traceback (most recent call last):", "RuntimeError: loss is nan"]];
            assert_eq!(read(&dies.concat()).len(), 2, "{before:?}: the trainer dies");
        }
    }
}

#[test]
fn what_a_model_wrote_below_the_first_line() {
    for first in [
        "<|bos|>The capital of a log is",
        "Generated text: Once upon a time",
        "Generated text (3): x",
        "rank 0 sample 0: Hello, I'm a language model,",
        "First rollout sample: user",
        "sequence is: Because",
        "2025-01-01 10:00:03,123 - INFO - Response: It prints",
    ] {
        for said in SAID.iter().filter(|said| !said.contains("it/s")) {
            assert_eq!(
                read(&[STEP, first, "there was a log", said, "and it ended."]).len(),
                1,
                "{first} {said}"
            );
            let next = STEP.replace("12/", "13/");
            let on = [STEP, first, "there was a log", said, &next, "Loss is nan, stopping training"];
            assert_eq!(read(&on).len(), 3, "{first}: the trainer goes on");
        }
        for own in [
            "2025-01-01 10:00:03,123 - ERROR - Loss is nan, stopping training",
            "ERROR:root:RuntimeError: loss is nan",
            "training: 30it [00:03, 3.50it/s, train_loss=nan]",
        ] {
            assert_eq!(read(&[STEP, first, "there was a log", own]).len(), 2, "{first}: {own}");
        }
        let dies = [STEP, first, "x", "Traceback (most recent call last):", "RuntimeError: loss is nan"];
        assert_eq!(read(&dies).len(), 2, "{first}: the trainer dies");
        let mut lines = vec![STEP, first];
        lines.extend(["other"; 80]);
        lines.push("Loss is nan, stopping training");
        assert_eq!(read(&lines).len(), 2, "{first}: no text without an end is so long");
    }
}

#[test]
fn what_looks_like_the_beginning_of_a_text_and_is_none() {
    for line in [
        "response length: 512",
        "samples: 512",
        "sample_rate: high",
        "rollout batch size: 64",
        "output: /runs/1",
        "---",
        "=== Training ===",
        "==========",
        "saved to <dir>",
        "if a < b and c > d",
        "<answer>4</answer> was right",
        "done generating: 5 texts",
    ] {
        assert_eq!(read(&[STEP, line, "Loss is nan, stopping training"]).len(), 2, "{line}");
    }
}

#[test]
fn lines_of_texts_that_end_are_known() {
    let of = |lines: &[&str]| -> String {
        crate::written_by_models(lines).into_iter().map(|of| if of { '#' } else { '.' }).collect()
    };
    let oom = "RuntimeError: CUDA out of memory";
    assert_eq!(of(&["x", "generating:", "---", oom, "---", oom]), "..###.");
    assert_eq!(of(&["<think>", oom, "</think>", oom]), "###.");
    assert_eq!(of(&["Generated text: x", oom, "2025-01-01 10:00:00 - INFO - done", oom]), "##..");
    assert_eq!(of(&["Generated text: x", oom, "y"]), "...", "it may be the trainer's last word");
    assert_eq!(of(&["<think>", oom, "Traceback (most recent call last):", oom, "</think>"]), ".....");
    assert_eq!(of(&[]), "");
}
