//! The fake webhook receiver verifies before it believes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use reqwest::{Client, RequestBuilder};
use stepwatch_fakes::{FakeWebhook, WebhookSink, signature};

const BODY: &str = r#"{"incident":"i"}"#;

fn request(fake: &FakeWebhook, key: &str, age: i64, secret: &str) -> RequestBuilder {
    let ts = (jiff::Timestamp::now().as_second() - age).to_string();
    let signature = signature(secret, &ts, BODY.as_bytes());
    Client::new()
        .post(fake.url())
        .header("x-stepwatch-timestamp", ts)
        .header("x-stepwatch-signature", signature)
        .header("idempotency-key", key)
        .body(BODY)
}

async fn status(request: RequestBuilder) -> u16 {
    request.send().await.unwrap().status().as_u16()
}

#[tokio::test]
async fn a_second_delivery_of_a_key_is_counted_and_dropped() {
    let fake = FakeWebhook::start().await;
    for key in ["a", "a", "b"] {
        assert_eq!(status(request(&fake, key, 0, WebhookSink::SECRET)).await, 200);
    }
    assert_eq!(fake.with(|s| (s.deliveries.len(), s.duplicates)), (2, 1));
}

#[tokio::test]
async fn wrong_old_or_missing_signatures_are_refused() {
    let fake = FakeWebhook::start().await;
    assert_eq!(status(request(&fake, "a", 0, "other")).await, 401);
    assert_eq!(status(request(&fake, "a", 301, WebhookSink::SECRET)).await, 401);
    assert_eq!(status(Client::new().post(fake.url()).body(BODY)).await, 401);
    assert_eq!(fake.with(|s| (s.deliveries.len(), s.refused.len())), (0, 3));
}

#[test]
fn the_signature_is_what_receivers_compute() {
    // printf '%s' '1.{}' | openssl dgst -sha256 -hmac k
    assert_eq!(
        signature("k", "1", b"{}"),
        "v1=3dd49b2593d0f9a349e9e71c4bde3e2b862c2be4003fe9b4ba81332029310158"
    );
}
