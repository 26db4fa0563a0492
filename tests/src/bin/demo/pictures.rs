//! Pictures of the pages, as Chromium draws them without their script: phone and desktop, light and
//! dark.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;
use stepwatch_tests::{Stack, http};
use tokio::process::Command;

use crate::feed::Feed;
use crate::screen::Screen;

/// Names as Debian and others install it.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
const DEADLINE: Duration = Duration::from_mins(1);
/// Milliseconds that a page may take to load.
const LOADS: u32 = 8_000;

/// A kind of screen: its name, width and height.
const SCREENS: [(&str, u32, u32); 2] = [("phone", 390, 1_500), ("desktop", 1_280, 1_000)];
const COLOURS: [(&str, &str); 2] = [("light", "preferredColorScheme=1"), ("dark", "preferredColorScheme=0")];
/// With its script a page follows events for ever, and is never finished.
const STILL: &str = "scriptEnabled=false";

/// Writes one PNG a page, screen and colour, named `incident-phone-dark.png`, and returns how many.
pub(crate) async fn take(
    screen: &mut Screen,
    stack: &Stack,
    feed: &Feed,
    directory: &Path,
) -> anyhow::Result<usize> {
    std::fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    let profile = tempfile::tempdir()?;
    let pages = pages(stack, feed).await?;
    let mut taken = 0;
    for (name, url) in &pages {
        screen.progress(&format!("drawing {name}"));
        for (kind, width, height) in SCREENS {
            for (colour, setting) in COLOURS {
                let file = directory.join(format!("{name}-{kind}-{colour}.png"));
                let mut browser = Command::new(browser()?);
                browser
                    .args([
                        "--headless",
                        "--no-sandbox",
                        "--disable-gpu",
                        "--hide-scrollbars",
                        "--no-first-run",
                    ])
                    .arg(format!("--user-data-dir={}", profile.path().display()))
                    .arg(format!("--window-size={width},{height}"))
                    .arg(format!("--timeout={LOADS}"))
                    .arg(format!("--blink-settings={setting},{STILL}"))
                    .arg(format!("--screenshot={}", file.display()))
                    .arg(url)
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .kill_on_drop(true);
                let status = tokio::time::timeout(DEADLINE, browser.status()).await;
                let status = status.with_context(|| format!("the browser does not finish {url}"))??;
                ensure!(status.success() && file.exists(), "the browser drew nothing of {url}: {status}");
                taken += 1;
            }
        }
    }
    Ok(taken)
}

/// Each page with a name: what there is one of, and one of what there are many.
async fn pages(stack: &Stack, feed: &Feed) -> anyhow::Result<Vec<(&'static str, String)>> {
    let url = stack.alerter.url();
    let page = |i: &&Value| i["severity"] == "page";
    let incident = feed.known.iter().find(page).context("there is no page to draw")?;
    let part = |key: &str| incident[key].as_str().unwrap_or_default().to_owned();
    let nodes: Value = http::client().get(format!("{url}/api/v1/nodes")).send().await?.json().await?;
    let node = nodes["nodes"][0]["node"].as_str().context("there is no node to draw")?.to_owned();
    Ok(vec![
        ("incidents", format!("{url}/")),
        ("incident", format!("{url}/incidents/{}", part("id"))),
        ("runs", format!("{url}/runs")),
        ("run", format!("{url}/runs/{}", part("run"))),
        ("nodes", format!("{url}/nodes")),
        ("node", format!("{url}/nodes/{node}")),
        ("silences", format!("{url}/silences")),
        ("oncall", format!("{url}/oncall")),
        ("receivers", format!("{url}/receivers")),
        ("detectors", format!("{url}/detectors")),
        ("runbook", format!("{url}/runbooks/{}", part("kind"))),
    ])
}

fn browser() -> anyhow::Result<&'static str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed = |name: &&&str| std::env::split_paths(&path).any(|dir| dir.join(name).is_file());
    match BROWSERS.iter().find(installed) {
        Some(name) => Ok(name),
        None => bail!("--pictures needs one of {}", BROWSERS.join(", ")),
    }
}
