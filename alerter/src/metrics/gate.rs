//! Metrics of the gate of the API.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refusal {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TokenLabel {
    token: String,
}

#[derive(Debug, Clone, Default)]
pub struct GateMetrics {
    refused: Family<Refusal, Counter>,
    used: Family<TokenLabel, Counter>,
}

impl GateMetrics {
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "api_refused",
            "Requests that were refused: unknown (no token, or one that is not known), scope (a token without the scope or \
             with limits), login (a name with its password, or a token, that is not known, or a person whom the OpenID Connect provider or \
             its groups do not admit)",
            self.refused.clone(),
        );
        registry.register("api_token_requests", "Requests by token", self.used.clone());
    }

    pub(crate) fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&Refusal { reason }).inc();
    }

    /// Counts a request with a token.
    pub(crate) fn used(&self, token: &str) {
        self.used.get_or_create(&TokenLabel { token: token.to_owned() }).inc();
    }

    /// Removes the series of a token that was deleted.
    pub(crate) fn forget(&self, token: &str) {
        self.used.remove(&TokenLabel { token: token.to_owned() });
    }
}
