//! One HTTP client for the process, because creating one loads certificates, which costs more than
//! most requests here.

use std::net::{SocketAddr, TcpListener};
use std::sync::LazyLock;
use std::time::Duration;

use reqwest::Client;

static CLIENT: LazyLock<Client> = LazyLock::new(|| {
    // The whole request has no time limit, because a stream never ends.
    Client::builder().connect_timeout(Duration::from_secs(2)).no_proxy().build().unwrap_or_default()
});

/// The client of probes, like a kubelet's: a new connection each time, and a limit of one second.
static PROBE: LazyLock<Client> = LazyLock::new(|| {
    Client::builder()
        .timeout(Duration::from_secs(1))
        .pool_max_idle_per_host(0)
        .no_proxy()
        .build()
        .unwrap_or_default()
});

/// Fails if a probe is not answered with success.
pub async fn probe(url: &str) -> anyhow::Result<()> {
    PROBE.get(url).send().await?.error_for_status()?;
    Ok(())
}

/// A free address, for a program that must know its own before it starts.
pub fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

pub fn client() -> &'static Client {
    &CLIENT
}

/// The body of a successful GET.
pub async fn get(url: &str) -> anyhow::Result<String> {
    let answer = CLIENT.get(url).timeout(Duration::from_secs(10)).send().await?;
    Ok(answer.error_for_status()?.text().await?)
}

pub async fn get_json(url: &str) -> anyhow::Result<serde_json::Value> {
    Ok(serde_json::from_str(&get(url).await?)?)
}
