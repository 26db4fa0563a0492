//! Tests charts in Slack against a fake that refuses what Slack refuses, and what is stored of
//! them.

mod kill;

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use stepwatch_fakes::{Fake, FakeSlack, Fault, Post, Slack as Service};
use stepwatch_model::Severity;
use stepwatch_model::time::Ts;
use stepwatch_respond::effect::{Action, Effect};
use tempfile::TempDir;

use super::*;
use crate::chart::curve::CurvePoint;
use crate::notify::tests::page;
use crate::notify::{Attempt, ReceiverConfig, slack};
use crate::outbox::Receivers;
use crate::store::tests::incident;
use crate::store::{Commit, DeliveryOutcome, DeliveryState};

const ID: &str = "01J9ZC7Q3F8D2V4X6Y8Z0A2B4C";
const CHAT: &str = "chat";

/// A run whose loss is NaN from step 100 on.
#[derive(Debug, Default)]
pub(crate) struct Fixed {
    /// Whether the run is no longer known.
    gone: AtomicBool,
}

impl Curves for Fixed {
    fn window(
        &self,
        run: &str,
        signal: &str,
        from: Option<i64>,
        to: Option<i64>,
        points: usize,
    ) -> Option<(Curve, Vec<Deed>)> {
        if run != "llama-70b" || signal != "loss" || self.gone.load(Ordering::SeqCst) {
            return None;
        }
        let steps = from.unwrap_or(0).max(40)..=to.unwrap_or(140).min(140);
        let point = |step: i64| {
            let v = (step < 100).then_some(2.3 - 0.001 * step as f64);
            CurvePoint {
                from: step,
                to: step,
                min: v,
                max: v,
                last: v,
                nonfinite: u32::from(v.is_none()),
                attempt: 0,
            }
        };
        let points = steps.take(points).map(point).collect();
        Some((Curve { signal: signal.into(), points, band: Vec::new() }, Vec::new()))
    }
}

struct Bench {
    fake: FakeSlack,
    store: Store,
    curves: Arc<Fixed>,
    charts: Charts,
    shower: gallery::Shower,
    receivers: Receivers,
    now: Arc<AtomicI64>,
    dir: TempDir,
}

/// A receiver whose configuration is the files in a directory.
fn receivers(dir: &std::path::Path, api_url: &str) -> Receivers {
    let config = slack::Config {
        channel: Some("#training".into()),
        token_file: Some(dir.join("token")),
        api_url: format!("{api_url}/api"),
        ..slack::Config::default()
    };
    let config = ReceiverConfig { name: CHAT.into(), slack: Some(config), ..ReceiverConfig::default() };
    [(CHAT.to_owned(), config.build().unwrap())].into()
}

fn with_files() -> Service {
    let mut service = Service::default();
    service.scopes.insert(Service::FILES.into());
    service
}

impl Bench {
    async fn new() -> Self {
        Self::with(with_files()).await
    }

    async fn with(service: Service) -> Self {
        let (fake, dir) = (Fake::start_with(service).await, tempfile::tempdir().unwrap());
        std::fs::write(dir.path().join("token"), Service::TOKEN).unwrap();
        let store = Store::open(dir.path().join("alerter.db")).await.unwrap();
        let curves = Arc::new(Fixed::default());
        let metrics = PictureMetrics::default();
        let charts = Charts::new(store.clone(), Arc::<Fixed>::clone(&curves), metrics);
        let now = Arc::new(AtomicI64::new(1_795_227_405_000));
        let clock = Arc::clone(&now);
        let clock = Arc::new(move || Ts(clock.load(Ordering::SeqCst)));
        let shower = gallery::Shower::for_tests(charts.clone(), clock);
        let receivers = receivers(dir.path(), &fake.url());
        Self { fake, store, curves, charts, shower, receivers, now, dir }
    }

    fn at(&self) -> Ts {
        Ts(self.now.load(Ordering::SeqCst))
    }

    fn pass(&self, time: Duration) {
        self.now.fetch_add(time.as_millis() as i64, Ordering::SeqCst);
    }

    async fn commit(&self, record: IncidentRecord, seq: u32, action: Action) {
        commit(&self.store, record, seq, action, self.at()).await;
    }

    /// Delivers the waiting messages, as the outbox does.
    async fn deliver(&self) {
        deliver(&self.store, &self.receivers, self.at()).await;
    }

    /// Runs one pass that stores charts, and one that shows them.
    async fn look(&mut self) {
        keeper::take(&self.store, &*self.curves, self.at()).await.unwrap();
        self.shower.look(&self.receivers).await;
    }

    async fn opened(&mut self) {
        self.commit(incident(ID, State::Open), 1, Action::Trigger).await;
        self.deliver().await;
        self.look().await;
    }

    /// The names of the files that readers of the thread see.
    fn shown(&self) -> Vec<String> {
        shown(&self.fake)
    }

    fn file_requests(&self) -> usize {
        self.fake.with(|s| {
            s.requests.iter().filter(|r| r.path.contains("files.") || r.path.contains("/upload/")).count()
        })
    }
}

fn shown(fake: &FakeSlack) -> Vec<String> {
    fake.with(|s| {
        let Some(top) = s.top().next() else { return Vec::new() };
        let file = |p: &Post| p.file.clone();
        s.replies(&top.ts).filter_map(file).filter(|id| s.shown_files().any(|f| f.id == *id)).collect()
    })
}

async fn commit(store: &Store, record: IncidentRecord, seq: u32, action: Action, at: Ts) {
    let n = page(CHAT, seq, action);
    let effects = vec![Effect::Incident(Box::new(record)), Effect::Notify(Box::new(n))];
    store.commit(&Commit { effects, at, ..Commit::default() }).await.unwrap();
}

async fn deliver(store: &Store, receivers: &Receivers, at: Ts) {
    while let Some(claim) = store.claim(ID, CHAT, false, at).await.unwrap() {
        let attempt = Attempt { memory: claim.memory.as_deref(), ..Attempt::first(&claim.notification) };
        let receipt = receivers[CHAT].send(attempt).await.unwrap();
        let (n, memory) = (&claim.notification, receipt.memory);
        store.settle(n, &DeliveryOutcome::Delivered, memory.as_deref(), at).await.unwrap();
    }
}

#[tokio::test]
async fn a_chart_follows_its_message_and_is_replaced_when_the_incident_changes() {
    let mut bench = Bench::new().await;
    bench.opened().await;
    let first = bench.shown();
    assert_eq!(first.len(), 1);
    let file = bench.fake.with(|s| s.files[0].clone());
    assert!(file.bytes.as_ref().unwrap().starts_with(b"\x89PNG"));
    assert_eq!(file.name, format!("{ID}.png"));
    assert!(file.alt.contains("loss is NaN"), "{}", file.alt);

    let requests = bench.file_requests();
    for _ in 0..3 {
        bench.look().await;
    }
    assert_eq!(bench.file_requests(), requests, "nothing has changed");

    bench.commit(incident(ID, State::Resolved), 2, Action::Resolve).await;
    bench.look().await;
    assert_eq!(bench.shown(), first, "a message goes first");
    bench.deliver().await;
    bench.look().await;
    let second = bench.shown();
    assert_eq!(second.len(), 1);
    assert_ne!(second, first, "the old one is taken away");
}

#[tokio::test]
async fn another_severity_or_signal_is_another_chart() {
    let mut bench = Bench::new().await;
    let ticket = IncidentRecord { severity: Severity::Ticket, ..incident(ID, State::Open) };
    bench.commit(ticket, 1, Action::Trigger).await;
    bench.deliver().await;
    bench.look().await;
    bench.commit(incident(ID, State::Open), 2, Action::Trigger).await;
    bench.deliver().await;
    bench.look().await;
    assert_eq!(bench.fake.with(|s| s.files.len()), 2);
    assert_eq!(bench.shown().len(), 1);
}

#[tokio::test]
async fn a_chart_of_what_is_over_stays_when_its_run_is_forgotten() {
    let mut bench = Bench::new().await;
    bench.opened().await;
    bench.commit(incident(ID, State::Resolved), 2, Action::Resolve).await;
    bench.look().await;
    bench.curves.gone.store(true, Ordering::SeqCst);
    let record = bench.store.incident(ID).await.unwrap().unwrap();
    let svg = bench.charts.svg(&record, Look::default()).await.unwrap().unwrap();
    assert!(svg.contains("over 140"), "{svg}");
    bench.store.prune(Ts(i64::MAX / 2)).await.unwrap();
    assert!(bench.store.chart(ID).await.unwrap().is_none(), "it is forgotten with its incident");
}

#[tokio::test]
async fn what_was_seen_before_a_restart_is_not_lost_when_the_incident_ends_after_it() {
    let mut bench = Bench::new().await;
    bench.opened().await;
    bench.curves.gone.store(true, Ordering::SeqCst);
    bench.commit(incident(ID, State::Resolved), 2, Action::Resolve).await;
    bench.look().await;
    let record = bench.store.incident(ID).await.unwrap().unwrap();
    assert!(bench.charts.svg(&record, Look::default()).await.unwrap().is_some());
}

#[tokio::test]
async fn without_the_scope_the_chart_is_left_out_and_asked_for_once() {
    let mut bench = Bench::with(Service::default()).await;
    bench.opened().await;
    assert_eq!((bench.shown().len(), bench.file_requests()), (0, 1));
    bench.look().await;
    bench.pass(Duration::from_mins(10));
    bench.look().await;
    assert_eq!(bench.file_requests(), 1);
    let deliveries = bench.store.deliveries(ID).await.unwrap();
    assert!(deliveries.iter().all(|d| d.state == DeliveryState::Delivered), "the message has arrived");

    bench.fake.change(|s| s.scopes.insert(Service::FILES.into()));
    bench.receivers = receivers(bench.dir.path(), &bench.fake.url());
    bench.look().await;
    assert_eq!(bench.shown().len(), 1, "a reload is another chance");
}

#[tokio::test]
async fn a_lost_answer_makes_no_second_picture() {
    for fault in [Fault::TakenThenReset, Fault::TakenThenStatus(502), Fault::Reset, Fault::Status(500)] {
        let mut bench = Bench::new().await;
        bench.fake.script().push("files.completeUploadExternal", fault.clone());
        bench.opened().await;
        bench.pass(Duration::from_mins(1));
        bench.look().await;
        assert_eq!(bench.shown().len(), 1, "{fault:?}");
    }
}

#[tokio::test]
async fn a_pause_that_is_asked_for_is_kept_by_pictures_and_not_by_messages() {
    let mut bench = Bench::new().await;
    bench.fake.script().push("files.completeUploadExternal", Fault::TooMany(Duration::from_secs(30)));
    bench.opened().await;
    bench.pass(Duration::from_secs(20));
    bench.look().await;
    assert_eq!(bench.shown().len(), 0);
    bench.commit(incident(ID, State::Open), 2, Action::Update).await;
    bench.deliver().await;
    assert!(bench.store.deliveries(ID).await.unwrap().iter().all(|d| d.state == DeliveryState::Delivered));
    bench.pass(Duration::from_secs(20));
    bench.look().await;
    assert_eq!(bench.shown().len(), 1);
}

#[tokio::test]
async fn an_expired_address_is_asked_for_anew() {
    let mut bench = Bench::new().await;
    bench.fake.change(|s| s.upload_life = Duration::ZERO);
    bench.opened().await;
    assert_eq!(bench.shown().len(), 0);
    bench.fake.change(|s| s.upload_life = Duration::from_mins(1));
    bench.pass(Duration::from_mins(1));
    bench.look().await;
    assert_eq!(bench.shown().len(), 1);
}

#[tokio::test]
async fn what_slack_refuses_is_given_up_until_the_incident_changes() {
    let mut bench = Bench::new().await;
    bench.commit(incident(ID, State::Open), 1, Action::Trigger).await;
    bench.deliver().await;
    bench.fake.change(|s| s.channels.iter_mut().for_each(|c| c.member = false));
    bench.look().await;
    let requests = bench.file_requests();
    bench.pass(Duration::from_mins(30));
    bench.look().await;
    assert_eq!(bench.file_requests(), requests, "not tried again");
    bench.fake.change(|s| s.channels.iter_mut().for_each(|c| c.member = true));
    bench.commit(incident(ID, State::Resolved), 2, Action::Resolve).await;
    bench.deliver().await;
    bench.look().await;
    assert_eq!(bench.shown().len(), 1);
}

#[tokio::test]
async fn a_service_that_fails_for_ever_is_not_asked_for_ever() {
    let mut bench = Bench::new().await;
    bench.fake.script().always("files.getUploadURLExternal", Fault::Status(500));
    bench.opened().await;
    for _ in 0..20 {
        bench.pass(Duration::from_mins(6) / 2);
        bench.look().await;
    }
    assert_eq!(bench.file_requests(), 6);
}
