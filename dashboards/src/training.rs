//! One run: is it healthy, is it fast, where does the time go, and can we see it at all?

use crate::head::{self, RUN_PAGE, many, mark, one};
use crate::layout::{Board, Chart, Row};
use crate::model::{Annotation, Unit, Variable};
use crate::series::{Expr, Series, alerter, run};

pub(crate) fn board() -> Board {
    Board {
        uid: "stepwatch-training",
        title: "Stepwatch / Training run",
        description: "One training run, from its loss down to the health of what we see it through.",
        variables,
        annotations,
        rows: vec![health(), speed(), time_spent(), ranks(), config(), sight()],
    }
}

fn variables() -> Vec<Variable> {
    let mut all = head::first("label_values(train_steps_total, cluster)");
    all.extend([
        many("job", "Job", r#"label_values(train_steps_total{cluster=~"$cluster"}, job)"#),
        one("run", "Run", r#"label_values(train_steps_total{cluster=~"$cluster", job=~"$job"}, run)"#),
        many(
            "instance",
            "Instance",
            r#"label_values(train_steps_total{cluster=~"$cluster", job=~"$job", run=~"$run"}, instance)"#,
        ),
    ]);
    all
}

fn annotations() -> Vec<Annotation> {
    let within_a_minute = |name| run(name).increase_in("1m").max("run").above(0.0);
    vec![
        head::incidents(),
        mark(
            "Restart",
            "orange",
            run("train_attempt").changes_in("1m").max("run").above(0.0),
            "the run restarted",
        ),
        mark("Rank died", "red", within_a_minute("train_rank_deaths_total"), "a rank died"),
        mark(
            "Checkpoint failed",
            "red",
            within_a_minute("train_checkpoint_failures_total"),
            "a checkpoint failed",
        ),
        mark(
            "Checkpoint",
            "blue",
            run("train_checkpoint_last_step").changes_in("1m").max("run").above(0.0),
            "saved",
        ),
    ]
}

/// Steps and tokens are those of the whole job, published by each node that saw them: the largest,
/// never the sum.
fn of_run(name: &'static str) -> Expr {
    run(name).max("run")
}

/// A metric of the alerter about the chosen run.
fn judged(name: &'static str) -> Series {
    alerter(name).with(r#"run=~"$run""#)
}

/// What the alerter's detectors expect of a signal, and the band round it.
fn expected(signal: &str) -> Expr {
    judged("train_expected").with(&format!(r#"signal="{signal}""#)).max("run, bound")
}

fn of_ranks(name: &'static str) -> Expr {
    run(name).max("run, rank")
}

fn health() -> Row {
    Row::open("Is the run healthy?", health_now().into_iter().chain(health_curves()).collect())
}

fn health_now() -> [Chart; 6] {
    [
        Chart::number("Step", "How far is the run?", Unit::Count)
            .show(of_run("train_step"), "step")
            .link("The run in the alerter", RUN_PAGE),
        Chart::number("Loss", "What is the loss now?", Unit::Short).show(of_run("train_loss"), "loss"),
        Chart::number("Since the last step", "Does it move?", Unit::Seconds)
            .threshold(120.0, "orange")
            .threshold(600.0, "red")
            .show(of_run("train_last_step_timestamp_seconds").age(), "age"),
        Chart::number("Work at risk", "How much work would a crash lose now?", Unit::Seconds)
            .threshold(7200.0, "orange")
            .threshold(21600.0, "red")
            .show(of_run("train_checkpoint_last_success_timestamp_seconds").age(), "age"),
        Chart::number("Not finite, 24 h", "Was any loss or gradient NaN or infinite?", Unit::Count)
            .threshold(1.0, "red")
            .show(
                run("train_nonfinite_total")
                    .with(r#"how!="overflow""#)
                    .increase_in("24h")
                    .max("run, what, how")
                    .sum("run"),
                "steps",
            ),
        Chart::number("Restarts, 24 h", "How often did it start over?", Unit::Count)
            .threshold(1.0, "orange")
            .threshold(3.0, "red")
            .show(run("train_restarts_total").increase_in("24h").max("run"), "restarts"),
    ]
}

fn health_curves() -> [Chart; 7] {
    let within_a_minute = |name| run(name).with(r#"window="1m""#).max("run");
    [
        Chart::lines("Loss", "Does it learn, and did it spike between two scrapes?", Unit::Short)
            .show(of_run("train_loss"), "loss")
            .show(within_a_minute("train_loss_max"), "largest within a minute")
            .show(run("train_eval_loss").max("run, dataset"), "eval {{dataset}}")
            .show(expected("loss"), "{{bound}} by the detectors"),
        Chart::lines(
            "Gradient norm",
            "Are the gradients calm? A spike of loss announces itself here.",
            Unit::Short,
        )
        .log()
        .show(of_run("train_grad_norm"), "gradient norm")
        .show(within_a_minute("train_grad_norm_max"), "largest within a minute")
        .show(expected("grad_norm"), "{{bound}} by the detectors"),
        Chart::lines(
            "Anomaly scores",
            "Which signals leave the band that is expected? 1 is its edge.",
            Unit::Short,
        )
        .from_zero()
        .width(24)
        .show(judged("train_anomaly_score").max("run, signal").top(), "{{signal}}"),
        Chart::lines("Learning rate", "Is the schedule where it should be?", Unit::Scientific)
            .width(6)
            .show(of_run("train_learning_rate"), "learning rate"),
        Chart::lines("Not finite", "Which value was not a number, and how did it show?", Unit::Count)
            .width(6)
            .bars()
            .show(run("train_nonfinite_total").increase().max("run, what, how"), "{{what}} {{how}}")
            .show(run("train_skipped_steps_total").increase().max("run"), "steps skipped"),
        Chart::lines(
            "Loss scale",
            "Does mixed precision hold? A loss scale in free fall ends in NaN.",
            Unit::Short,
        )
        .width(6)
        .log()
        .show(of_run("train_loss_scale"), "loss scale"),
        Chart::lines("Norm of the parameters", "Do the weights stay in bounds?", Unit::Short)
            .width(6)
            .show(of_run("train_params_norm"), "parameters"),
    ]
}

fn speed() -> Row {
    let buckets = run("train_step_duration_seconds_bucket");
    let durations = buckets.clone().rate().max("run, rank, le").sum("run, le");
    Row::open(
        "Is it fast?",
        vec![
            Chart::lines(
                "Step time",
                "How long do steps take, and how long do the slow ones?",
                Unit::Seconds,
            )
            .from_zero()
            .show(durations.quantile_of_buckets(0.5), "median")
            .show(durations.quantile_of_buckets(0.9), "90 %")
            .show(durations.quantile_of_buckets(0.99), "99 %"),
            Chart::heatmap(
                "Step times",
                "One kind of step or several? Garbage collection and stalls are bands.",
                Unit::Seconds,
            )
            .show(buckets.increase().max("run, rank, le").sum("le"), "{{le}}"),
            Chart::lines("MFU", "How much of the hardware is used, by each way of counting?", Unit::Ratio)
                .from_zero()
                .show(run("train_mfu_ratio").max("run, convention"), "{{convention}}")
                .show(of_run("train_mfu_reported_ratio"), "as the trainer prints it"),
            Chart::lines("Tokens per second", "What does the job get done?", Unit::Short)
                .from_zero()
                .show(run("train_tokens_total").rate().max("run"), "with all pauses")
                .show(of_run("train_tokens_per_second"), "at the last step"),
            Chart::lines(
                "Tokens per second per GPU",
                "Is it as fast as other runs of its kind?",
                Unit::Short,
            )
            .from_zero()
            .show(of_run("train_tokens_per_second_per_gpu"), "at the last step"),
            Chart::lines(
                "FLOP/s of a GPU",
                "What is MFU a share of, and what does the trainer print?",
                Unit::Flops,
            )
            .from_zero()
            .show(of_run("train_peak_flops_per_second"), "dense peak")
            .show(of_run("train_reported_flops_per_second_per_gpu"), "as the trainer prints it"),
            Chart::lines("Steps per second", "Does it go on at the same pace?", Unit::PerSecond)
                .from_zero()
                .show(run("train_steps_total").rate().max("run"), "steps"),
            Chart::lines("Slowest ranks", "Does one rank hold back the others?", Unit::Seconds)
                .from_zero()
                .show(of_ranks("train_rank_last_step_duration_seconds").top(), "rank {{rank}}")
                .show(
                    of_ranks("train_rank_last_step_duration_seconds").quantile(0.5, "run"),
                    "median of all",
                ),
        ],
    )
}

fn time_spent() -> Row {
    Row::open("Where does the time go?", gpu_time().into_iter().chain(phases()).collect())
}

/// By the ledger of the alerter.
fn gpu_time() -> [Chart; 6] {
    [
        Chart::lines(
            "GPU time",
            "What do how many of its GPUs do, and what should they not do?",
            Unit::Count,
        )
        .stacked()
        .from_zero()
        .show(judged("train_gpu_seconds_total").rate().max("run, state"), "{{state}}"),
        Chart::lines("Goodput", "Which share of all its time made progress that lasts?", Unit::Ratio)
            .width(6)
            .from_zero()
            .up_to(1.0)
            .show(judged("train_goodput_ratio").max("run"), "since the beginning")
            .show(judged("train_effective_training_time_ratio").max("run"), "with slow steps"),
        Chart::lines("Cost of an hour", "What did each way to spend the time cost, in dollars?", Unit::Short)
            .width(6)
            .stacked()
            .from_zero()
            .show(judged("train_cost_dollars_total").increase_in("1h").max("run, state"), "{{state}}"),
        Chart::lines("Power", "What do its nodes draw, by the energy of its GPUs?", Unit::Watts)
            .width(8)
            .from_zero()
            .show(judged("train_energy_joules_total").rate().max("run"), "nodes of the run"),
        Chart::lines("Carbon of an hour", "How many grams of CO2 were emitted for it?", Unit::Short)
            .width(8)
            .from_zero()
            .show(judged("train_carbon_grams_total").increase_in("1h").max("run"), "grams"),
        Chart::lines("Tokens for what was spent", "What did a joule and a dollar bring?", Unit::Short)
            .width(8)
            .from_zero()
            .show(judged("train_tokens_per_joule").max("run"), "a joule")
            .show(judged("train_tokens_per_dollar").max("run"), "a dollar"),
    ]
}

/// By the trainer.
fn phases() -> Vec<Chart> {
    vec![
        Chart::lines("Phases", "What share of its time does a rank spend where?", Unit::Ratio)
            .stacked()
            .from_zero()
            .show(
                run("train_phase_seconds_total").rate().max("run, rank, phase").avg("run, phase"),
                "{{phase}}",
            ),
        Chart::lines("Waiting for data", "Is the data loader fast enough, on every rank?", Unit::Ratio)
            .from_zero()
            .up_to(1.0)
            .show(of_ranks("train_dataloader_wait_ratio").avg("run"), "mean of ranks")
            .show(of_run("train_dataloader_wait_ratio"), "worst rank"),
        Chart::states("In a phase", "When did it save, evaluate, compile?")
            .word(1.0, "yes", "blue")
            .word(0.0, "no", "transparent")
            .show(run("train_phase_active").max("run, phase"), "{{phase}}")
            .show(of_run("train_checkpoint_in_progress"), "checkpoint in progress"),
        Chart::lines(
            "Longest in one phase",
            "Which rank does not come out of what it is doing?",
            Unit::Seconds,
        )
        .from_zero()
        .show(
            run("train_heartbeat_page_phase_seconds").max("run, rank, phase").top(),
            "rank {{rank}} {{phase}}",
        ),
        Chart::lines("Checkpoint age", "Do checkpoints come as planned?", Unit::Seconds)
            .width(8)
            .from_zero()
            .show(of_run("train_checkpoint_last_success_timestamp_seconds").age(), "age"),
        Chart::lines("Checkpoint duration", "Which stage of saving gets slower?", Unit::Seconds)
            .width(8)
            .from_zero()
            .show(run("train_checkpoint_duration_seconds").max("run, stage"), "{{stage}}"),
        Chart::lines(
            "Checkpoint size",
            "How big is a checkpoint? A smaller one is an incomplete one.",
            Unit::Bytes,
        )
        .width(8)
        .from_zero()
        .show(of_run("train_checkpoint_size_bytes"), "last one"),
    ]
}

fn ranks() -> Row {
    Row::open(
        "Do all ranks take part?",
        vec![
            Chart::lines("Ranks", "Are all processes there?", Unit::Count)
                .from_zero()
                .show(of_run("train_world_size"), "world size")
                .show(of_ranks("train_rank_up").is(1.0).sum("run"), "connected")
                .show(run("train_rank_deaths_total").increase().max("run"), "deaths"),
            Chart::lines("Last step of ranks", "Which ranks are behind? The twenty last, and the first.", Unit::Count)
                .show(of_ranks("train_rank_step").bottom(), "rank {{rank}}")
                .show(of_run("train_rank_step"), "furthest")
                .show(of_ranks("train_heartbeat_page_step").bottom(), "rank {{rank}}, by its page"),
            Chart::lines("Silent ranks", "Which ranks have not been heard of for longest?", Unit::Seconds)
                .from_zero()
                .show(of_ranks("train_heartbeat_timestamp_seconds").age().top(), "rank {{rank}}"),
            Chart::lines(
                "Stopped interpreters",
                "Whose reporting thread has not run for longest? Its process is stopped, or holds the interpreter.",
                Unit::Seconds,
            )
            .from_zero()
            .show(of_ranks("train_heartbeat_page_timestamp_seconds").age().top(), "rank {{rank}}"),
        ],
    )
}

fn config() -> Row {
    Row::folded(
        "What is it?",
        vec![
            Chart::table("Declared", "What did the trainer declare?", Unit::Count)
                .facts(run("train_run_info").max("run, framework, version, model, dtype, gpu, job_id").top()),
            Chart::table(
                "Remarks about MFU",
                "Why has it no MFU, or what does its MFU leave out?",
                Unit::Count,
            )
            .facts(run("train_mfu_remark").max("run, remark").top()),
            Chart::lines("Metrics of its own", "What else does the trainer report?", Unit::Short)
                .show(run("train_custom").max("run, name").top(), "{{name}}"),
            Chart::lines("Epochs", "How often has it seen its data?", Unit::Short)
                .width(6)
                .show(of_run("train_epoch"), "epochs"),
            Chart::lines("Attempts", "How often did it start, by our count and the launcher's?", Unit::Count)
                .width(6)
                .show(of_run("train_attempt"), "ours")
                .show(of_run("job_restart_count"), "the launcher's"),
        ],
    )
}

fn sight() -> Row {
    let sources = |name| crate::series::of(name);
    Row::folded(
        "Can we see it?",
        vec![
            Chart::states(
                "Sources that cannot be read",
                "Which log or socket is not read? The twenty first.",
            )
            .word(0.0, "cannot be read", "red")
            .show(
                sources("train_source_up").min("instance, source").equal(0.0).top(),
                "{{instance}} {{source}}",
            ),
            Chart::lines("Source lag", "How old is what we read?", Unit::Seconds).from_zero().show(
                sources("train_source_lag_seconds").max("instance, source").top(),
                "{{instance}} {{source}}",
            ),
            Chart::lines(
                "Refused",
                "What do we not take in, and why? Duplicates are ordinary.",
                Unit::PerSecond,
            )
            .from_zero()
            .show(
                sources("stepwatch_exporter_ingest_dropped_total")
                    .rate()
                    .max("instance, reason")
                    .sum("reason"),
                "ingest: {{reason}}",
            )
            .show(
                sources("train_source_dropped_total").rate().max("instance, source, reason").sum("reason"),
                "sources: {{reason}}",
            )
            .show(
                sources("train_source_unmatched_lines_total").rate().max("instance, source").sum(""),
                "lines not understood",
            )
            .show(
                sources("train_source_skipped_bytes_total").rate().max("instance, source").sum(""),
                "bytes of holes",
            ),
            Chart::lines(
                "Dropped by clients",
                "Which ranks could not send all of their events?",
                Unit::PerSecond,
            )
            .from_zero()
            .show(run("train_client_dropped_total").rate().max("run, rank").top(), "rank {{rank}}"),
            Chart::table("Resolution", "How coarsely do the logs print their values?", Unit::Scientific)
                .show(sources("train_log_resolution").max("instance, source, metric").top(), "resolution"),
        ],
    )
}
