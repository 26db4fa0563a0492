//! A receiver of signed webhooks that verifies them and drops duplicates, as a careful one does.

use std::time::Instant;

use hmac::{Hmac, KeyInit, Mac};
use serde_json::Value;
use sha2::Sha256;

use crate::server::{Received, Reply, Service};

/// The most seconds of age of a signature; older ones could be replays.
const MAX_AGE_SECONDS: i64 = 300;

/// A webhook that was verified and is no duplicate.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    pub at: Instant,
    pub key: String,
    pub body: Value,
}

#[derive(Debug, Clone)]
pub struct WebhookSink {
    pub secret: String,
    /// One delivery per idempotency key.
    pub deliveries: Vec<Delivery>,
    /// The number of deliveries with a known key, which are harmless.
    pub duplicates: usize,
    /// The reasons for refusals.
    pub refused: Vec<String>,
    pub requests: Vec<Received>,
}

impl Default for WebhookSink {
    fn default() -> Self {
        Self {
            secret: Self::SECRET.into(),
            deliveries: Vec::new(),
            duplicates: 0,
            refused: Vec::new(),
            requests: Vec::new(),
        }
    }
}

impl WebhookSink {
    pub const SECRET: &str = "a-shared-secret-of-the-fake-webhook";

    fn verify(&self, req: &Received) -> Result<(), String> {
        let header = |name: &str| req.header(name).ok_or_else(|| format!("no {name}"));
        let ts = header("x-stepwatch-timestamp")?;
        let seconds: i64 =
            ts.parse().map_err(|_| format!("x-stepwatch-timestamp is not Unix seconds: {ts:?}"))?;
        if (req.time.as_second() - seconds).abs() > MAX_AGE_SECONDS {
            return Err("signature too old".into());
        }
        let given = header("x-stepwatch-signature")?;
        let want = signature(&self.secret, ts, &req.body);
        let same = |given: &str| bool::from(subtle::ConstantTimeEq::ct_eq(given.as_bytes(), want.as_bytes()));
        // Two signatures during a secret rotation.
        if given.split(',').any(same) { Ok(()) } else { Err("signature does not match".into()) }
    }
}

impl Service for WebhookSink {
    fn endpoint(request: &Received) -> Option<String> {
        (request.method == "POST").then(|| "hook".to_owned())
    }

    fn serve(&mut self, req: &Received) -> Reply {
        if req.method != "POST" {
            return Reply::text(405, "POST only");
        }
        if let Err(why) = self.verify(req) {
            self.refused.push(why.clone());
            return Reply::text(401, &why);
        }
        let (Some(key), Ok(body)) = (req.header("idempotency-key"), serde_json::from_slice(&req.body)) else {
            self.refused.push("no idempotency-key, or not JSON".into());
            return Reply::text(400, "needs an Idempotency-Key and a JSON body");
        };
        if self.deliveries.iter().any(|d| d.key == key) {
            self.duplicates += 1;
        } else {
            self.deliveries.push(Delivery { at: req.at, key: key.to_owned(), body });
        }
        Reply::text(200, "ok")
    }

    fn refuse(status: u16, error: &str) -> Reply {
        Reply::text(status, error)
    }

    fn received(&mut self) -> &mut Vec<Received> {
        &mut self.requests
    }
}

/// The value of `X-Stepwatch-Signature`: `v1=<hex of HMAC-SHA256(secret, "<timestamp>.<body>")>`.
pub fn signature(secret: &str, timestamp: &str, body: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("HMAC takes a key of any length");
    mac.update(timestamp.as_bytes());
    mac.update(b".");
    mac.update(body);
    format!("v1={}", hex::encode(mac.finalize().into_bytes()))
}
