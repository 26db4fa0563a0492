//! Several alerters on a real PostgreSQL, of which the one that leads is killed.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, ensure};
use stepwatch_tests::postgres::Postgres;
use stepwatch_tests::{Alerter, Stack, exposition, http, poll_until};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::screen::Screen;

const DATABASE: &str = "stepwatch";
/// The time limit for a replica to lead: a lease, a start, and much more.
const LEAD_DEADLINE: Duration = Duration::from_mins(1);
/// The time limit from the start of a training to a page, beside its healthy part.
const PAGE_DEADLINE: Duration = Duration::from_mins(1);

/// The replicas beside the one of the stack, which stands by.
#[derive(Debug)]
pub(crate) struct Replicas {
    others: Vec<Alerter>,
    /// The one that leads, of the others.
    leader: usize,
}

/// Starts a server with an empty database.
pub(crate) async fn database(screen: &mut Screen) -> anyhow::Result<Postgres> {
    screen.progress("starting PostgreSQL");
    let postgres = Postgres::start().await?;
    let postgres = postgres.context("PostgreSQL is not installed (initdb, postgres)")?;
    postgres.create(DATABASE).await?;
    Ok(postgres)
}

/// The `storage` section of all replicas.
pub(crate) fn storage(postgres: &Postgres) -> String {
    format!("{{postgres: {{url: \"{}\"}}}}", postgres.url(DATABASE))
}

impl Replicas {
    /// Starts further replicas, and has one of them lead. So the address of the stack is that of a
    /// replica that stands by and forwards.
    pub(crate) async fn start(screen: &mut Screen, stack: &Stack, count: u8) -> anyhow::Result<Self> {
        let (config, any) = (stack.alerter.config_file(), SocketAddr::from(([127, 0, 0, 1], 0)));
        let mut others = Vec::new();
        for _ in 1..count {
            let mut other = Alerter::start_replica(&config, any, Vec::new()).await?;
            other.ready().await?;
            others.push(other);
        }
        let hand_over = format!("{}/-/handover", stack.alerter.url());
        // The one that leads hears of the others within a second.
        let handed = async || http::client().post(&hand_over).send().await.ok()?.error_for_status().ok();
        poll_until("the handover", LEAD_DEADLINE, handed).await?;
        let urls: Vec<String> = others.iter().map(Alerter::url).collect();
        let leader = leader_of(&urls).await?;
        let mut links: Vec<(&str, &str, &str)> = Vec::new();
        for (n, url) in urls.iter().enumerate() {
            links.push(("replica", url, if n == leader { "leads" } else { "stands by" }));
        }
        screen.progress("another replica leads; the alerter above forwards to it");
        screen.links(&links);
        Ok(Self { others, leader })
    }

    /// Kills the replica that leads at the moment in which a page arrives, and waits for the next.
    pub(crate) async fn lose_the_leader(
        &mut self,
        stack: &Stack,
        blow_up_after: u32,
        tell: mpsc::Sender<String>,
    ) -> anyhow::Result<()> {
        let deadline = Duration::from_secs(u64::from(blow_up_after) * 2) + PAGE_DEADLINE;
        let paged = async || stack.pagerduty.with(|pd| !pd.pages.is_empty()).then_some(());
        poll_until("a page", deadline, paged).await?;
        ensure!(self.leader < self.others.len(), "the replica that leads is one of the others");
        let mut dead = self.others.swap_remove(self.leader);
        dead.daemon.kill().await?;
        let killed = Instant::now();
        // Without a reader, the demo is over.
        let _ = tell.send(format!("kill -9 {}, which leads, as the page leaves it", dead.url())).await;
        let mut urls: Vec<String> = self.others.iter().map(Alerter::url).collect();
        urls.push(stack.alerter.url());
        let next = leader_of(&urls).await?;
        let url = urls.get(next).map_or("another", String::as_str);
        let after = killed.elapsed().as_secs_f64();
        let _ = tell.send(format!("{url} leads, {after:.1} s later, and goes on where the other was")).await;
        Ok(())
    }
}

/// The number of the replica that leads.
async fn leader_of(urls: &[String]) -> anyhow::Result<usize> {
    let leads = async || {
        for (n, url) in urls.iter().enumerate() {
            let page = http::get(&format!("{url}/metrics")).await.unwrap_or_default();
            if exposition::value(&page, "stepwatch_alerter_leader", &[]).is_some_and(|leads| leads == 1.0) {
                return Some(n);
            }
        }
        None
    };
    poll_until("a replica to lead", LEAD_DEADLINE, leads).await
}
