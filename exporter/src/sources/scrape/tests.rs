use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::response::Redirect;
use axum::routing::get;
use stepwatch_kit::serve::{self, Limits};
use stepwatch_wire::{Event, Kind};

use super::*;
use crate::hub::Hub;
use crate::samples::Samples;
use crate::source::{DROPPED, LAG, UP};
use crate::testing::{hub, published};

fn config(text: &str) -> ScrapeConfig {
    stepwatch_kit::config::parse("x", &format!("url: \"http://127.0.0.1:8000/metrics\"\n{text}")).unwrap()
}

/// Scrapes expositions that the test supplies.
struct Bench {
    hub: Hub,
    scrape: Scrape,
    seen: usize,
    now: f64,
}

impl Bench {
    fn new(text: &str) -> Self {
        let hub = hub();
        let config = config(text);
        assert_eq!(config.check(), Vec::<String>::new());
        let now = unix_now();
        Self { scrape: Scrape::new(config, Box::new(hub.clone())), hub, seen: 0, now }
    }

    /// The events of an exposition, without `hello`.
    fn page(&mut self, text: &str) -> Vec<Event> {
        self.now += 5.0;
        self.scrape.take(&Fetched { text: text.into(), ..Fetched::default() }, self.now);
        let all = published(&self.hub);
        let new = all[self.seen..].iter().filter(|e| e.kind != Kind::Hello).cloned().collect();
        self.seen = all.len();
        new
    }

    fn health(&self) -> Samples {
        let mut page = Samples::default();
        self.hub.write(&mut page);
        page
    }
}

/// The series of Axolotl's callback, as the SDK's Prometheus exporter writes them.
fn axolotl(step: u32, loss: f64) -> String {
    let scope = "otel_scope_name=\"axolotl.training\",otel_scope_schema_url=\"\",otel_scope_version=\"\"";
    format!(
        "# HELP python_gc_objects_collected_total x\n# TYPE python_gc_objects_collected_total counter\n\
         python_gc_objects_collected_total{{generation=\"0\"}} {step}\n\
         # TYPE axolotl_train_loss gauge\naxolotl_train_loss{{{scope}}} {loss}\n\
         # TYPE axolotl_learning_rate gauge\naxolotl_learning_rate{{{scope}}} 1e-05\n\
         # TYPE axolotl_memory_usage_MB gauge\naxolotl_memory_usage_MB{{{scope}}} 1234\n\
         # TYPE axolotl_eval_loss gauge\naxolotl_eval_loss{{{scope}}} 1.5\n\
         # TYPE axolotl_global_steps_total counter\naxolotl_global_steps_total{{{scope}}} {step}\n"
    )
}

#[test]
fn axolotl_is_recognised() {
    let mut b = Bench::new("run: qwen-sft");
    let first = b.page(&axolotl(7, 2.5));
    assert_eq!(first.iter().map(|e| e.kind).collect::<Vec<_>>(), [Kind::Step, Kind::Eval]);
    let step = &first[0];
    assert_eq!((step.run.as_deref(), step.step), (Some("qwen-sft"), Some(7)));
    assert_eq!((step.m.get("loss"), step.m.get("lr")), (Some(2.5), Some(1e-5)));
    assert_eq!(step.m.get("axolotl_memory_usage_MB"), Some(1234.0), "what it serves beside is custom");
    assert_eq!(step.m.get("python_gc_objects_collected_total"), None);
    assert_eq!(first[1].m.get("loss"), Some(1.5));
    assert!(b.page(&axolotl(7, 2.5)).is_empty());
    let next = b.page(&axolotl(9, 2.25));
    assert_eq!((next.len(), next[0].step, next[0].m.get("loss")), (1, Some(9), Some(2.25)));
    assert!(b.page(&axolotl(10, f64::NAN))[0].m.get("loss").unwrap().is_nan());
}

#[test]
fn prime_rl_exposes_the_time_of_its_step() {
    let mut b = Bench::new("");
    let now = b.now;
    let page = |step: u32, at: f64| {
        format!(
            "trainer_step {step}\ntrainer_loss 0.25\ntrainer_throughput_tokens_per_sec 1000\ntrainer_mfu_percent 41.5\n\
             trainer_last_step_timestamp_seconds {at}\ntrainer_entropy 0.5\ntrainer_mismatch_kl 0.{step}\n"
        )
    };
    let first = b.page(&page(5, now + 2.0));
    assert_eq!((first[0].run.as_deref(), first[0].step), (Some("127.0.0.1:8000"), Some(5)));
    for (name, value) in
        [("loss", 0.25), ("tokens_per_second", 1000.0), ("mfu_reported", 0.415), ("trainer_entropy", 0.5)]
    {
        assert_eq!(first[0].m.get(name), Some(value), "{name}");
    }
    assert_eq!(b.health().get(&LAG, &["http://127.0.0.1:8000/metrics", "scrape"]).map(f64::round), Some(3.0));
    let next = b.page(&page(7, now + 8.0));
    assert_eq!(next[0].m.get("step_time").map(f64::round), Some(3.0), "from the times it exposes");
}

#[test]
fn ray_exposes_states_and_what_belongs_to_the_steps_of_others() {
    let mut b = Bench::new("");
    let page = |state: &str, blocked: f64| {
        let run = "ray_train_run_name=\"sft\",ray_train_run_id=\"1\"";
        let of = |s: &str| {
            let now = u8::from(s == state);
            format!("ray_train_controller_state{{{run},ray_train_controller_state=\"{s}\"}} {now}\n")
        };
        format!(
            "# TYPE ray_train_controller_state gauge\n{}{}ray_train_report_total_blocked_time_s{{{run},ray_train_worker_world_rank=\"1\"}} {blocked}\n\
             ray_node_cpu_utilization 3\n",
            of("RUNNING"),
            of("RESTARTING")
        )
    };
    let first = b.page(&page("RUNNING", 1.0));
    assert_eq!((first.len(), first[0].text.as_deref()), (1, Some("the Ray Train controller is RUNNING")));
    assert!(b.page(&page("RUNNING", 2.0)).is_empty());
    let next = b.page(&page("RESTARTING", 3.0));
    assert_eq!(next[0].text.as_deref(), Some("the Ray Train controller is RESTARTING, after RUNNING"));
    assert_eq!((next[0].run.as_deref(), next[0].level.as_deref()), (Some("sft"), Some("warn")));
    let real = Event { rank: Some(1), ..Event::step("sft", 40) };
    b.hub.publish(Origin::Http(crate::principal::Principal::Exporter), real);
    let with = b.page(&page("RESTARTING", 4.5));
    let last = with.last().unwrap();
    assert_eq!((last.rank, last.step), (Some(1), Some(40)));
    assert_eq!(last.m.get("ray_train_report_total_blocked_time_s"), Some(4.5));
}

#[test]
fn relabelling() {
    let mut b = Bench::new(
        "run: mine\nrank: 2\nmetrics: {ce: loss, iter: step, sec: step_time}\nkeep: [\"my_*\"]\ndrop: [\"*_secret\"]\n",
    );
    let page = "ce 3\niter 12\n# TYPE sec histogram\nsec_bucket{le=\"+Inf\"} 2\nsec_count 2\nsec_sum 5\nmy_a 1\nmy_secret 2\nother 3\n";
    let first = b.page(page);
    assert_eq!((first[0].run.as_deref(), first[0].rank, first[0].step), (Some("mine"), Some(2), Some(12)));
    assert_eq!((first[0].m.get("loss"), first[0].m.get("my_a"), first[0].m.len()), (Some(3.0), Some(1.0), 2));
    let next = b.page(
        &page
            .replace("iter 12", "iter 14")
            .replace("sec_count 2", "sec_count 4")
            .replace("sec_sum 5", "sec_sum 11"),
    );
    assert_eq!(next[0].m.get("step_time"), Some(3.0), "the mean of what was added");
    let mut b = Bench::new("labels: {run: job_name, rank: worker}");
    let page = "loss{job_name=\"a\",worker=\"0\"} 1\nloss{job_name=\"a\",worker=\"1\"} 2\nstep{job_name=\"a\",worker=\"0\"} 5\n";
    let events: Vec<_> = b.page(page).iter().map(|e| (e.run.clone(), e.rank, e.step)).collect();
    assert_eq!(events, [(Some("a".into()), Some(0), Some(5)), (Some("a".into()), Some(1), Some(1))]);
}

#[test]
fn labels_distinguish_series_of_one_name() {
    let mut b = Bench::new("");
    let events = b.page("step 3\nloss{kind=\"lm\"} 1\nloss{kind=\"aux\"} 2\nlr{group=\"0\"} 0.5\n");
    let m = &events[0].m;
    assert_eq!(
        (m.get("loss"), m.get("loss{kind=lm}"), m.get("loss{kind=aux}")),
        (None, Some(1.0), Some(2.0))
    );
    assert_eq!(m.get("lr"), Some(0.5), "one that is alone is what its name says");
}

#[test]
fn mistakes_of_the_configuration_are_named() {
    let wrong = |text: &str| {
        let config: ScrapeConfig = stepwatch_kit::config::parse("x", text).unwrap();
        config.check().join("\n")
    };
    insta::assert_snapshot!(wrong(
        "{url: nowhere, interval: 1ms, format: prometeus, keep: ['a['], drop: ['[b'], metrics: {a: ''}}"
    ));
    assert_eq!(wrong("{url: 'ftp://x/'}"), "url: must be http or https, not ftp");
}

#[test]
fn secrets_of_a_url_are_not_shown() {
    assert_eq!(client::shown("http://u:pw@h:1/metrics?token=x"), "http://h:1/metrics");
    assert_eq!(config("").address(), "127.0.0.1:8000");
}

#[tokio::test]
async fn an_endpoint_comes_goes_and_is_bounded() {
    let page = Arc::new(Mutex::new(axolotl(1, 2.5)));
    let served = Arc::clone(&page);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let asking = Arc::clone(&asked);
    let elsewhere = format!("http://localhost:{}/metrics", addr.port());
    let router = Router::new()
        .route("/metrics", get(move || async move { served.lock().unwrap().clone() }))
        .route("/moved", get(|| async { Redirect::temporary("/metrics") }))
        .route(
            "/away",
            get(move || {
                asking.fetch_add(1, Ordering::Relaxed);
                async move { Redirect::temporary(&elsewhere) }
            }),
        )
        .route("/circle", get(|| async { Redirect::temporary("/circle") }))
        .route("/large", get(|| async { "#".repeat(9 << 20) }));
    let (trigger, shutdown) = Shutdown::manual();
    let server = tokio::spawn(serve::serve(listener, router, Limits::default(), None, shutdown));
    let hub = hub();
    let around = Surroundings {
        hub: hub.clone(),
        nvml: crate::nvml::Nvml::default(),
        roots: crate::roots::Roots::default(),
        state_dir: "/nowhere".into(),
    };
    let (scrapes, stop) = Shutdown::manual();
    for path in ["metrics", "large", "moved", "away", "circle"] {
        let text = format!("{{url: \"http://{addr}/{path}\", interval: 100ms, run: r}}");
        start(stepwatch_kit::config::parse("x", &text).unwrap(), &around, stop.clone());
    }
    let url = format!("http://{addr}/metrics");
    let large = format!("http://{addr}/large");
    let sample = |family, labels: &[&str]| {
        let mut page = Samples::default();
        hub.write(&mut page);
        page.get(family, labels)
    };
    until(|| sample(&UP, &[&url, "scrape"]) == Some(1.0) && !published(&hub).is_empty()).await;
    until(|| sample(&DROPPED, &[&large, "scrape", "too_large"]).is_some()).await;
    assert_eq!(sample(&UP, &[&large, "scrape"]), Some(0.0));
    let up = |path: &str| sample(&UP, &[&format!("http://{addr}/{path}"), "scrape"]);
    until(|| up("moved") == Some(1.0)).await;
    // The last scrape but one has ended.
    until(|| asked.load(Ordering::Relaxed) >= 3).await;
    assert_eq!([up("away"), up("circle")], [Some(0.0); 2]);
    *page.lock().unwrap() = axolotl(2, 2.0);
    until(|| published(&hub).iter().any(|e| e.step == Some(2))).await;
    trigger.fire();
    server.await.unwrap().unwrap();
    until(|| sample(&UP, &[&url, "scrape"]) == Some(0.0)).await;
    scrapes.fire();
}

#[tokio::test]
async fn a_page_that_is_written_to_is_fetched_again() {
    // The step is set before the loss, as in prime-rl.
    let pages = [axolotl(5, 2.5), axolotl(5, 2.5), axolotl(6, 2.5), axolotl(6, 2.25)];
    let asked = Arc::new(AtomicUsize::new(0));
    let asking = Arc::clone(&asked);
    let serve = move || async move {
        let served = asking.fetch_add(1, Ordering::Relaxed);
        pages[served.min(pages.len() - 1)].clone()
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/metrics", listener.local_addr().unwrap());
    let (_trigger, shutdown) = Shutdown::manual();
    tokio::spawn(serve::serve(
        listener,
        Router::new().route("/metrics", get(serve)),
        Limits::default(),
        None,
        shutdown,
    ));
    let client = Client::new(&url, MAX_TIMEOUT).unwrap();
    let mut bench = Bench::new("run: r");
    let mut fetches = Vec::new();
    for _ in 0..3 {
        let fetched = bench.scrape.fetch(&client).await.unwrap();
        fetches.push(asked.load(Ordering::Relaxed));
        bench.scrape.take(&fetched, unix_now());
    }
    assert_eq!(fetches, [2, 5, 6], "a page that shows nothing new is fetched once");
    let steps = published(&bench.hub).into_iter().filter(|e| e.kind == Kind::Step);
    let losses: Vec<_> = steps.map(|e| (e.step.unwrap(), e.m.get("loss").unwrap())).collect();
    assert_eq!(losses, [(5, 2.5), (6, 2.25)]);
}

async fn until(mut condition: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(std::time::Instant::now() < deadline, "it did not come");
        tokio::task::yield_now().await;
    }
}

proptest::proptest! {
    #[test]
    fn never_panics(text in "(?s).{0,200}", at in 0usize..600, byte in 0u8..128) {
        let mut b = Bench::new("keep: ['*']");
        b.page(&text);
        let mut damaged = axolotl(3, 2.5).into_bytes();
        let at = at % damaged.len();
        damaged[at] = byte;
        b.page(&String::from_utf8(damaged).unwrap());
    }
}
