//! HTML parts that the pages share.

use jiff::Timestamp;

const STYLE: &str = "
*{box-sizing:border-box}body{font:14px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;color:#1d1c1d;background:#f5f5f7;margin:0;padding:24px}
h1{font-size:15px;font-weight:600;color:#616061;max-width:860px;margin:0 auto 16px}a{color:#1264a3;text-decoration:none}
code{background:#f2f2f2;border:1px solid #e3e3e3;border-radius:3px;padding:0 3px;color:#c01343;font-size:12px}
.dim{color:#8a8a8a;font-size:12px}.empty{text-align:center;color:#8a8a8a;margin-top:80px}
";

/// A page that refreshes itself every two seconds.
pub(crate) fn page(title: &str, style: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html><html lang=en><head><meta charset=utf-8><title>{title}</title>\
         <meta http-equiv=refresh content=2><meta name=viewport content=\"width=device-width\">\
         <style>{STYLE}{style}</style></head><body><h1>{title}</h1>{body}</body></html>"
    )
}

pub(crate) fn escape(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    for c in s.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// A time such as `14:03:07` in UTC.
pub(crate) fn clock(unix_seconds: i64) -> String {
    Timestamp::from_second(unix_seconds).map(|t| t.strftime("%H:%M:%S").to_string()).unwrap_or_default()
}
