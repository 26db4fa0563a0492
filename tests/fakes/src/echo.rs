//! A service that is as bad as possible for secrets: every answer repeats everything that it was
//! sent.

use crate::server::{Received, Reply, Service};

#[derive(Debug, Clone)]
pub struct Echo {
    /// The status of all further answers.
    pub status: u16,
    pub received: Vec<Received>,
}

impl Default for Echo {
    fn default() -> Self {
        Self { status: 500, received: Vec::new() }
    }
}

impl Echo {
    /// The target of its redirects, which must not be followed.
    pub const ELSEWHERE: &str = "/elsewhere";

    /// The number of requests whose path contains `part`.
    pub fn count(&self, part: &str) -> usize {
        self.received.iter().filter(|r| r.path.contains(part)).count()
    }
}

impl Service for Echo {
    fn endpoint(_: &Received) -> Option<String> {
        Some("echo".into())
    }

    fn serve(&mut self, r: &Received) -> Reply {
        let query: Vec<_> = r.query.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let headers: Vec<_> = r.headers.iter().map(|(k, v)| format!("{k}: {v}")).collect();
        let body = String::from_utf8_lossy(&r.body);
        // The secrets remain in the text if it is truncated at the beginning or at the end.
        let line = format!("{} {}?{}", r.method, r.path, query.join("&"));
        let heard = format!("{line} {} {body} {} {line}", headers.join(" "), headers.join(" "));
        let mut reply = Reply::text(self.status, &heard);
        if (300..400).contains(&self.status) {
            let query: String = url::form_urlencoded::byte_serialize(heard.as_bytes()).take(2000).collect();
            reply.headers.push(("location", format!("{}?{query}", Self::ELSEWHERE)));
        }
        reply
    }

    fn refuse(status: u16, error: &str) -> Reply {
        Reply::text(status, error)
    }

    fn received(&mut self) -> &mut Vec<Received> {
        &mut self.received
    }
}
