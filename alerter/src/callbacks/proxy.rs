//! A proxy tunnel to the socket's host, for clusters that reach the internet only through a proxy.
//!
//! It uses the same environment variables as all of our requests (`HTTPS_PROXY`, `ALL_PROXY`,
//! `NO_PROXY` and their lower-case names), parsed in the same way.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use url::Url;

/// The most bytes of a proxy's answer to `CONNECT`, and of its status line.
const ANSWER_MAX: usize = 16 * 1024;
const STATUS_MAX: usize = 100;

/// The proxies of the environment.
pub(super) fn of_environment() -> Matcher {
    Matcher::from_env()
}

/// Connects to the host of `url`, through a proxy if one is configured for it.
pub(super) async fn connect(url: &Url, proxies: &Matcher) -> Result<TcpStream, String> {
    let host = url.host_str().unwrap_or_default();
    let port = url.port_or_known_default().ok_or("the socket's address has no port")?;
    let cannot = |e: std::io::Error| format!("cannot connect: {e}");
    let stream = match intercept(url, host, port, proxies) {
        None => TcpStream::connect((host.trim_matches(['[', ']']), port)).await.map_err(cannot)?,
        Some(proxy) => through(&proxy, host, port).await?,
    };
    stream.set_nodelay(true).map_err(|e| e.to_string())?;
    Ok(stream)
}

/// The proxy of a WebSocket is that of an HTTP request to the same host.
fn intercept(url: &Url, host: &str, port: u16, proxies: &Matcher) -> Option<Intercept> {
    let scheme = if url.scheme() == "wss" { "https" } else { "http" };
    proxies.intercept(&format!("{scheme}://{host}:{port}/").parse().ok()?)
}

async fn through(proxy: &Intercept, host: &str, port: u16) -> Result<TcpStream, String> {
    let uri = proxy.uri();
    if uri.scheme_str() != Some("http") {
        return Err(format!(
            "the proxy's scheme {:?} is not supported here, only http",
            uri.scheme_str().unwrap_or_default()
        ));
    }
    let (at, at_port) = (uri.host().unwrap_or_default(), uri.port_u16().unwrap_or(80));
    let cannot = |e: std::io::Error| format!("cannot connect to the proxy {at}:{at_port}: {e}");
    let mut stream = TcpStream::connect((at.trim_matches(['[', ']']), at_port)).await.map_err(cannot)?;
    let mut asked = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n");
    let basic = proxy.basic_auth().and_then(|value| value.to_str().ok().map(str::to_owned));
    let raw = proxy
        .raw_auth()
        .map(|(user, password)| format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))));
    if let Some(auth) = basic.or(raw) {
        asked.extend(["Proxy-Authorization: ", auth.as_str(), "\r\n"]);
    }
    asked += "\r\n";
    stream.write_all(asked.as_bytes()).await.map_err(cannot)?;
    let status = answer(&mut stream).await.map_err(cannot)?;
    let code = status.split(' ').nth(1).unwrap_or_default();
    if status.starts_with("HTTP/1.") && code.len() == 3 && code.starts_with('2') {
        return Ok(stream);
    }
    Err(format!("the proxy {at}:{at_port} refuses: {}", crate::notify::line(&status, STATUS_MAX)))
}

/// Reads the status line. It reads nothing after the headers, because those bytes belong to the
/// tunnel.
async fn answer(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == ANSWER_MAX {
            return Err(std::io::Error::other("its answer does not end"));
        }
        // A few hundred bytes per connection are read one by one.
        head.push(stream.read_u8().await?);
    }
    let text = String::from_utf8_lossy(&head);
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Accepts one connection, reads the request, and answers with `says`; returns what arrives
    /// through the tunnel.
    async fn proxy(says: &'static str) -> (u16, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let task = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                asked.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(says.as_bytes()).await.unwrap();
            String::from_utf8(asked).unwrap()
        });
        (port, task)
    }

    fn socket() -> Url {
        Url::parse("wss://wss-primary.slack.com/link/?ticket=canary").unwrap()
    }

    #[tokio::test]
    async fn a_tunnel_leads_to_the_socket_and_gives_away_no_ticket() {
        let (port, task) = proxy("HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\nhello").await;
        let proxies = Matcher::builder().https(format!("http://me:secret@127.0.0.1:{port}")).build();
        let mut stream = connect(&socket(), &proxies).await.unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).await.unwrap();
        assert_eq!(said, "hello", "what follows the headers is the other side's");
        let asked = task.await.unwrap();
        assert!(asked.starts_with("CONNECT wss-primary.slack.com:443 HTTP/1.1\r\n"), "{asked}");
        assert!(asked.contains("Proxy-Authorization: Basic bWU6c2VjcmV0\r\n"), "{asked}");
        assert!(!asked.contains("canary"), "{asked}");
    }

    #[tokio::test]
    async fn a_proxy_that_refuses_is_quoted_without_its_password() {
        let (port, _task) = proxy("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n").await;
        let proxies = Matcher::builder().all(format!("http://me:canary@127.0.0.1:{port}")).build();
        let error = connect(&socket(), &proxies).await.unwrap_err();
        assert!(error.contains("407 Proxy Authentication Required") && !error.contains("canary"), "{error}");
        let proxies = Matcher::builder().https("socks5://127.0.0.1:1").build();
        assert!(connect(&socket(), &proxies).await.unwrap_err().contains("not supported"));
    }

    #[tokio::test]
    async fn what_needs_no_proxy_goes_straight() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Url::parse(&format!("ws://{}/", listener.local_addr().unwrap())).unwrap();
        let proxies = Matcher::builder().all("http://127.0.0.1:1").no("127.0.0.1,localhost").build();
        connect(&url, &proxies).await.unwrap();
        assert!(intercept(&socket(), "wss-primary.slack.com", 443, &proxies).is_some());
    }
}
