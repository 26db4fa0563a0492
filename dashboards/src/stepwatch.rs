//! Stepwatch itself: do exporters and alerter see everything, keep up, and stay small?

use crate::head;
use crate::layout::{Board, Chart, Row};
use crate::model::Unit;
use crate::series::{Expr, Series, alerter, of};

pub(crate) fn board() -> Board {
    Board {
        uid: "stepwatch-self",
        title: "Stepwatch / Stepwatch itself",
        description: "The exporters of all nodes and the alerter: what they see, drop and cost.",
        variables: head::of_fleet,
        annotations: || vec![head::incidents()],
        rows: vec![
            alerter_input(),
            alerter_engine(),
            alerter_replicas(),
            alerter_limits(),
            remote_write(),
            collectors(),
            text_files(),
            exporter_input(),
            exporter_stream(),
            exporter_cost(),
            http(),
        ],
    }
}

/// One value an alerter.
fn each(name: &'static str) -> Expr {
    alerter(name).max("instance")
}

fn rate(name: &'static str) -> Expr {
    alerter(name).rate().max("instance")
}

fn increase(name: &'static str) -> Expr {
    alerter(name).increase().max("instance")
}

/// Of all exporters together.
fn all(series: &Series, labels: &str) -> Expr {
    let inner = if labels.is_empty() { "instance".to_owned() } else { format!("instance, {labels}") };
    series.max(&inner).sum(labels)
}

/// Of all exporters together, as a rate.
fn all_rate(name: &'static str, labels: &str) -> Expr {
    all(&of(name).rate(), labels)
}

fn alerter_input() -> Row {
    Row::open(
        "Does the alerter see everything?",
        vec![
            Chart::lines(
                "Sources",
                "How many exporters does the alerter follow, of those that it knows?",
                Unit::Count,
            )
            .from_zero()
            .show(each("stepwatch_alerter_sources"), "{{instance}} known")
            .show(
                alerter("stepwatch_alerter_source_up").max("instance, source").sum("instance"),
                "{{instance}} followed",
            ),
            Chart::table(
                "Sources that are not followed",
                "Which exporters does the alerter not read?",
                Unit::Count,
            )
            .facts(alerter("stepwatch_alerter_source_up").max("instance, source").equal(0.0).top()),
            Chart::lines("Records", "How much does the alerter read?", Unit::PerSecond)
                .from_zero()
                .show(
                    alerter("stepwatch_alerter_events_total").rate().max("instance, kind").sum("kind"),
                    "{{kind}}",
                )
                .show(rate("stepwatch_alerter_steps_total"), "{{instance}} steps"),
            Chart::lines("Streams", "Do streams break?", Unit::PerSecond)
                .from_zero()
                .show(rate("stepwatch_alerter_connects_total"), "{{instance}} opened")
                .show(rate("stepwatch_alerter_disconnects_total"), "{{instance}} ended"),
            Chart::lines("Lost on the way", "What did exporters no longer have, or send badly?", Unit::Count)
                .from_zero()
                .show(increase("stepwatch_alerter_gaps_total"), "{{instance}} gaps")
                .show(increase("stepwatch_alerter_lost_records_total"), "{{instance}} records in gaps")
                .show(
                    alerter("stepwatch_alerter_malformed_records_total").increase().max("instance, reason"),
                    "{{instance}} malformed: {{reason}}",
                ),
            Chart::lines("Discovery", "Can the lists of targets be read?", Unit::Count).from_zero().show(
                alerter("stepwatch_alerter_discovery_failures_total").increase().max("instance, mechanism"),
                "{{instance}} {{mechanism}} failures",
            ),
        ],
    )
}

fn alerter_engine() -> Row {
    let quantile = |name, q| alerter(name).rate().max("instance, le").quantile_of_buckets(q);
    Row::open(
        "Does the alerter keep up?",
        vec![
            Chart::lines("Behind", "How long ago is what the alerter judges now?", Unit::Seconds)
                .from_zero()
                .show(each("stepwatch_alerter_clock_behind_seconds"), "{{instance}}"),
            Chart::lines("Judging a batch", "How long does the engine take?", Unit::Seconds)
                .log()
                .show(quantile("stepwatch_alerter_engine_seconds_bucket", 0.5), "{{instance}} median")
                .show(quantile("stepwatch_alerter_engine_seconds_bucket", 0.99), "{{instance}} 99 %"),
            Chart::lines("Commit", "How long does it take until a batch is durable?", Unit::Seconds)
                .log()
                .show(quantile("stepwatch_alerter_commit_seconds_bucket", 0.5), "{{instance}} median")
                .show(quantile("stepwatch_alerter_commit_seconds_bucket", 0.99), "{{instance}} 99 %"),
            Chart::lines("Store", "Does the store refuse?", Unit::Count)
                .from_zero()
                .show(increase("stepwatch_alerter_commit_failures_total"), "{{instance}} commits failed")
                .show(
                    increase("stepwatch_alerter_outbox_store_errors_total"),
                    "{{instance}} errors of the outbox",
                )
                .show(each("stepwatch_alerter_pending_effects"), "{{instance}} effects not durable")
                .show(
                    increase("stepwatch_alerter_history_dropped_total"),
                    "{{instance}} lines of history given up",
                ),
            Chart::lines("Runs", "How many runs does it watch?", Unit::Count)
                .from_zero()
                .show(each("stepwatch_alerter_runs"), "{{instance}}"),
            Chart::lines("Waits for the engine", "How often did reading a stream wait?", Unit::PerSecond)
                .from_zero()
                .show(rate("stepwatch_alerter_ingest_backpressure_total"), "{{instance}}"),
            Chart::states("Configuration", "Was the last change of the configuration taken?")
                .word(1.0, "taken", "green")
                .word(0.0, "refused", "red")
                .show(
                    alerter("stepwatch_alerter_config_last_reload_successful").min("instance"),
                    "{{instance}}",
                ),
            Chart::number("Configuration since", "When was the configuration in force taken?", Unit::Seconds)
                .show(
                    each("stepwatch_alerter_config_last_reload_success_timestamp_seconds").age(),
                    "{{instance}} ago",
                ),
            Chart::number(
                "Flawed incidents",
                "Is there an incident that nobody would hear of? It would be a bug.",
                Unit::Count,
            )
            .threshold(1.0, "red")
            .show(each("stepwatch_alerter_flawed_incidents"), "{{instance}}"),
            Chart::number(
                "State not read",
                "Which part of the stored state could this version not read?",
                Unit::Count,
            )
            .threshold(1.0, "orange")
            .show(
                alerter("stepwatch_alerter_state_parts_discarded_total").increase_in("24h").max("instance"),
                "{{instance}} parts",
            ),
        ],
    )
}

fn alerter_replicas() -> Row {
    Row::folded(
        "Which replica of the alerter leads?",
        vec![
            Chart::states("Leader", "Which replica decides and sends?")
                .word(1.0, "leads", "green")
                .word(0.0, "stands by", "blue")
                .show(each("stepwatch_alerter_leader"), "{{instance}}"),
            Chart::lines("Replicas", "How many run, and how many differ from the leader?", Unit::Count)
                .from_zero()
                .show(each("stepwatch_alerter_replicas"), "{{instance}} run")
                .show(each("stepwatch_alerter_replicas_differing"), "{{instance}} differ"),
            Chart::lines("Take-overs", "How often did another replica take the lease?", Unit::Count)
                .show(each("stepwatch_alerter_lease_epoch"), "{{instance}} epoch"),
        ],
    )
}

fn alerter_limits() -> Row {
    Row::folded(
        "What does the alerter leave out?",
        vec![
            Chart::lines("Over limits", "What is beyond the most that is watched?", Unit::PerSecond)
                .from_zero()
                .show(
                    rate("stepwatch_alerter_events_over_limit_total"),
                    "{{instance}} records of runs and nodes",
                )
                .show(rate("stepwatch_alerter_signals_over_limit_total"), "{{instance}} numbers of series")
                .show(rate("stepwatch_alerter_batches_forgotten_total"), "{{instance}} places of spikes")
                .show(
                    rate("stepwatch_alerter_planned_restarts_dropped_total"),
                    "{{instance}} planned restarts",
                )
                .show(rate("stepwatch_alerter_run_changes_dropped_total"), "{{instance}} changes of runs")
                .show(rate("stepwatch_alerter_ledger_rows_dropped_total"), "{{instance}} hours of reports"),
            Chart::lines("Pictures", "How much is kept for pictures of runs?", Unit::Bytes)
                .from_zero()
                .show(each("stepwatch_alerter_series_bytes"), "{{instance}}"),
            Chart::lines("Signals", "How many signals are kept, and how many are not shown?", Unit::Count)
                .from_zero()
                .show(each("stepwatch_alerter_series"), "{{instance}} kept")
                .show(
                    each("stepwatch_alerter_expectations_hidden"),
                    "{{instance}} expectations beyond the limit",
                )
                .show(
                    each("stepwatch_alerter_ledgers_hidden"),
                    "{{instance}} runs whose GPU time is beyond the limit",
                )
                .show(
                    alerter("stepwatch_alerter_series_dropped_total").increase().max("instance, what"),
                    "{{instance}} missing in pictures: {{what}}",
                ),
            Chart::lines(
                "Refused of exporters",
                "Which exporter sends what is not its own?",
                Unit::PerSecond,
            )
            .from_zero()
            .show(
                alerter("stepwatch_alerter_source_refused_total")
                    .rate()
                    .max("instance, source, reason")
                    .top(),
                "{{source}} {{reason}}",
            ),
            Chart::lines("Refused requests", "Who is not let in?", Unit::PerSecond).from_zero().show(
                alerter("stepwatch_alerter_api_refused_total").rate().max("instance, reason"),
                "{{instance}} {{reason}}",
            ),
            Chart::lines("Requests by token", "Who uses the API?", Unit::PerSecond).from_zero().show(
                alerter("stepwatch_alerter_api_token_requests_total").rate().max("instance, token").top(),
                "{{token}}",
            ),
        ],
    )
}

fn collectors() -> Row {
    Row::open(
        "Do the exporters see their nodes?",
        vec![
            Chart::lines(
                "Collectors by state",
                "In which state are the collectors of all nodes?",
                Unit::Count,
            )
            .from_zero()
            .show(
                all(&of("stepwatch_exporter_collector_state"), "collector, state").above(0.0).top(),
                "{{collector}} {{state}}",
            ),
            Chart::lines("Failing collectors", "On how many nodes does which collector fail?", Unit::Count)
                .from_zero()
                .show(
                    of("stepwatch_exporter_collector_success")
                        .min("instance, collector")
                        .is(0.0)
                        .sum("collector")
                        .above(0.0),
                    "{{cluster}} {{collector}}",
                ),
            Chart::lines("Failures", "How do collections fail?", Unit::PerSecond).from_zero().show(
                all_rate("stepwatch_exporter_collector_failures_total", "collector, how").above(0.0).top(),
                "{{collector}} {{how}}",
            ),
            Chart::lines("Duration", "Which collector takes longest, at worst?", Unit::Seconds).log().show(
                of("stepwatch_exporter_collector_duration_seconds").max("collector").top(),
                "{{collector}}",
            ),
            Chart::table("Stuck collectors", "Where has a collection not returned?", Unit::Seconds).show(
                of("stepwatch_exporter_collector_stuck_seconds").max("instance, collector").above(0.0).top(),
                "over its deadline",
            ),
            Chart::table(
                "Longest without success",
                "Which collector has not succeeded for longest?",
                Unit::Seconds,
            )
            .show(
                of("stepwatch_exporter_collector_last_success_timestamp_seconds")
                    .max("instance, collector")
                    .age()
                    .top(),
                "since the last success",
            ),
            Chart::lines("Collections", "How often is collected?", Unit::PerSecond).from_zero().show(
                all_rate("stepwatch_exporter_collector_collections_total", "collector").top(),
                "{{collector}}",
            ),
            Chart::lines(
                "Series left out",
                "Which collector has more series than it may publish?",
                Unit::Count,
            )
            .from_zero()
            .show(
                all(&of("stepwatch_exporter_collector_series_left_out"), "collector").above(0.0).top(),
                "{{cluster}} {{collector}}",
            ),
        ],
    )
}

fn text_files() -> Row {
    Row::folded(
        "Do scripts leave their files?",
        vec![
            Chart::table("Text files", "Which scripts have not written for longest?", Unit::Seconds).show(
                of("stepwatch_exporter_textfile_mtime_timestamp_seconds").max("instance, file").age().top(),
                "since the last write",
            ),
            Chart::lines("Text files refused", "What of the scripts is not published?", Unit::Count)
                .from_zero()
                .show(
                    of("stepwatch_exporter_textfile_error").max("instance, file").sum(""),
                    "{{cluster}} files",
                )
                .show(
                    all(&of("stepwatch_exporter_textfile_refused_series_total").increase(), "reason"),
                    "{{cluster}} series, {{reason}}",
                ),
        ],
    )
}

fn exporter_input() -> Row {
    Row::open(
        "Do the exporters see the runs?",
        vec![
            Chart::lines("Events", "How much comes in, and by which way?", Unit::PerSecond)
                .from_zero()
                .show(all_rate("stepwatch_exporter_ingest_events_total", "via"), "{{cluster}} {{via}}"),
            Chart::lines(
                "Refused events",
                "What do we not take in, and why? Duplicates are ordinary.",
                Unit::PerSecond,
            )
            .from_zero()
            .show(all_rate("stepwatch_exporter_ingest_dropped_total", "reason"), "{{cluster}} {{reason}}"),
            Chart::lines(
                "Refused to users",
                "Who sends more than their share, or for runs of others?",
                Unit::PerSecond,
            )
            .from_zero()
            .show(
                all_rate("stepwatch_exporter_ingest_refused_total", "user, reason"),
                "{{cluster}} uid {{user}} {{reason}}",
            ),
            Chart::lines("Connections", "How many ranks are connected?", Unit::Count)
                .from_zero()
                .show(all(&of("stepwatch_exporter_ingest_connections"), ""), "{{cluster}} connections")
                .show(all(&of("stepwatch_exporter_runs"), ""), "{{cluster}} runs, counted once a node"),
            Chart::lines("Held back", "What was slowed down, or not looked at?", Unit::PerSecond)
                .from_zero()
                .show(
                    all_rate("stepwatch_exporter_ingest_throttled_total", ""),
                    "{{cluster}} pauses of fast senders",
                )
                .show(
                    all_rate("stepwatch_exporter_heartbeat_pages_dropped_total", ""),
                    "{{cluster}} heartbeat pages not read",
                ),
            Chart::lines("State not saved", "Would a restart of an exporter forget something?", Unit::Count)
                .from_zero()
                .show(
                    all(&of("stepwatch_exporter_state_save_failures_total").increase(), ""),
                    "{{cluster}} states",
                )
                .show(
                    all(&of("stepwatch_exporter_stream_journal_failures_total").increase(), ""),
                    "{{cluster}} journals",
                ),
        ],
    )
}

fn exporter_stream() -> Row {
    Row::folded(
        "Do the streams keep up?",
        vec![
            Chart::lines("Nodes without a reader", "How many exporters does no alerter follow?", Unit::Count)
                .from_zero()
                .show(
                    of("stepwatch_exporter_stream_readers").max("instance").is(0.0).sum(""),
                    "{{cluster}} without",
                )
                .show(all(&of("stepwatch_exporter_stream_readers"), ""), "{{cluster}} readers"),
            Chart::lines("Stream records", "How much is published, and given up for room?", Unit::PerSecond)
                .from_zero()
                .show(all_rate("stepwatch_exporter_stream_records_total", ""), "{{cluster}} published")
                .show(all_rate("stepwatch_exporter_stream_evicted_total", ""), "{{cluster}} given up"),
            Chart::lines("Cut and gaps", "Do readers fall behind?", Unit::Count)
                .from_zero()
                .show(
                    all(&of("stepwatch_exporter_stream_cut_total").increase(), "reason"),
                    "{{cluster}} cut off, {{reason}}",
                )
                .show(
                    all(&of("stepwatch_exporter_stream_gaps_total").increase(), ""),
                    "{{cluster}} with gaps",
                ),
            Chart::lines("Ring", "How much do the fullest rings hold?", Unit::Bytes)
                .from_zero()
                .show(of("stepwatch_exporter_stream_ring_bytes").max(""), "{{cluster}} fullest"),
            Chart::lines("Ring records", "How many records do the fullest rings hold?", Unit::Count)
                .from_zero()
                .show(of("stepwatch_exporter_stream_ring_records").max(""), "{{cluster}} fullest"),
        ],
    )
}

fn exporter_cost() -> Row {
    let cpu = of("stepwatch_exporter_cpu_seconds_total").rate().max("instance");
    let memory = of("stepwatch_exporter_resident_memory_bytes").max("instance");
    Row::open(
        "What do the exporters cost?",
        vec![
            Chart::lines("CPU", "How much of a core does an exporter use?", Unit::Ratio)
                .from_zero()
                .show(cpu.quantile(0.5, ""), "{{cluster}} median")
                .show(cpu.max(""), "{{cluster}} most"),
            Chart::lines("Memory", "How much memory does an exporter hold?", Unit::Bytes)
                .from_zero()
                .show(memory.quantile(0.5, ""), "{{cluster}} median")
                .show(memory.max(""), "{{cluster}} most"),
            Chart::lines(
                "Exposition",
                "How long does /metrics take to render, and how old is the oldest?",
                Unit::Seconds,
            )
            .from_zero()
            .show(
                of("stepwatch_exporter_exposition_render_duration_seconds").max(""),
                "{{cluster}} slowest to render",
            )
            .show(of("stepwatch_exporter_exposition_timestamp_seconds").min("").age(), "{{cluster}} oldest"),
            Chart::lines(
                "Series of an exposition",
                "How many series has /metrics, and were some left out?",
                Unit::Count,
            )
            .from_zero()
            .show(of("stepwatch_exporter_exposition_series").max(""), "{{cluster}} most")
            .show(
                all(&of("stepwatch_exporter_exposition_series_left_out_total").increase(), ""),
                "{{cluster}} left out",
            ),
            Chart::table("Youngest exporters", "Which exporters were restarted last?", Unit::Seconds).show(
                of("stepwatch_exporter_start_timestamp_seconds").max("instance").age().bottom(),
                "running for",
            ),
        ],
    )
}

fn remote_write() -> Row {
    Row::folded(
        "What does Prometheus write?",
        vec![
            Chart::lines(
                "Samples written",
                "How many samples come, and how many of them mean something?",
                Unit::PerSecond,
            )
            .from_zero()
            .show(
                alerter("stepwatch_alerter_remote_write_samples_total").rate().max("instance"),
                "{{instance}} all",
            )
            .show(
                alerter("stepwatch_alerter_remote_write_watched_samples_total").rate().max("instance"),
                "{{instance}} watched",
            ),
            Chart::lines("Series written", "How many series are known?", Unit::Count)
                .from_zero()
                .show(alerter("stepwatch_alerter_remote_write_series").max("instance"), "{{instance}} all")
                .show(
                    alerter("stepwatch_alerter_remote_write_watched_series").max("instance"),
                    "{{instance}} watched",
                ),
            Chart::lines("Samples not judged", "Why are samples dropped?", Unit::PerSecond).from_zero().show(
                alerter("stepwatch_alerter_remote_write_dropped_samples_total")
                    .rate()
                    .max("instance, reason"),
                "{{instance}} {{reason}}",
            ),
            Chart::lines("Write requests", "How are requests answered?", Unit::PerSecond).from_zero().show(
                alerter("stepwatch_alerter_remote_write_requests_total").rate().max("instance, code"),
                "{{instance}} {{code}}",
            ),
        ],
    )
}

fn http() -> Row {
    let both = |chart: Chart, of_exporters: Expr, of_alerter: Expr| {
        chart.from_zero().show(of_exporters, "{{cluster}} exporters").show(of_alerter, "{{instance}} alerter")
    };
    Row::folded(
        "Who asks, and who is refused?",
        vec![
            Chart::lines("Requests", "What is answered, by status?", Unit::PerSecond)
                .from_zero()
                .show(all_rate("stepwatch_exporter_http_requests_total", "code"), "exporters {{code}}")
                .show(
                    alerter("stepwatch_alerter_http_requests_total").rate().max("instance, code").sum("code"),
                    "alerter {{code}}",
                ),
            both(
                Chart::lines("HTTP connections", "How many connections are open?", Unit::Count),
                all(&of("stepwatch_exporter_http_connections"), ""),
                each("stepwatch_alerter_http_connections"),
            ),
            Chart::lines(
                "Connections refused",
                "Why are connections closed before a request?",
                Unit::PerSecond,
            )
            .from_zero()
            .show(
                all_rate("stepwatch_exporter_http_connections_refused_total", "reason"),
                "exporters {{reason}}",
            )
            .show(
                alerter("stepwatch_alerter_http_connections_refused_total").rate().max("instance, reason"),
                "alerter {{reason}}",
            ),
            both(
                Chart::lines("Over the rate limit", "Who asks too often?", Unit::PerSecond),
                all_rate("stepwatch_exporter_http_requests_rate_limited_total", ""),
                rate("stepwatch_alerter_http_requests_rate_limited_total"),
            ),
            both(
                Chart::lines("Bodies refused", "Which bodies are too many or too slow?", Unit::PerSecond),
                all_rate("stepwatch_exporter_http_bodies_refused_total", ""),
                rate("stepwatch_alerter_http_bodies_refused_total"),
            ),
            Chart::lines("Shed", "Which requests of the alerter found no room?", Unit::PerSecond)
                .from_zero()
                .show(
                    alerter("stepwatch_alerter_requests_shed_total").rate().max("instance, pool, reason"),
                    "{{instance}} {{pool}} {{reason}}",
                ),
            both(
                Chart::lines("Foreign requests", "Do pages of other sites ask?", Unit::PerSecond),
                all_rate("stepwatch_exporter_http_requests_foreign_total", ""),
                rate("stepwatch_alerter_http_requests_foreign_total"),
            ),
        ],
    )
}
