use std::io::Write;
use std::sync::{Arc, LazyLock, Mutex};

use crate::signed_paths;
use crate::testing::TestApp;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Everything that this process logs. The subscriber is that of the process, because the interest
/// in a callsite is cached once per process.
static LOG: LazyLock<Log> = LazyLock::new(|| {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    log
});

/// Receivers with one endpoint each for Slack and PagerDuty.
const DOORS: &str = r##"  - name: chat
    slack: {channel: "#t", token_file: bot, signing_secret_file: signing}
  - name: primary
    pagerduty: {routing_key_file: key, webhook_secret_file: hook}
"##;

#[tokio::test]
async fn a_flood_of_forged_callbacks_is_one_line_of_the_log_for_each_service() {
    let log = LazyLock::force(&LOG);
    let secrets = [
        ("bot", "xoxb-1234567890"),
        ("signing", "8f742231b10e8888abcd99yyyzzz85a5"),
        ("key", "R0123456789012345678901234567890"),
        ("hook", "hookhookhookhookhookhookhook1234"),
    ];
    let app = TestApp::start_with(DOORS, &secrets.map(|(name, text)| (name, text.to_owned()))).await;
    let client = reqwest::Client::new();
    for (path, header, status) in [
        (signed_paths::SLACK, ("x-slack-signature", "v0=00"), 401),
        (signed_paths::SLACK, ("x-nothing", "v0=00"), 400),
        (signed_paths::PAGERDUTY, ("x-pagerduty-signature", "v1=00"), 403),
        (signed_paths::PAGERDUTY, ("x-nothing", "v1=00"), 400),
    ] {
        for _ in 0..50 {
            let now = crate::clock::wall().0 / 1000;
            let request = client
                .post(format!("{}{path}", app.url))
                .header(header.0, header.1)
                .header("x-slack-request-timestamp", now.to_string());
            assert_eq!(request.body("payload=%7B%7D").send().await.unwrap().status(), status, "{path}");
        }
    }
    let said = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    for line in ["is not from Slack", "is not from PagerDuty"] {
        assert_eq!(said.matches(line).count(), 1, "{line}");
    }
    // All are counted.
    let metrics = app.get("/metrics").await.1;
    for service in ["slack", "pagerduty"] {
        let counted =
            metrics.lines().find(|l| l.contains(service) && l.contains("refused")).unwrap_or_default();
        assert!(counted.ends_with(" 100"), "{service}: {counted}");
    }
}
