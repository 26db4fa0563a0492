//! One HTTP client for the process: building one means loading certificates, which costs more than
//! most requests here.

use std::sync::LazyLock;
use std::time::Duration;

use reqwest::Client;

static CLIENT: LazyLock<Client> = LazyLock::new(|| {
    // No limit on the whole request: a stream never ends.
    Client::builder().connect_timeout(Duration::from_secs(2)).no_proxy().build().unwrap_or_default()
});

/// Probes as a kubelet does: on a new connection each time, and for a second at most.
static PROBE: LazyLock<Client> = LazyLock::new(|| {
    Client::builder()
        .timeout(Duration::from_secs(1))
        .pool_max_idle_per_host(0)
        .no_proxy()
        .build()
        .unwrap_or_default()
});

/// Whether a probe is answered well.
pub async fn probe(url: &str) -> anyhow::Result<()> {
    PROBE.get(url).send().await?.error_for_status()?;
    Ok(())
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
