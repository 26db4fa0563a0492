//! A headless Chromium, driven by ChromeDriver over the WebDriver protocol
//! (<https://www.w3.org/TR/webdriver2/>).

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Value, json};

/// The key of an element's reference in an answer (WebDriver, 11. Elements).
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
const AXE: &str = include_str!("../axe/axe.min.js");

#[derive(Debug, Clone, Copy)]
pub(super) enum Look {
    Light,
    Dark,
}

/// One browser, which is closed on drop.
#[derive(Debug)]
pub(super) struct Driver {
    driver: Child,
    client: reqwest::Client,
    session: String,
}

impl Drop for Driver {
    fn drop(&mut self) {
        // A killed driver leaves Chromium and its directory behind.
        let _ = self.end_session();
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

impl Driver {
    /// Returns when Chromium has ended. It uses no runtime, because that may be ending too.
    fn end_session(&self) -> std::io::Result<()> {
        let address = self.session.trim_start_matches("http://");
        let (host, path) = address.split_once('/').unwrap_or((address, ""));
        let mut stream = TcpStream::connect(host)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(stream, "DELETE /{path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n")?;
        // The driver answers when Chromium has ended, and keeps the connection open.
        stream.read(&mut [0; 512]).map(drop)
    }

    pub(super) async fn start((width, height): (u32, u32), look: Look) -> Self {
        let mut driver = Command::new("chromedriver")
            .args(["--port=0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver: install chromium and chromium-driver (`cargo verify` does)");
        let lines = BufReader::new(driver.stdout.take().unwrap()).lines().map_while(Result::ok);
        let port = lines
            .into_iter()
            .find_map(|line| {
                Some(line.rsplit_once("successfully on port ")?.1.trim_end_matches('.').to_owned())
            })
            .expect("chromedriver says its port");
        let client = reqwest::Client::new();
        let options = json!({
            "binary": "/usr/bin/chromium",
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        });
        let wanted = json!({"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}});
        let url = format!("http://127.0.0.1:{port}/session");
        let session = client.post(&url).json(&json!({"capabilities": {"alwaysMatch": wanted}}));
        let session: Value = session.send().await.unwrap().json().await.unwrap();
        let id = session["value"]["sessionId"].as_str().unwrap_or_else(|| panic!("{session}"));
        let started = Self { driver, client, session: format!("{url}/{id}") };
        let scheme = match look {
            Look::Light => "light",
            Look::Dark => "dark",
        };
        let screen = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        started.devtools("Emulation.setDeviceMetricsOverride", screen).await;
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        started.devtools("Emulation.setEmulatedMedia", media).await;
        started
    }

    async fn post(&self, path: &str, body: Value) -> Result<Value, String> {
        let request = self.client.post(format!("{}{path}", self.session)).json(&body);
        let response = request.send().await.map_err(|e| e.to_string())?;
        let ok = response.status().is_success();
        let answer: Value = response.json().await.map_err(|e| e.to_string())?;
        if ok { Ok(answer["value"].clone()) } else { Err(answer["value"]["message"].to_string()) }
    }

    async fn devtools(&self, cmd: &str, params: Value) -> Value {
        self.post("/goog/cdp/execute", json!({"cmd": cmd, "params": params})).await.unwrap()
    }

    pub(super) async fn run(&self, script: &str, args: Value) -> Value {
        self.post("/execute/sync", json!({"script": script, "args": args})).await.unwrap()
    }

    async fn element(&self, css: &str) -> String {
        let wanted = json!({"using": "css selector", "value": css});
        let found = self.post("/element", wanted).await.unwrap_or_else(|e| panic!("{css}: {e}"));
        found[ELEMENT].as_str().unwrap().to_owned()
    }

    pub(super) async fn go(&self, url: &str) {
        self.post("/url", json!({"url": url})).await.unwrap();
    }

    /// The visible text.
    pub(super) async fn text(&self) -> String {
        self.run("return document.body.innerText", json!([])).await.as_str().unwrap_or_default().to_owned()
    }

    pub(super) async fn click(&self, css: &str) {
        let element = self.element(css).await;
        self.post(&format!("/element/{element}/click"), json!({}))
            .await
            .unwrap_or_else(|e| panic!("{css}: {e}"));
    }

    pub(super) async fn type_into(&self, css: &str, text: &str) {
        let element = self.element(css).await;
        self.post(&format!("/element/{element}/value"), json!({"text": text})).await.unwrap();
    }

    pub(super) async fn choose(&self, css: &str, value: &str) {
        let script = "document.querySelector(arguments[0]).value = arguments[1]";
        self.run(script, json!([css, value])).await;
    }

    /// Presses a key at the focused element.
    pub(super) async fn press(&self, key: &str) {
        let strokes = json!([{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]);
        self.post("/actions", json!({"actions": [{"type": "key", "id": "keys", "actions": strokes}]}))
            .await
            .unwrap();
    }

    pub(super) async fn value(&self, css: &str) -> String {
        let script = "return document.querySelector(arguments[0]).value";
        self.run(script, json!([css])).await.as_str().unwrap_or_default().to_owned()
    }

    pub(super) async fn has(&self, css: &str) -> bool {
        self.run("return document.querySelector(arguments[0]) !== null", json!([css])).await == true
    }

    /// Whether the whole element is on the screen.
    pub(super) async fn in_view(&self, css: &str) -> bool {
        let script = "const r = document.querySelector(arguments[0]).getBoundingClientRect(); \
                      return r.top >= 0 && r.bottom <= innerHeight && r.left >= 0 && r.right <= innerWidth";
        self.run(script, json!([css])).await == true
    }

    pub(super) async fn is_wider_than_the_screen(&self) -> bool {
        self.run("return document.documentElement.scrollWidth > innerWidth", json!([])).await == true
    }

    /// A picture of the whole page as PNG.
    pub(super) async fn picture(&self) -> Vec<u8> {
        let wanted = json!({"format": "png", "captureBeyondViewport": true});
        let taken = self.devtools("Page.captureScreenshot", wanted).await;
        BASE64_STANDARD.decode(taken["data"].as_str().unwrap_or_else(|| panic!("{taken}"))).unwrap()
    }

    /// The axe-core rules that the page violates, each with its first element.
    pub(super) async fn axe(&self) -> Vec<String> {
        // Injected by DevTools, because our policy allows no other script.
        self.devtools("Runtime.evaluate", json!({"expression": AXE})).await;
        let ask = "axe.run().then((r) => r.violations.map((v) => `${v.id}: ${v.nodes[0].html} (${v.nodes[0].failureSummary})`))";
        let ask = json!({"expression": ask, "awaitPromise": true, "returnByValue": true});
        let found = self.devtools("Runtime.evaluate", ask).await;
        let list = found["result"]["value"].as_array().unwrap_or_else(|| panic!("{found}")).clone();
        list.iter().map(|v| v.as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Errors of scripts and policy violations, without the missing chart of an incident.
    pub(super) async fn complaints(&self) -> Vec<String> {
        let log = self.post("/se/log", json!({"type": "browser"})).await.unwrap();
        let texts = log.as_array().unwrap().iter().filter(|entry| entry["level"] == "SEVERE");
        let texts = texts.map(|entry| entry["message"].as_str().unwrap_or_default().to_owned());
        texts.filter(|text| !text.contains("/chart.svg - ") && !text.contains("404 (Not Found)")).collect()
    }
}
