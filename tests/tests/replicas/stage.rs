//! Three replicas with a database, the services that they notify, and what people and Prometheus
//! ask of them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};
use stepwatch_fakes::{Answer, FakePagerDuty, FakeSlack, PagerDuty, Slack, is_about};
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::programs::AlerterOptions;
use stepwatch_tests::{Alerter, Postgres, Proxy, exposition, http, poll_until};
use tempfile::TempDir;

pub(crate) const REPLICAS: usize = 3;
/// How long a lease lasts.
pub(crate) const LEASE: Duration = Duration::from_secs(6);
/// A chat and a page at once, and nothing later.
pub(crate) const AT_ONCE: &str = "      - {after: 0s, notify: [chat, primary]}\n";

const DATABASE: &str = "stepwatch";
/// The variable with the URL of the database. The replicas share one configuration, and each has
/// its own way to the database.
const URL: &str = "STEPWATCH_DATABASE_URL";
/// Longer than a standby holds a request while no replica leads.
const ANSWER: Duration = Duration::from_secs(20);
/// A replica that does not answer within this time is taken for one that does not lead.
const PROBE: Duration = Duration::from_secs(1);

/// Makes a connection for each request, because a connection that is kept may lead to a process
/// that has ended.
static CLIENT: LazyLock<Client> =
    LazyLock::new(|| Client::builder().pool_max_idle_per_host(0).no_proxy().build().unwrap());

pub(crate) struct Replica {
    pub(crate) alerter: Alerter,
    pub(crate) database: Proxy,
}

// Fields are dropped in this order: processes before what they use.
pub(crate) struct Stage {
    pub(crate) replicas: Vec<Replica>,
    pub(crate) postgres: Postgres,
    pub(crate) slack: FakeSlack,
    pub(crate) pagerduty: FakePagerDuty,
    dir: TempDir,
}

/// The answer to a request: its status and its text.
pub(crate) type Said = Option<(u16, String)>;

pub(crate) async fn said(request: RequestBuilder, limit: Duration) -> Said {
    let answer = request.timeout(limit).send().await.ok()?;
    Some((answer.status().as_u16(), answer.text().await.ok()?))
}

pub(crate) async fn get(url: &str, path: &str) -> Said {
    said(CLIENT.get(format!("{url}{path}")), ANSWER).await
}

pub(crate) async fn post(url: &str, path: &str, body: &Value) -> Said {
    said(CLIENT.post(format!("{url}{path}")).json(body), ANSWER).await
}

/// Posts as Prometheus does that an alert of this run fires.
pub(crate) async fn fire(url: &str, run: &str) -> Said {
    let labels = json!({"alertname": "GpuHot", "severity": "critical", "run": run});
    post(url, "/api/v2/alerts", &json!([{"labels": labels}])).await
}

/// Posts it until an answer says that it was taken.
pub(crate) async fn fire_until_taken(url: &str, run: &str) {
    let taken = async || fire(url, run).await.filter(|(status, _)| *status == 200);
    poll_until("an alert to be taken", PATIENCE, taken).await.unwrap();
}

/// Posts it to one replica after the other, the `first` first, until one says that it was taken.
pub(crate) async fn fire_until_any_took_it(urls: &[String], first: usize, run: &str) {
    let next = std::cell::Cell::new(first);
    let taken = async || {
        let url = &urls[next.replace(next.get() + 1) % urls.len()];
        fire(url, run).await.filter(|(status, _)| *status == 200)
    };
    poll_until("an alert to be taken", PATIENCE, taken).await.unwrap();
}

/// Acknowledges an incident; whether the answer says that it is so.
pub(crate) async fn ack(url: &str, incident: &str) -> bool {
    let path = format!("/api/v1/incidents/{incident}/ack");
    post(url, &path, &json!({"by": "ann"})).await.is_some_and(|(status, _)| status == 200)
}

/// A value of the metrics page.
pub(crate) async fn metric(url: &str, name: &str) -> Option<f64> {
    let (_, page) = said(CLIENT.get(format!("{url}/metrics")), PROBE).await?;
    exposition::value(&page, name, &[])
}

pub(crate) async fn leads(url: &str) -> bool {
    metric(url, "stepwatch_alerter_leader").await == Some(1.0)
}

/// The requests that opened an alert with this key, or tried again to, and that PagerDuty accepted.
pub(crate) fn triggers(pagerduty: &PagerDuty, key: &str) -> usize {
    let accepted = pagerduty.requests.iter().filter(|request| request.answer == Answer::Status(202));
    let of_it = |event: Value| event["event_action"] == "trigger" && event["dedup_key"] == key;
    accepted.filter(|request| of_it(request.json())).count()
}

impl Stage {
    /// Starts everything, and waits until a replica leads; `None` without PostgreSQL.
    pub(crate) async fn start(levels: &str) -> Option<Self> {
        let postgres = Postgres::start().await.unwrap()?;
        postgres.create(DATABASE).await.unwrap();
        let dir = tempfile::Builder::new().prefix("stepwatch").tempdir().unwrap();
        let (slack, pagerduty) = (FakeSlack::start().await, FakePagerDuty::start().await);
        let first = postgres.proxy().await.unwrap();
        let options = AlerterOptions {
            slack_api: format!("{}/api", slack.url()),
            slack_token: Slack::TOKEN.into(),
            pagerduty: pagerduty.url(),
            routing_key: PagerDuty::ROUTING_KEY.into(),
            twin: true,
            levels: Some(levels.to_owned()),
            at: Some(http::free_address().unwrap()),
            storage: Some(format!("{{postgres: {{url_env: {URL}}}}}")),
            env: vec![(URL.into(), first.url(DATABASE).into())],
            extra: "storm: {enabled: false}\n".into(),
            ..AlerterOptions::default()
        };
        let alerter = Alerter::start(dir.path(), &options, None).await.unwrap();
        let mut replicas = vec![Replica { alerter, database: first }];
        let config = replicas[0].alerter.config_file();
        while replicas.len() < REPLICAS {
            replicas.push(Self::replica(&postgres, config.clone()).await);
        }
        let stage = Self { replicas, postgres, slack, pagerduty, dir };
        stage.leader().await;
        stage.all_ready().await;
        Some(stage)
    }

    async fn replica(postgres: &Postgres, config: PathBuf) -> Replica {
        let database = postgres.proxy().await.unwrap();
        let env = vec![(URL.into(), database.url(DATABASE).into())];
        let at = http::free_address().unwrap();
        Replica { alerter: Alerter::start_replica(&config, at, env).await.unwrap(), database }
    }

    /// Starts one more replica, whose configuration has another text in place of one.
    pub(crate) async fn start_differing(&mut self, text: &str, other: &str) {
        let config = std::fs::read_to_string(self.replicas[0].alerter.config_file()).unwrap();
        assert!(config.contains(text), "{config}");
        let path = self.dir.path().join("other.yml");
        std::fs::write(&path, config.replace(text, other)).unwrap();
        let replica = Self::replica(&self.postgres, path).await;
        self.replicas.push(replica);
    }

    pub(crate) fn url(&self, n: usize) -> String {
        self.replicas[n].alerter.url()
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        (0..self.replicas.len()).map(|n| self.url(n)).collect()
    }

    pub(crate) fn others(&self, than: usize) -> Vec<usize> {
        (0..self.replicas.len()).filter(|n| *n != than).collect()
    }

    pub(crate) async fn leader(&self) -> usize {
        let all: Vec<_> = (0..self.replicas.len()).collect();
        self.leader_among(&all).await
    }

    /// Waits until one of these replicas leads.
    pub(crate) async fn leader_among(&self, among: &[usize]) -> usize {
        let found = async || {
            for n in among {
                if leads(&self.url(*n)).await {
                    return Some(*n);
                }
            }
            None
        };
        poll_until("a replica to lead", PATIENCE, found).await.unwrap()
    }

    /// Waits until each replica leads or knows the one that leads.
    pub(crate) async fn all_ready(&self) {
        for url in self.urls() {
            let ready = async || get(&url, "/-/ready").await.filter(|(status, _)| *status == 200);
            poll_until("a replica to be ready", PATIENCE, ready).await.unwrap();
        }
    }

    /// Whether all replicas run, and one leads.
    pub(crate) async fn is_whole(&self) -> bool {
        let mut leaders = 0;
        for url in self.urls() {
            let ready = said(CLIENT.get(format!("{url}/-/ready")), PROBE).await;
            if ready.is_none_or(|(status, _)| status != 200) {
                return false;
            }
            leaders += usize::from(leads(&url).await);
        }
        leaders == 1
    }

    /// Starts a replica again that has ended.
    pub(crate) async fn revive(&mut self, n: usize) {
        self.replicas[n].alerter.restart(None).await.unwrap();
    }

    /// The incidents of a run, by any replica that is asked.
    pub(crate) async fn incidents(&self, by: usize, run: &str) -> Vec<Value> {
        let url = self.url(by);
        let list = async || {
            let (status, text) = get(&url, &format!("/api/v1/incidents?run={run}")).await?;
            let list: Value = (status == 200).then(|| serde_json::from_str(&text).ok())??;
            list["incidents"].as_array().cloned()
        };
        poll_until("the list of incidents", PATIENCE, list).await.unwrap()
    }

    /// Waits until a run has an incident about which there were so many pages; returns its id.
    pub(crate) async fn paged(&self, by: usize, run: &str, times: usize) -> String {
        let id = async || {
            let incidents = self.incidents(by, run).await;
            incidents.first().and_then(|incident| incident["id"].as_str().map(str::to_owned))
        };
        let id = poll_until("the incident", PATIENCE, id).await.unwrap();
        let enough = |pd: &PagerDuty| pages(pd, &id) >= times;
        let waited = self.pagerduty.wait_for(enough, PATIENCE).await;
        assert!(waited.is_ok(), "{run}: fewer than {times} pages");
        id
    }

    /// Whatever happened, each of these runs has one incident, and there was one page about it; and
    /// there was no page beside them.
    pub(crate) async fn each_paged_once(&self, by: usize, runs: &BTreeSet<String>) {
        for run in runs {
            let id = self.paged(by, run, 1).await;
            let incidents = self.incidents(by, run).await;
            assert_eq!(incidents.len(), 1, "{run}: {incidents:#?}");
            self.pagerduty.with(|pd| assert_eq!(pages(pd, &id), 1, "{run}: {:#?}", pd.pages));
        }
        self.pagerduty.with(|pd| assert_eq!(pd.pages.len(), runs.len(), "{:#?}", pd.pages));
    }
}

/// The pages about an incident.
pub(crate) fn pages(pagerduty: &PagerDuty, incident: &str) -> usize {
    pagerduty.pages.iter().filter(|page| is_about(&page.dedup_key, incident)).count()
}

/// The median of times, which must not be empty.
pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
