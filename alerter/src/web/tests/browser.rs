//! Tests of the pages in a real Chromium: buttons, keys, refresh, and accessibility with axe-core.

mod driver;
mod scene;

use std::time::Duration;

use driver::{Driver, Look};
use tokio::time::Instant;

use crate::testing::{DEADLINE, TestApp, wait_for};

const PHONE: (u32, u32) = (360, 740);
const DESK: (u32, u32) = (1280, 900);
/// The size of a usual phone, and the time for the script to draw.
const PICTURED_PHONE: (u32, u32) = (390, 844);
const DRAWN_WITHIN: Duration = Duration::from_millis(1500);

/// Waits until the page shows a text, without a reload.
async fn says(browser: &Driver, text: &str) {
    let started = Instant::now();
    loop {
        let shown = browser.text().await;
        if shown.contains(text) {
            return;
        }
        assert!(started.elapsed() < DEADLINE, "the page does not say {text:?}:\n{shown}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until the script of the page handles keys, which is after the text is visible.
async fn listens(browser: &Driver) {
    wait_for("the script", async || browser.has("#age.live").await.then_some(())).await;
}

#[tokio::test]
async fn two_people_at_one_incident_on_a_phone() {
    let app = TestApp::start().await;
    let id = app.page("llama").await;
    let ann = Driver::start(PHONE, Look::Dark).await;
    let bob = Driver::start(PHONE, Look::Light).await;
    ann.go(&app.url).await;
    bob.go(&format!("{}/incidents/{id}", app.url)).await;
    assert!(bob.text().await.contains("NOBODY has it"));
    assert!(bob.in_view("main [data-key=a]").await, "it is acknowledged without scrolling");
    ann.click("main [data-key=a]").await;
    // The other page updates itself, and shows that it is live.
    says(&bob, "web has it").await;
    says(&bob, "live").await;
    assert!(ann.text().await.contains("acknowledged"));

    bob.click("[data-key=s]").await;
    says(&bob, "1 of 1 open incidents").await;
    bob.type_into("#matchers", "\nnode=nowhere").await;
    says(&bob, "It matches nothing").await;
    bob.go(&format!("{}/silences/new?incident={id}", app.url)).await;
    bob.type_into("#comment", "being repaired").await;
    bob.click("button.main").await;
    says(&bob, "being repaired").await;

    bob.choose("select[name=as]", "noise").await;
    bob.click("form[action$=resolve] button").await;
    says(&bob, "by web as noise").await;
    for browser in [ann, bob] {
        assert_eq!(browser.complaints().await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn keys_choose_and_press_and_are_letters_in_a_field() {
    let app = TestApp::start().await;
    app.page("llama").await;
    let browser = Driver::start(DESK, Look::Light).await;
    browser.go(&app.url).await;
    listens(&browser).await;
    browser.press("/").await;
    browser.press("a").await;
    assert_eq!(browser.value("input[name=run]").await, "a", "it is a letter there");
    browser.go(&app.url).await;
    // The previous page at the same address would treat the next key as a letter.
    wait_for("a new page", async || browser.value("input[name=run]").await.is_empty().then_some(())).await;
    listens(&browser).await;
    browser.press("j").await;
    wait_for("a choice", async || browser.has("[data-item].chosen").await.then_some(())).await;
    browser.press("\u{e007}").await;
    says(&browser, "NOBODY has it").await;
    listens(&browser).await;
    browser.press("a").await;
    says(&browser, "web has it").await;
    listens(&browser).await;
    browser.press("?").await;
    says(&browser, "next, previous").await;
}

/// The page requests itself, and before the response arrives a person begins to type.
#[tokio::test]
async fn an_answer_on_its_way_replaces_nothing_that_somebody_fills_in() {
    const RACE: &str = "const live = document.getElementById('live'); \
        document.addEventListener('htmx:finally:request', () => { document.body.dataset.answered = 'yes'; }); \
        live.appendChild(document.createElement('hr')).id = 'mark'; \
        live.dispatchEvent(new CustomEvent('renew')); \
        if (arguments[0]) live.querySelector('input[name=note]').focus();";
    let app = TestApp::start().await;
    let id = app.page("llama").await;
    let browser = Driver::start(DESK, Look::Light).await;
    for types in [true, false] {
        browser.go(&format!("{}/incidents/{id}", app.url)).await;
        listens(&browser).await;
        browser.run(RACE, serde_json::json!([types])).await;
        let answered = async || browser.has("body[data-answered]").await.then_some(());
        wait_for("the answer", answered).await;
        // Content that the response lacks stays while a person types.
        if types {
            assert!(browser.has("#mark").await, "the page was replaced under their hands");
        } else {
            wait_for("the new page", async || (!browser.has("#mark").await).then_some(())).await;
        }
    }
}

#[tokio::test]
async fn a_session_that_ends_leads_to_the_login() {
    let token = "0123456789abcdef-admin";
    let config = "api: {tokens: [{name: admin, token_file: admin, scopes: [admin]}]}\n";
    let app = TestApp::start_with(config, &[("admin", token.to_owned())]).await;
    let browser = Driver::start(PHONE, Look::Dark).await;
    browser.go(&format!("{}/?severity=page", app.url)).await;
    browser.type_into("#password", token).await;
    browser.click("button.main").await;
    says(&browser, "No incident matches").await;
    std::fs::write(app.dir.path().join("admin"), "0123456789abcdef-other").unwrap();
    let reload = reqwest::Client::new().post(format!("{}/-/reload", app.url)).bearer_auth(token);
    assert_eq!(reload.send().await.unwrap().status(), 200);
    says(&browser, "Password or token").await;
    assert_eq!(browser.value("input[name=next]").await, "/?severity=page", "and back");
}

#[tokio::test]
async fn axe_finds_nothing_wrong_with_any_page() {
    let (app, pages) = scene::with_one_of_everything().await;
    let mut wrong = Vec::new();
    for (size, look) in [(PHONE, Look::Light), (PHONE, Look::Dark), (DESK, Look::Light), (DESK, Look::Dark)] {
        let browser = Driver::start(size, look).await;
        for path in &pages {
            browser.go(&format!("{}{path}", app.url)).await;
            let found = browser.axe().await;
            wrong.extend(found.into_iter().map(|what| format!("{path} {size:?} {look:?}: {what}")));
            if browser.is_wider_than_the_screen().await {
                wrong.push(format!("{path} {size:?}: is wider than the screen"));
            }
        }
        wrong.extend(browser.complaints().await);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Takes pictures of all pages for inspection: `STEPWATCH_PICTURES=DIR cargo test -p
/// stepwatch-alerter --lib pictures_of_every_page`
#[tokio::test]
async fn pictures_of_every_page() {
    let Some(dir) = std::env::var_os("STEPWATCH_PICTURES").map(std::path::PathBuf::from) else { return };
    std::fs::create_dir_all(&dir).unwrap();
    let (app, pages) = scene::with_one_of_everything().await;
    for (screen, size) in [("phone", PICTURED_PHONE), ("desk", DESK)] {
        for look in [Look::Light, Look::Dark] {
            let browser = Driver::start(size, look).await;
            for path in &pages {
                browser.go(&format!("{}{path}", app.url)).await;
                // The script requests the signals and draws them.
                tokio::time::sleep(DRAWN_WITHIN).await;
                let name = format!("{}-{screen}-{look:?}.png", page_name(path)).to_lowercase();
                std::fs::write(dir.join(name), browser.picture().await).unwrap();
            }
        }
    }
}

/// The name of a page: `/silences/new?incident=1` is `silences-new`, and the list of incidents
/// `incidents`.
fn page_name(path: &str) -> String {
    let page = path.split('?').next().unwrap_or_default().trim_matches('/').replace('/', "-");
    match page.split_once('-') {
        Some(("incidents", "nonsense")) => "not-found".to_owned(),
        Some(("incidents", _)) => "incident".to_owned(),
        _ if page.is_empty() => "incidents".to_owned(),
        _ => page,
    }
}
