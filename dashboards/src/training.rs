//! One run: is it healthy, is it fast, where does the time go, and can we see it at all?

use crate::layout::{Board, Chart, Row, choice_of_prometheus, mark, variable};
use crate::model::{Annotation, Unit, Variable};

pub(crate) fn board() -> Board {
    Board {
        uid: "stepwatch-training",
        title: "Stepwatch / Training run",
        description: "One training run, from its loss down to the health of what we see it through.",
        variables,
        annotations,
        rows: vec![health(), speed(), time_spent(), sight()],
    }
}

fn variables() -> Vec<Variable> {
    vec![
        choice_of_prometheus(),
        variable("run", "Run", "label_values(train_steps_total, run)", false),
        variable("instance", "Node", r#"label_values(train_steps_total{run="$run"}, instance)"#, true),
    ]
}

fn annotations() -> Vec<Annotation> {
    vec![
        mark("Restart", "orange", r#"max(changes(train_attempt{run="$run"}[1m])) > 0"#, "the run restarted"),
        mark(
            "Rank died",
            "red",
            r#"max(increase(train_rank_deaths_total{run="$run"}[1m])) > 0"#,
            "a rank died",
        ),
        mark(
            "Checkpoint failed",
            "red",
            r#"max(increase(train_checkpoint_failures_total{run="$run"}[1m])) > 0"#,
            "a checkpoint failed",
        ),
        mark(
            "Checkpoint",
            "blue",
            r#"max(changes(train_checkpoint_last_step{run="$run"}[1m])) > 0"#,
            "saved",
        ),
    ]
}

fn health() -> Row {
    Row { title: "Is the run healthy?", charts: health_now().into_iter().chain(health_curves()).collect() }
}

fn health_now() -> [Chart; 6] {
    [
        Chart::number("Step", "How far is the run?", Unit::Count).show(r#"max(train_step{run="$run"})"#, "step"),
        Chart::number("Loss", "What is the loss now?", Unit::Short).show(r#"max(train_loss{run="$run"})"#, "loss"),
        Chart::number("Since the last step", "Does it move?", Unit::Seconds)
            .threshold(120.0, "orange")
            .threshold(600.0, "red")
            .show(r#"time() - max(train_last_step_timestamp_seconds{run="$run"})"#, "age"),
        Chart::number("Work at risk", "How much work would a crash lose now?", Unit::Seconds)
            .threshold(7200.0, "orange")
            .threshold(21600.0, "red")
            .show(r#"time() - max(train_checkpoint_last_success_timestamp_seconds{run="$run"})"#, "age"),
        Chart::number("Not finite, 24 h", "Was any loss or gradient NaN or infinite?", Unit::Count)
            .threshold(1.0, "red")
            .show(
                r#"sum(max by (what, how) (increase(train_nonfinite_total{run="$run", how!="overflow"}[24h])))"#,
                "steps",
            ),
        Chart::number("Restarts, 24 h", "How often did it start over?", Unit::Count)
            .threshold(1.0, "orange")
            .threshold(3.0, "red")
            .show(r#"max(increase(train_restarts_total{run="$run"}[24h]))"#, "restarts"),
    ]
}

fn health_curves() -> [Chart; 5] {
    [
        Chart::lines("Loss", "Does it learn, and did it spike between two scrapes?", Unit::Short)
            .show(r#"max(train_loss{run="$run"})"#, "loss")
            .show(r#"max(train_loss_max{run="$run", window="1m"})"#, "largest within a minute")
            .show(r#"max by (dataset) (train_eval_loss{run="$run"})"#, "eval {{dataset}}"),
        Chart::lines(
            "Gradient norm",
            "Are the gradients calm? A spike of loss announces itself here.",
            Unit::Short,
        )
        .log()
        .show(r#"max(train_grad_norm{run="$run"})"#, "gradient norm")
        .show(r#"max(train_grad_norm_max{run="$run", window="1m"})"#, "largest within a minute"),
        Chart::lines("Learning rate", "Is the schedule where it should be?", Unit::Scientific)
            .width(8)
            .show(r#"max(train_learning_rate{run="$run"})"#, "learning rate"),
        Chart::lines("Not finite", "Which value was not a number, and how did it show?", Unit::Count)
            .width(8)
            .bars()
            .show(
                r#"max by (what, how) (increase(train_nonfinite_total{run="$run"}[$__rate_interval]))"#,
                "{{what}} {{how}}",
            )
            .show(
                r#"max(increase(train_skipped_steps_total{run="$run"}[$__rate_interval]))"#,
                "steps skipped",
            ),
        Chart::lines(
            "Loss scale",
            "Does mixed precision hold? A loss scale in free fall ends in NaN.",
            Unit::Short,
        )
        .width(8)
        .log()
        .show(r#"max(train_loss_scale{run="$run"})"#, "loss scale"),
    ]
}

fn speed() -> Row {
    Row {
        title: "Is it fast?",
        charts: vec![
            Chart::lines("Step time", "How long do steps take, and how long do the slow ones?", Unit::Seconds)
                .from_zero()
                .show(
                    r#"histogram_quantile(0.5, sum by (le) (rate(train_step_duration_seconds_bucket{run="$run"}[$__rate_interval])))"#,
                    "median",
                )
                .show(
                    r#"histogram_quantile(0.9, sum by (le) (rate(train_step_duration_seconds_bucket{run="$run"}[$__rate_interval])))"#,
                    "90 %",
                )
                .show(
                    r#"histogram_quantile(0.99, sum by (le) (rate(train_step_duration_seconds_bucket{run="$run"}[$__rate_interval])))"#,
                    "99 %",
                ),
            Chart::heatmap("Step times", "One kind of step or several? Garbage collection and stalls are bands.", Unit::Seconds)
                .show(
                    r#"sum by (le) (increase(train_step_duration_seconds_bucket{run="$run"}[$__rate_interval]))"#,
                    "{{le}}",
                ),
            Chart::lines("MFU", "How much of the hardware is used, by each way of counting?", Unit::Ratio)
                .from_zero()
                .show(r#"max by (convention) (train_mfu_ratio{run="$run"})"#, "{{convention}}")
                .show(r#"max(train_mfu_reported_ratio{run="$run"})"#, "as the trainer prints it"),
            Chart::lines("Tokens per second", "What does the job get done?", Unit::Short)
                .from_zero()
                .show(r#"max(rate(train_tokens_total{run="$run"}[$__rate_interval]))"#, "with all pauses")
                .show(r#"max(train_tokens_per_second{run="$run"})"#, "at the last step"),
            Chart::lines("Tokens per second per GPU", "Is it as fast as other runs of its kind?", Unit::Short)
                .from_zero()
                .show(r#"max(train_tokens_per_second_per_gpu{run="$run"})"#, "at the last step"),
            Chart::lines("Slowest ranks", "Does one rank hold back the others?", Unit::Seconds)
                .from_zero()
                .show(r#"topk(5, max by (rank) (train_rank_last_step_duration_seconds{run="$run"}))"#, "rank {{rank}}")
                .show(r#"quantile(0.5, train_rank_last_step_duration_seconds{run="$run"})"#, "median of all"),
        ],
    }
}

fn time_spent() -> Row {
    Row {
        title: "Where does the time go?",
        charts: vec![
            Chart::lines("Phases", "What share of its time does a rank spend where?", Unit::Ratio)
                .stacked()
                .from_zero()
                .show(
                    r#"avg by (phase) (rate(train_phase_seconds_total{run="$run"}[$__rate_interval]))"#,
                    "{{phase}}",
                ),
            Chart::lines("Waiting for data", "Is the data loader fast enough, on every rank?", Unit::Ratio)
                .from_zero()
                .up_to(1.0)
                .show(r#"avg(train_dataloader_wait_ratio{run="$run"})"#, "mean of ranks")
                .show(r#"max(train_dataloader_wait_ratio{run="$run"})"#, "worst rank"),
            Chart::states("In a phase", "When did it save, evaluate, compile?")
                .threshold(0.5, "blue")
                .show(r#"max by (phase) (train_phase_active{run="$run"})"#, "{{phase}}")
                .show(r#"max(train_checkpoint_in_progress{run="$run"})"#, "checkpoint in progress"),
            Chart::lines("Ranks", "Are all processes there?", Unit::Count)
                .from_zero()
                .show(r#"max(train_world_size{run="$run"})"#, "world size")
                .show(r#"count(count by (rank) (train_rank_up{run="$run"} == 1))"#, "connected")
                .show(r#"max(increase(train_rank_deaths_total{run="$run"}[$__rate_interval]))"#, "deaths"),
            Chart::lines("Checkpoint age", "Do checkpoints come as planned?", Unit::Seconds)
                .width(8)
                .from_zero()
                .show(r#"time() - max(train_checkpoint_last_success_timestamp_seconds{run="$run"})"#, "age"),
            Chart::lines("Checkpoint duration", "Does saving get slower?", Unit::Seconds)
                .width(8)
                .from_zero()
                .show(r#"max(train_checkpoint_duration_seconds{run="$run"})"#, "last one"),
            Chart::lines(
                "Checkpoint size",
                "How big is a checkpoint? A smaller one is an incomplete one.",
                Unit::Bytes,
            )
            .width(8)
            .from_zero()
            .show(r#"max(train_checkpoint_size_bytes{run="$run"})"#, "last one"),
        ],
    }
}

fn sight() -> Row {
    Row {
        title: "Can we see it?",
        charts: vec![
            Chart::states("Sources", "Can every log and socket be read?")
                .threshold(0.5, "blue")
                .show(r#"min by (instance, source) (train_source_up{instance=~"$instance"})"#, "{{instance}} {{source}}"),
            Chart::lines("Source lag", "How old is what we read?", Unit::Seconds)
                .from_zero()
                .show(
                    r#"max by (instance, source) (train_source_lag_seconds{instance=~"$instance"})"#,
                    "{{instance}} {{source}}",
                ),
            Chart::lines("Silent ranks", "Which ranks have not been heard of for longest?", Unit::Seconds)
                .from_zero()
                .show(r#"topk(5, time() - max by (rank) (train_heartbeat_timestamp_seconds{run="$run"}))"#, "rank {{rank}}"),
            Chart::lines("Events", "How much comes in, and by which way?", Unit::PerSecond)
                .from_zero()
                .show(
                    r#"sum by (via) (rate(stepwatch_exporter_ingest_events_total{instance=~"$instance"}[$__rate_interval]))"#,
                    "{{via}}",
                ),
            Chart::lines("Refused", "What do we not take in, and why? Duplicates are ordinary.", Unit::PerSecond)
                .from_zero()
                .show(
                    r#"sum by (reason) (rate(stepwatch_exporter_ingest_dropped_total{instance=~"$instance"}[$__rate_interval]))"#,
                    "ingest: {{reason}}",
                )
                .show(
                    r#"sum by (source, reason) (rate(train_source_dropped_total{instance=~"$instance"}[$__rate_interval]))"#,
                    "{{source}}: {{reason}}",
                )
                .show(
                    r#"sum by (source) (rate(train_source_unmatched_lines_total{instance=~"$instance"}[$__rate_interval]))"#,
                    "{{source}}: lines not understood",
                ),
            Chart::lines("Stream", "Does an alerter follow, and does it keep up?", Unit::Count)
                .from_zero()
                .show(r#"sum(stepwatch_exporter_stream_readers{instance=~"$instance"})"#, "readers")
                .show(
                    r#"sum(increase(stepwatch_exporter_stream_cut_total{instance=~"$instance"}[$__rate_interval]))"#,
                    "cut off",
                )
                .show(
                    r#"sum(increase(stepwatch_exporter_stream_gaps_total{instance=~"$instance"}[$__rate_interval]))"#,
                    "with gaps",
                ),
        ],
    }
}
