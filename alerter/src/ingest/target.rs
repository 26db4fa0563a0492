//! The address of an exporter, and the display of addresses.

use core::fmt;
use std::sync::Arc;

use super::guard;

/// The port of an exporter whose address has none.
pub(super) const DEFAULT_PORT: u16 = 9765;

/// The most characters of an address in an error.
const MAX_SHOWN: usize = 100;

/// The address of an exporter, `host:port`, which is also the name of the source.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target(Arc<str>);

impl Target {
    /// Parses `host`, `host:port`, `1.2.3.4:port`, `[::1]:port`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bad = |why: &str| {
            format!("target {}: {why}; expected host:port, as in node001:{DEFAULT_PORT}", shown(text))
        };
        if text.contains("://") {
            return Err(bad("an address has no scheme (set `scheme: https` beside it)"));
        }
        let (host, port) = match text.rsplit_once(':') {
            // A bare IPv6 address is full of colons and has no port.
            Some((host, _)) if host.contains(':') && !host.starts_with('[') => {
                return Err(bad("an IPv6 address needs brackets, as in [::1]:9765"));
            }
            Some((host, port)) if !port.contains(']') => (host, Some(port)),
            _ => (text, None),
        };
        let host_ok = match host.strip_prefix('[') {
            Some(v6) => v6.strip_suffix(']').is_some_and(|v6| v6.parse::<core::net::Ipv6Addr>().is_ok()),
            None => {
                !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
            }
        };
        if !host_ok || host.len() > 255 {
            return Err(bad("not a host name or address"));
        }
        match port.map(str::parse::<u16>) {
            None => Ok(Self(format!("{host}:{DEFAULT_PORT}").into())),
            Some(Ok(port)) if port > 0 => Ok(Self(format!("{host}:{port}").into())),
            Some(_) => Err(bad("the port is a number from 1 to 65535")),
        }
    }

    /// Parses an address from discovery, and refuses forbidden hosts.
    pub(super) fn discovered(text: &str) -> Result<Self, String> {
        let target = Self::parse(text)?;
        let host = target.0.rsplit_once(':').map_or(&*target.0, |(host, _)| host);
        match guard::refused(host) {
            Some(why) => {
                Err(format!("target {}: is {why}, which only the configuration itself may name", shown(text)))
            }
            None => Ok(target),
        }
    }

    pub fn name(&self) -> &Arc<str> {
        &self.0
    }
}

/// An address as shown in errors.
fn shown(text: &str) -> String {
    format!("{:?}", text.chars().take(MAX_SHOWN).collect::<String>())
}

/// An address without its user, password and query.
pub(crate) fn shown_url(text: &str) -> String {
    let Ok(mut url) = url::Url::parse(text) else { return "<not an address>".into() };
    // Both fail only for addresses without a host.
    let _ = url.set_username("").and_then(|()| url.set_password(None));
    if url.query().is_some() {
        url.set_query(Some("..."));
    }
    url.set_fragment(None);
    url.to_string()
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses() {
        for (text, want) in [
            ("node001", "node001:9765"),
            ("node001:1", "node001:1"),
            ("10.0.0.7:9765", "10.0.0.7:9765"),
            ("[::1]", "[::1]:9765"),
            ("[fe80::1]:99", "[fe80::1]:99"),
            ("gpu-1.rack_2.example.com:80", "gpu-1.rack_2.example.com:80"),
        ] {
            assert_eq!(Target::parse(text).map(|t| t.to_string()).as_deref(), Ok(want));
        }
        for bad in
            ["", ":1", "a:0", "a:65536", "a:b", "::1", "[::1", "[x]:1", "http://a:1", "a b:1", "a/b:1", "a:"]
        {
            let why = Target::parse(bad).unwrap_err();
            assert!(why.contains("expected host:port"), "{bad}: {why}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text: String) {
            if let Ok(t) = Target::parse(&text) {
                prop_assert_eq!(Target::parse(&t.to_string()), Ok(t));
            }
        }
    }
}
