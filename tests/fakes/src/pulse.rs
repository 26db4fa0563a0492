//! A dead man's switch: it accepts heartbeats at a secret address and records their times.

use std::time::Instant;

use crate::server::{Received, Reply, Service};

#[derive(Debug, Clone, Default)]
pub struct Pulse {
    pub beats: Vec<Instant>,
    pub requests: Vec<Received>,
}

impl Pulse {
    pub const PATH: &str = "/ping/canary-of-the-fake-switch";
}

impl Service for Pulse {
    fn endpoint(request: &Received) -> Option<String> {
        (request.path == Self::PATH).then(|| "ping".to_owned())
    }

    fn serve(&mut self, req: &Received) -> Reply {
        if req.path != Self::PATH {
            return Reply::text(404, "not found");
        }
        self.beats.push(req.at);
        Reply::text(200, "OK")
    }

    fn refuse(status: u16, error: &str) -> Reply {
        Reply::text(status, error)
    }

    fn received(&mut self) -> &mut Vec<Received> {
        &mut self.requests
    }
}
