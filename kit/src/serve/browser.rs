//! Refuses requests that a browser makes on behalf of another site's page.
//!
//! A page on the Internet can make a browser post to this program (cross-site request forgery), and
//! can read it if the page's own name resolves to this address (DNS rebinding). Programs send no
//! `Origin`, so these checks apply only to browsers: Prometheus, a trainer and curl may use any
//! host name.

use std::sync::Arc;

use axum::http::header::{ACCEPT_LANGUAGE, HOST, ORIGIN, REFERER, UPGRADE_INSECURE_REQUESTS, USER_AGENT};
use axum::http::{HeaderMap, Method, Uri};
use serde::{Deserialize, Deserializer};

/// The section `web` of a configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WebHosts {
    /// Host names, without a port, by which people reach this program in a browser. Always accepted
    /// are addresses, `localhost`, and the machine's name, alone and in the search domains of its
    /// resolver.
    #[serde(deserialize_with = "names")]
    pub hosts: Vec<String>,
}

/// The host names that a browser may use.
#[derive(Debug, Clone, Default)]
pub struct Hosts {
    /// Names from the configuration. A proxy may use them, on another port.
    names: Arc<[String]>,
    /// The machine's own names; anybody may serve pages on another port of it.
    machine: Arc<[String]>,
}

/// The file that contains the search domains of the machine.
const RESOLVER: &str = "/etc/resolv.conf";

fn names<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<String>, D::Error> {
    let names = Vec::<String>::deserialize(d)?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    match names.iter().find(|n| n.is_empty() || !n.chars().all(is_name)) {
        None => Ok(names),
        Some(bad) => {
            let text = format!(
                "{bad:?} is not the name of a host; expected a name such as stepwatch.example.com, without scheme and port"
            );
            Err(serde::de::Error::custom(text))
        }
    }
}

impl Hosts {
    /// Combines the names of the configuration, the host of the URL in links, and the names of the
    /// machine.
    pub fn new(web: &WebHosts, url: Option<&str>) -> Self {
        let linked = url
            .and_then(|u| u.split_once("://"))
            .map(|(_, rest)| name_of(rest.split(['/', '?', '#']).next().unwrap_or_default()).to_owned());
        let machine = rustix::system::uname().nodename().to_str().unwrap_or_default().to_owned();
        let domains = std::fs::read_to_string(RESOLVER).unwrap_or_default();
        let lower = |name: String| name.to_ascii_lowercase();
        Self {
            names: web.hosts.iter().cloned().chain(linked).map(lower).collect(),
            machine: names_of(&machine, &domains).into_iter().map(lower).collect(),
        }
    }

    fn has(&self, authority: &str) -> bool {
        let name = name_of(authority).to_ascii_lowercase();
        // An address is not resolved, so DNS rebinding cannot use it.
        let is_address = name.parse::<std::net::IpAddr>().is_ok();
        is_address
            || name == "localhost"
            || name.ends_with(".localhost")
            || [&self.names, &self.machine].iter().any(|names| names.contains(&name))
    }
}

/// The name of the machine, alone and in the domains of the resolver's configuration. In any other
/// domain the name may belong to another host.
fn names_of(machine: &str, resolver: &str) -> Vec<String> {
    let short = machine.split('.').next().unwrap_or_default();
    let lines = resolver.lines().map(str::split_whitespace);
    let domains = lines
        .filter_map(|mut words| matches!(words.next(), Some("search" | "domain")).then_some(words))
        .flatten()
        .map(|domain| format!("{short}.{}", domain.trim_matches('.')));
    let own = [machine.to_owned(), short.to_owned()];
    own.into_iter().chain(domains).filter(|name| !name.is_empty() && !short.is_empty()).collect()
}

/// The host of an authority: without the port, and an IPv6 address without its brackets.
fn name_of(authority: &str) -> &str {
    if let Some((address, port)) = authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let is_address = address.parse::<std::net::Ipv6Addr>().is_ok();
        return if is_address && (port.is_empty() || port.starts_with(':')) { address } else { authority };
    }
    authority.rsplit_once(':').map_or(authority, |(name, _)| name)
}

/// Returns the reason to refuse a request that a browser makes for another site's page. `guarded`
/// is false if every request needs a password or token, because a browser sends none for a page of
/// another name.
pub(super) fn refuse(
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    hosts: &Hosts,
    guarded: bool,
) -> Option<String> {
    let text = |name| headers.get(name).map(|v: &axum::http::HeaderValue| v.to_str().unwrap_or("?"));
    // Every browser sends `Origin` with a request that changes something. A proxy such as Grafana's
    // removes it, so a request with neither header is accepted.
    let origin = text(ORIGIN).or_else(|| text(REFERER));
    let site = headers.get("sec-fetch-site").and_then(|v| v.to_str().ok());
    if !is_browser(headers) {
        return None;
    }
    let host = text(HOST).or_else(|| uri.authority().map(|a| a.as_str())).unwrap_or_default();
    if guarded && !hosts.has(host) {
        return Some(format!(
            "a browser may not ask for this program as {:?}: add the name to web.hosts",
            name_of(host)
        ));
    }
    if method.is_safe() {
        return None;
    }
    let foreign_site = site.is_some_and(|s| !matches!(s, "same-origin" | "none"));
    let foreign_origin = origin.is_some_and(|o| {
        o.split_once("://").is_none_or(|(_, rest)| {
            let authority = rest.split('/').next().unwrap_or_default();
            !authority.eq_ignore_ascii_case(host) && !hosts.names.iter().any(|n| n == name_of(authority))
        })
    });
    (foreign_site || foreign_origin).then(|| {
        "a page of another site may not change anything here (Origin, Referer, Sec-Fetch-Site)".to_owned()
    })
}

/// Whether the request comes from a browser. A script may set the user agent, and over plain HTTP a
/// browser omits its other headers. But it always sends the languages of its user, which no scraper
/// does.
fn is_browser(headers: &HeaderMap) -> bool {
    let agent = headers.get(USER_AGENT).is_some_and(|agent| agent.as_bytes().starts_with(b"Mozilla/"));
    let says = [ORIGIN, REFERER, ACCEPT_LANGUAGE, UPGRADE_INSECURE_REQUESTS];
    agent || headers.keys().any(|name| says.contains(name) || name.as_str().starts_with("sec-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_does_not_hide_its_browser() {
        for (name, value) in
            [("accept-language", "en"), ("referer", "http://evil/"), ("sec-fetch-mode", "cors")]
        {
            let headers = [("host", "evil.example"), ("user-agent", "Prometheus/3.1"), (name, value)];
            assert!(ask(Method::GET, &headers).is_some(), "{name}");
        }
    }

    fn ask(method: Method, headers: &[(&'static str, &str)]) -> Option<String> {
        ask_of(method, headers, true)
    }

    fn ask_of(method: Method, headers: &[(&'static str, &str)], guarded: bool) -> Option<String> {
        let machine = names_of("node001", "nameserver 10.0.0.1\nsearch cluster.example. example.org\n");
        let hosts = Hosts { names: ["sw.example.com".to_owned()].into(), machine: machine.into() };
        let headers = headers.iter().map(|(n, v)| (n.parse().unwrap(), v.parse().unwrap())).collect();
        refuse(&method, &Uri::from_static("/"), &headers, &hosts, guarded)
    }

    #[test]
    fn a_page_on_another_port_of_the_machine_is_of_another_site() {
        let post = |origin| ask(Method::POST, &[("host", "node001:9766"), ("origin", origin)]);
        assert_eq!(post("http://node001:9766"), None);
        assert!(post("http://node001:8000").is_some());
        let linked = [("host", "127.0.0.1:9766"), ("origin", "https://sw.example.com")];
        assert_eq!(ask(Method::POST, &linked), None, "a proxy");
    }

    #[test]
    fn programs_come_by_any_name() {
        assert_eq!(ask(Method::POST, &[("host", "alerter.monitoring.svc:9766")]), None);
        assert_eq!(ask(Method::POST, &[("host", "x"), ("user-agent", "Prometheus/3.1")]), None);
    }

    #[test]
    fn a_browser_comes_by_names_that_cannot_be_made_to_lead_here() {
        for host in [
            "127.0.0.1:9766",
            "[::1]:9766",
            "10.1.2.3",
            "localhost:1",
            "node001",
            "node001.example.org:9765",
            "node001.cluster.example",
            "SW.example.com",
        ] {
            assert_eq!(ask(Method::GET, &[("host", host), ("user-agent", "Mozilla/5.0")]), None, "{host}");
        }
        for host in [
            "evil.example",
            "node001x.example",
            "node001.evil.example:9765",
            "sw.example.com.evil.example",
            "127.0.0.1.evil.example",
            "[::1].evil.example",
            "[localhost]",
            "",
        ] {
            let refused = ask(Method::GET, &[("host", host), ("user-agent", "Mozilla/5.0")]);
            assert!(refused.unwrap().contains("web.hosts"), "{host}");
        }
        assert_eq!(
            ask_of(Method::GET, &[("host", "any.example"), ("user-agent", "Mozilla/5.0")], false),
            None
        );
    }

    #[test]
    fn a_machine_is_called_by_its_name_and_in_its_domains() {
        assert_eq!(
            names_of("gpu01.a.example", "domain b.example"),
            ["gpu01.a.example", "gpu01", "gpu01.b.example"]
        );
        assert_eq!(names_of("gpu01", "options ndots:5\n#search c.example"), ["gpu01", "gpu01"]);
        assert_eq!(names_of("", "search c.example"), Vec::<String>::new());
    }

    #[test]
    fn what_another_site_sends_changes_nothing() {
        let own = [
            ("host", "10.1.2.3:9766"),
            ("origin", "http://10.1.2.3:9766"),
            ("sec-fetch-site", "same-origin"),
        ];
        assert_eq!(ask(Method::POST, &own), None);
        assert_eq!(ask(Method::POST, &[("host", "10.1.2.3"), ("origin", "https://sw.example.com")]), None);
        for foreign in ["http://evil.example", "null", "http://10.1.2.3:80", ""] {
            let headers = [("host", "10.1.2.3:9766"), ("origin", foreign)];
            assert!(ask(Method::POST, &headers).is_some(), "{foreign}");
            assert!(ask_of(Method::DELETE, &headers, false).is_some(), "{foreign}");
            assert_eq!(
                ask(Method::GET, &headers),
                None,
                "the browser itself keeps the answer from {foreign}"
            );
        }
        let from = |page| ask(Method::POST, &[("host", "10.1.2.3:9766"), ("referer", page)]);
        assert_eq!(from("http://10.1.2.3:9766/incidents/1"), None);
        for page in
            ["http://evil.example/10.1.2.3:9766", "http://10.1.2.3:80/", "about:blank", "/incidents/1"]
        {
            assert!(from(page).is_some(), "{page}");
            let headers = [("host", "10.1.2.3:9766"), ("referer", page)];
            assert!(ask_of(Method::POST, &headers, false).is_some(), "{page}");
            let with_origin = [own[0], own[1], ("referer", page)];
            assert_eq!(ask(Method::POST, &with_origin), None, "{page}");
        }
        for site in ["cross-site", "same-site"] {
            assert!(ask(Method::POST, &[("host", "10.1.2.3"), ("sec-fetch-site", site)]).is_some(), "{site}");
        }
    }
}
