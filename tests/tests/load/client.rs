//! A sender of alerts with one connection, as a Prometheus keeps one: blocking, because it must
//! cost less than what it measures.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// How long an answer may take before the test is over.
const PATIENCE: Duration = Duration::from_mins(1);

#[derive(Debug)]
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
    pub(crate) body: Vec<u8>,
    /// From the last request to the beginning and to the end of its answer.
    pub(crate) first: Duration,
    pub(crate) whole: Duration,
}

/// What came of many requests.
#[derive(Debug, Default, Clone)]
pub(crate) struct Tally {
    /// From the first request to the last answer.
    pub(crate) lasted: Duration,
    /// Of each request, sorted.
    pub(crate) took: Vec<Duration>,
}

impl Client {
    pub(crate) fn connect(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            stream: BufReader::with_capacity(64 << 10, stream),
            body: Vec::new(),
            first: Duration::ZERO,
            whole: Duration::ZERO,
        }
    }

    /// The status; the body stays here.
    pub(crate) fn post(&mut self, path: &str, json: &[u8]) -> u16 {
        self.post_as(path, "content-type: application/json\r\n", json)
    }

    /// The same of another type; each header ends its line.
    pub(crate) fn post_as(&mut self, path: &str, headers: &str, body: &[u8]) -> u16 {
        let mut request = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nuser-agent: Prometheus/2.42.0\r\n{headers}content-length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        self.stream.get_mut().write_all(&request).unwrap();
        self.answer()
    }

    pub(crate) fn get(&mut self, path: &str) -> u16 {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\naccept: */*\r\n\r\n");
        self.stream.get_mut().write_all(request.as_bytes()).unwrap();
        self.answer()
    }

    /// As a browser asks for a page.
    pub(crate) fn get_in_gzip(&mut self, path: &str) -> u16 {
        let began = Instant::now();
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: x\r\naccept: text/html\r\naccept-encoding: gzip\r\n\r\n");
        self.stream.get_mut().write_all(request.as_bytes()).unwrap();
        self.stream.fill_buf().unwrap();
        self.first = began.elapsed();
        let status = self.answer();
        self.whole = began.elapsed();
        status
    }

    fn answer(&mut self) -> u16 {
        let status = self.line().split(' ').nth(1).unwrap().parse().unwrap();
        let (mut length, mut chunked) = (0, false);
        loop {
            let line = self.line().trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(text) = line.strip_prefix("content-length: ") {
                length = text.parse().unwrap();
            }
            chunked |= line == "transfer-encoding: chunked";
        }
        self.body.clear();
        if !chunked {
            self.take(length);
            return status;
        }
        loop {
            let size = usize::from_str_radix(self.line().trim(), 16).unwrap();
            self.take(size);
            self.line();
            if size == 0 {
                return status;
            }
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.stream.read_line(&mut line).unwrap() > 0, "the connection ended");
        line
    }

    fn take(&mut self, length: usize) {
        let at = self.body.len();
        self.body.resize(at + length, 0);
        self.stream.read_exact(&mut self.body[at..]).unwrap();
    }
}

impl Tally {
    pub(crate) fn from_times(lasted: Duration, mut took: Vec<Duration>) -> Self {
        took.sort();
        Self { lasted, took }
    }

    pub(crate) fn ms(&self, q: f64) -> f64 {
        let last = self.took.len().saturating_sub(1);
        self.took[(last as f64 * q).round() as usize].as_secs_f64() * 1e3
    }
}

/// Posts all bodies over so many connections at once; every one must be taken.
pub(crate) fn flood(addr: SocketAddr, path: &str, bodies: &[Vec<u8>], senders: usize) -> Tally {
    let began = Instant::now();
    let took = std::thread::scope(|scope| {
        let each = |sender: usize| {
            let mine = bodies.iter().skip(sender).step_by(senders);
            scope.spawn(move || {
                let mut client = Client::connect(addr);
                let post = |body: &Vec<u8>| {
                    let at = Instant::now();
                    let status = client.post(path, body);
                    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&client.body));
                    at.elapsed()
                };
                mine.map(post).collect::<Vec<_>>()
            })
        };
        let threads: Vec<_> = (0..senders).map(each).collect();
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
    });
    Tally::from_times(began.elapsed(), took)
}
