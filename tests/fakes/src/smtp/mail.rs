//! A mail: its headers, and the text that a person reads.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The longest line, without its line break.
const LINE_MAX: usize = 998;
const ONCE: &[&str] = &["from", "to", "subject", "date", "message-id", "mime-version", "content-type"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mail {
    pub from: String,
    /// The recipients of the envelope.
    pub to: Vec<String>,
    /// The headers, with names in lower case and unfolded values.
    pub headers: Vec<(String, String)>,
    pub text: String,
    pub html: String,
    /// The embedded images: the content id, and the bytes.
    pub pictures: Vec<(String, Vec<u8>)>,
}

impl Mail {
    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(n, _)| n == name).map_or("", |(_, v)| v)
    }

    pub fn id(&self) -> &str {
        self.header("message-id")
    }

    pub(super) fn read(from: String, to: Vec<String>, raw: &str, known: &[Self]) -> Result<Self, String> {
        if raw.replace("\r\n", "").contains(['\r', '\n']) {
            return Err("a bare CR or LF".into());
        }
        if let Some(line) = raw.split("\r\n").find(|l| l.len() > LINE_MAX) {
            return Err(format!("a line of {} characters", line.len()));
        }
        let (head, body) = raw.split_once("\r\n\r\n").ok_or("no end of the headers")?;
        let headers = headers(head)?;
        let mut mail =
            Self { from, to, headers, text: String::new(), html: String::new(), pictures: Vec::new() };
        for name in ONCE {
            let count = mail.headers.iter().filter(|(n, _)| n == name).count();
            if count != 1 {
                return Err(format!("{count} headers {name}, expected one"));
            }
        }
        let parent = mail.header("in-reply-to");
        if !parent.is_empty() && !known.iter().any(|m| m.id() == parent) {
            return Err(format!("a reply to {parent}, which is not known"));
        }
        if parent != mail.header("references") {
            return Err("references and in-reply-to differ".into());
        }
        let kind = mail.header("content-type").to_owned();
        mail.read_parts(&kind, body)?;
        for (id, _) in &mail.pictures {
            if !mail.html.contains(&format!("cid:{id}\"")) {
                return Err(format!("a picture {id:?} that is shown nowhere"));
            }
        }
        if mail.html.matches("cid:").count() != mail.pictures.len() {
            return Err("a reference to a picture that is not there".into());
        }
        if mail.text.is_empty() || mail.html.is_empty() {
            return Err("needs a plain and an HTML part".into());
        }
        Ok(mail)
    }

    /// Reads the parts of a multipart type, at any depth.
    fn read_parts(&mut self, kind: &str, body: &str) -> Result<(), String> {
        let boundary = kind.split("boundary=").nth(1).ok_or(format!("no boundary in {kind:?}"))?;
        let boundary = format!("--{}", boundary.trim_matches('"'));
        // The terminator of the last part begins with "--".
        for part in body.split(&boundary).skip(1).take_while(|part| !part.starts_with("--")) {
            let Some((head, body)) = part.trim_start_matches("\r\n").split_once("\r\n\r\n") else { continue };
            let head = headers(head)?;
            let of = |name: &str| head.iter().find(|(n, _)| n == name).map_or("", |(_, v)| v.as_str());
            let encoding = of("content-transfer-encoding");
            match of("content-type") {
                t if t.starts_with("text/plain") => self.text = text(encoding, body)?,
                t if t.starts_with("text/html") => self.html = text(encoding, body)?,
                t if t.starts_with("multipart/related") => self.read_parts(t, body)?,
                "image/png" if of("content-disposition") == "inline" => {
                    let id = of("content-id").trim_matches(['<', '>']).to_owned();
                    self.pictures.push((id, decode(encoding, body)?));
                }
                t => return Err(format!("a part of type {t}")),
            }
        }
        Ok(())
    }
}

fn text(encoding: &str, body: &str) -> Result<String, String> {
    Ok(String::from_utf8_lossy(&decode(encoding, body)?).into_owned())
}

fn headers(head: &str) -> Result<Vec<(String, String)>, String> {
    let unfolded = head.replace("\r\n ", " ").replace("\r\n\t", " ");
    unfolded
        .split("\r\n")
        .filter(|l| !l.is_empty())
        .map(|line| {
            if !line.is_ascii() {
                return Err(format!("a header that is not ASCII: {line:?}"));
            }
            let (name, value) = line.split_once(':').ok_or(format!("no header: {line:?}"))?;
            Ok((name.to_ascii_lowercase(), words(value.trim())))
        })
        .collect()
}

/// Decodes the encoded words of a header.
fn words(value: &str) -> String {
    let mut out = String::new();
    let mut rest = value;
    while let Some(start) = rest.find("=?utf-8?b?") {
        let Some(end) = rest[start + 10..].find("?=") else { break };
        let word = &rest[start + 10..start + 10 + end];
        let before = &rest[..start];
        // Blanks between two encoded words are not shown.
        if out.is_empty() || !before.trim().is_empty() {
            out += before;
        }
        out += &String::from_utf8_lossy(&STANDARD.decode(word).unwrap_or_default());
        rest = &rest[start + 10 + end + 2..];
    }
    out + rest
}

fn decode(encoding: &str, body: &str) -> Result<Vec<u8>, String> {
    match encoding {
        "7bit" | "8bit" => Ok(body.as_bytes().to_vec()),
        "base64" => STANDARD.decode(body.replace("\r\n", "")).map_err(|e| e.to_string()),
        "quoted-printable" => quoted(&body.replace("=\r\n", "")),
        other => Err(format!("the encoding {other:?}")),
    }
}

fn quoted(body: &str) -> Result<Vec<u8>, String> {
    let (mut out, mut bytes) = (Vec::new(), body.bytes());
    while let Some(b) = bytes.next() {
        if b != b'=' {
            out.push(b);
            continue;
        }
        let mut code = String::new();
        for b in bytes.by_ref().take(2) {
            let _ = write!(code, "{}", char::from(b));
        }
        out.push(u8::from_str_radix(&code, 16).map_err(|_| format!("={code} in quoted-printable"))?);
    }
    Ok(out)
}
