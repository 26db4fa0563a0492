//! Tests the resulting mailbox against a relay that refuses messages in typical ways.

mod tls;

use std::time::Duration;

use stepwatch_fakes::{FakeSmtp, SmtpFault};
use tempfile::TempDir;

use super::*;
use crate::notify::Picture;
use crate::notify::tests::{hostile, page};

struct Bench {
    relay: FakeSmtp,
    email: Email,
    _dir: TempDir,
}

impl Bench {
    async fn new() -> Self {
        Self::with(|config| config).await
    }

    async fn with(change: impl FnOnce(Config) -> Config) -> Self {
        let (relay, dir) = (FakeSmtp::start().await, tempfile::tempdir().unwrap());
        let password = dir.path().join("password");
        std::fs::write(&password, FakeSmtp::PASSWORD).unwrap();
        let config = Config {
            to: vec!["On call <oncall@example.com>".into()],
            from: "Stepwatch <stepwatch@example.com>".into(),
            smarthost: relay.addr().to_string(),
            tls: TlsMode::None,
            username: Some(FakeSmtp::USER.into()),
            password_file: Some(password),
            hello: Some("alerter.example.com".into()),
            ..Config::default()
        };
        let email = change(config).build().unwrap();
        Self { relay, email, _dir: dir }
    }

    async fn try_send(&self, n: &Notification, memory: Option<&str>) -> Result<Receipt, Failure> {
        self.email.send(Attempt { memory, ..Attempt::first(n) }).await
    }

    async fn fail(&self, fault: SmtpFault) -> Failure {
        self.relay.change(|s| s.faults.push_back(fault));
        let failure = self.try_send(&page("mail", 1, Action::Trigger), None).await.expect_err("a fault");
        assert!(!failure.error.contains(FakeSmtp::PASSWORD), "{}", failure.error);
        failure
    }
}

#[tokio::test]
async fn an_incident_is_one_conversation() {
    let bench = Bench::new().await;
    let mut memory = None;
    let words = [Action::Trigger, Action::Update, Action::Ack, Action::Resolve];
    let states = [Status::Firing, Status::Firing, Status::Acknowledged, Status::Resolved];
    for ((seq, action), status) in (1..).zip(words).zip(states) {
        let mut n = page("mail", seq, action);
        n.message.status = status;
        n.message.title = format!("title {seq}");
        memory = bench.try_send(&n, memory.as_deref()).await.unwrap().memory;
    }
    bench.relay.with(|s| {
        assert_eq!(s.refused, Vec::<String>::new());
        let subjects: Vec<&str> = s.mails.iter().map(|m| m.header("subject")).collect();
        assert_eq!(subjects, ["title 1", "Re: title 1", "Re: title 1", "Re: title 1"]);
        let first = s.mails[0].id();
        assert!(s.mails[1..].iter().all(|m| m.header("references") == first));
        let heads: Vec<&str> = s.mails.iter().map(|m| m.text.split(':').next().unwrap()).collect();
        assert_eq!(heads, ["PAGE", "NEWS", "ACKNOWLEDGED", "RESOLVED"]);
        assert_eq!(s.mails[0].header("x-priority"), "1");
        assert_eq!(s.mails[3].header("x-priority"), "");
        for part in ["27.3", "rank 17 on gpu-042", "https://example.com/runbooks/grad_spike.md"] {
            assert!(s.mails[0].text.contains(part) && s.mails[0].html.contains(part), "{part}");
        }
    });
}

#[tokio::test]
async fn a_report_is_a_page_and_markdown() {
    let bench = Bench::new().await;
    let report = crate::notify::report::tests::weekly(true);
    let n = report.notification("report/weekly/2026-11-23", "mail", stepwatch_model::time::Ts(0));
    // A possible second copy is the same message.
    for ambiguous in [false, true] {
        let attempt = Attempt { report: Some(&report), ambiguous, ..Attempt::first(&n) };
        bench.email.send(attempt).await.unwrap();
    }
    bench.relay.with(|s| {
        assert_eq!((s.refused.as_slice(), s.mails.len(), s.duplicates), (&[][..], 1, 1));
        let mail = &s.mails[0];
        assert_eq!(mail.header("subject"), "Weekly report, 2026-11-16 to 2026-11-22");
        assert_eq!(mail.header("x-stepwatch-report"), "report/weekly/2026-11-23");
        assert_eq!((mail.header("x-stepwatch-incident"), mail.header("x-priority")), ("", ""));
        assert!(mail.text.contains("| GPU hours | 10752 |"), "{}", mail.text);
        assert!(mail.html.contains("<th scope=\"row\">llama-70b</th>"), "{}", mail.html);
    });
}

#[tokio::test]
async fn what_may_have_arrived_is_recognised() {
    let bench = Bench::new().await;
    let failure = bench.fail(SmtpFault::TakenThenReset).await;
    assert_eq!((failure.class, failure.ambiguous), (FailureClass::Transient, true), "{failure:?}");
    bench.try_send(&page("mail", 1, Action::Trigger), None).await.unwrap();
    bench.relay.with(|s| assert_eq!((s.mails.len(), s.duplicates), (1, 1)));
}

#[tokio::test]
async fn every_reply_means_what_it_says() {
    use FailureClass::{Permanent, Transient};
    let bench = Bench::new().await;
    for (code, class) in [
        (421, Transient),
        (450, Transient),
        (451, Transient),
        (452, Transient),
        (550, Permanent),
        (552, Permanent),
        (554, Permanent),
    ] {
        for fault in [SmtpFault::Mail(code), SmtpFault::Data(code)] {
            let failure = bench.fail(fault).await;
            assert_eq!((failure.class, failure.ambiguous), (class, false), "{fault:?}: {}", failure.error);
        }
    }
    let failure = bench.fail(SmtpFault::Reset).await;
    assert_eq!((failure.class, failure.ambiguous), (Transient, true));
    bench.relay.change(|s| drop(s.accounts.insert(FakeSmtp::USER.into(), "changed".into())));
    let n = page("mail", 1, Action::Trigger);
    let failure = bench.try_send(&n, None).await.unwrap_err();
    assert_eq!(failure.class, Permanent, "{}", failure.error);
    assert!(!failure.error.contains(FakeSmtp::PASSWORD), "the relay echoed it: {}", failure.error);
    assert_eq!(bench.relay.with(|s| s.mails.len()), 0);
}

#[tokio::test]
async fn nobody_listens() {
    let Bench { relay, email, _dir } = Bench::new().await;
    drop(relay);
    let n = page("mail", 1, Action::Trigger);
    // The relay closes its socket with a delay.
    let failure = loop {
        match email.send(Attempt::first(&n)).await {
            Err(failure) if !failure.ambiguous => break failure,
            _ => tokio::task::yield_now().await,
        }
    };
    assert_eq!(failure.class, FailureClass::Transient, "{}", failure.error);
}

#[tokio::test]
async fn an_address_that_does_not_exist_does_not_silence_the_others() {
    let to = vec!["gone@example.com".into(), "oncall@example.com".into()];
    let bench = Bench::with(|config| Config { to, ..config }).await;
    bench.relay.change(|s| {
        s.unknown.insert("gone@example.com".into());
    });
    bench.try_send(&page("mail", 1, Action::Trigger), None).await.unwrap();
    bench.relay.with(|s| assert_eq!(s.mails[0].to, ["oncall@example.com"]));
    bench.relay.change(|s| {
        s.unknown.insert("oncall@example.com".into());
    });
    let failure = bench.try_send(&page("mail", 2, Action::Trigger), None).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::Permanent);
}

#[tokio::test]
async fn an_address_that_must_wait_does_not_keep_the_others_waiting() {
    let to = ["slow@example.com", "gone@example.com", "oncall@example.com"].map(str::to_owned).to_vec();
    let bench = Bench::with(|config| Config { to, ..config }).await;
    bench.relay.change(|s| {
        s.unknown.insert("gone@example.com".into());
        s.later.insert("slow@example.com".into());
    });
    let n = page("mail", 1, Action::Trigger);
    let first = bench.try_send(&n, None).await.unwrap_err();
    assert_eq!((first.class, first.ambiguous), (FailureClass::Partly, false), "{}", first.error);
    assert!(
        first.error.contains("others have it, slow@example.com does not yet: email: "),
        "{}",
        first.error
    );
    // After a restart, no recipient gets a second copy, and the message is the same.
    let again = bench.try_send(&n, first.memory.as_deref()).await.unwrap_err();
    bench.relay.change(|s| s.later.clear());
    let receipt = bench.try_send(&n, again.memory.as_deref()).await.unwrap();
    let next = page("mail", 2, Action::Ack);
    bench.try_send(&next, receipt.memory.as_deref()).await.unwrap();
    bench.relay.with(|s| {
        let to: Vec<String> = s.mails.iter().map(|m| m.to.join(" ")).collect();
        assert_eq!(to, ["oncall@example.com", "slow@example.com", "slow@example.com oncall@example.com"]);
        assert_eq!((s.duplicates, s.refused.len()), (0, 0), "{:?}", s.refused);
        assert_eq!(
            (s.mails[0].id(), s.mails[0].header("subject")),
            (s.mails[1].id(), s.mails[1].header("subject"))
        );
        assert_eq!(s.mails[1].header("references"), "", "a first message is no answer to itself");
        assert_eq!(s.mails[2].header("references"), s.mails[0].id());
    });
}

#[tokio::test]
async fn an_address_that_must_wait_for_ever_is_given_up_once_others_have_it() {
    let to = ["slow@example.com", "oncall@example.com"].map(str::to_owned).to_vec();
    let bench = Bench::with(|config| Config { to, ..config }).await;
    bench.relay.change(|s| {
        s.later.insert("slow@example.com".into());
    });
    let mut memory = None;
    for (is_page, most, mails) in [(false, PARTLY_MAX, 1), (true, PARTLY_PAGE_MAX, 2)] {
        let n = Notification { page: is_page, ..page("mail", mails, Action::Trigger) };
        let mut tries = 1;
        while let Err(failure) = bench.try_send(&n, memory.as_deref()).await {
            assert_eq!(failure.class, FailureClass::Partly);
            (memory, tries) = (failure.memory, tries + 1);
        }
        assert_eq!((tries, bench.relay.with(|s| s.mails.len())), (most, mails as usize));
    }
    // If no recipient has it, it is not delivered.
    bench.relay.change(|s| {
        s.later.insert("oncall@example.com".into());
    });
    let failure = bench.try_send(&page("mail", 3, Action::Trigger), memory.as_deref()).await.unwrap_err();
    assert_eq!((failure.class, failure.ambiguous), (FailureClass::Transient, false), "{}", failure.error);
}

#[tokio::test]
async fn a_relay_that_fails_takes_nothing_back_from_those_who_have_it() {
    let to = ["slow@example.com", "oncall@example.com"].map(str::to_owned).to_vec();
    let bench = Bench::with(|config| Config { to, ..config }).await;
    bench.relay.change(|s| {
        s.later.insert("slow@example.com".into());
    });
    let n = page("mail", 1, Action::Trigger);
    let first = bench.try_send(&n, None).await.unwrap_err();
    assert_eq!(first.class, FailureClass::Partly);
    // If the relay is out of order, the failure is classified as such, and the try counts.
    let (mut memory, mut tries) = (first.memory.clone(), 2);
    loop {
        bench.relay.change(|s| s.faults.push_back(SmtpFault::Mail(451)));
        let Err(failure) = bench.try_send(&n, memory.as_deref()).await else { break };
        assert_eq!((failure.class, failure.ambiguous), (FailureClass::Transient, false));
        assert!(failure.memory.is_some() && failure.error.starts_with("others have it"), "{failure:?}");
        (memory, tries) = (failure.memory, tries + 1);
    }
    assert_eq!(tries, PARTLY_PAGE_MAX);
    // Refusals apply to the remaining recipients.
    bench.relay.change(|s| s.faults.push_back(SmtpFault::Mail(554)));
    bench.try_send(&n, first.memory.as_deref()).await.unwrap();
    bench.relay.change(|s| drop(s.accounts.insert(FakeSmtp::USER.into(), "changed".into())));
    let receipt = bench.try_send(&n, first.memory.as_deref()).await.unwrap();
    let thread: Thread = serde_json::from_str(&receipt.memory.unwrap()).unwrap();
    assert!(thread.part.is_none());
    assert_eq!(bench.relay.with(|s| s.mails.len()), 1);
}

#[tokio::test]
async fn a_dropped_attempt_holds_up_nobody() {
    let bench = Bench::new().await;
    bench.relay.change(|s| s.faults.push_back(SmtpFault::Hang));
    let n = page("mail", 1, Action::Trigger);
    let waited = tokio::time::timeout(Duration::from_millis(200), bench.try_send(&n, None)).await;
    assert!(waited.is_err());
    bench.relay.change(|s| s.faults.clear());
    bench.try_send(&n, None).await.unwrap();
}

#[tokio::test]
async fn hostile_text_makes_no_header_and_no_markup() {
    let bench = Bench::new().await;
    let mut n = hostile(page("mail", 1, Action::Trigger));
    n.message.title = "x\r\nBcc: victim@example.com\r\n\r\n<script>alert(1)</script>".into();
    n.message.summary = format!("{}\n.\nQUIT\nüñî {}", n.message.summary, "long ".repeat(2000));
    n.incident = "id\r\nX-Evil: 1".into();
    bench.try_send(&n, None).await.unwrap();
    bench.relay.with(|s| {
        assert_eq!((s.refused.as_slice(), s.mails.len()), (&[][..], 1));
        let mail = &s.mails[0];
        assert!(mail.headers.iter().all(|(name, _)| name != "bcc" && name != "x-evil"), "{:?}", mail.headers);
        assert_eq!(mail.to, ["oncall@example.com"]);
        assert!(!mail.html.contains("<script") && !mail.html.contains("href=\"javascript"), "{}", mail.html);
        assert!(!mail.html.contains('\u{202e}') && !mail.text.contains('\u{202e}'));
        assert!(mail.text.contains("üñî"));
    });
}

#[test]
fn the_looks_of_a_page() {
    let n = page("mail", 1, Action::Trigger);
    insta::assert_snapshot!("page_text", plain(&n));
    insta::assert_snapshot!("page_html", html::render(&n, None));
}

#[test]
fn a_wrong_configuration_says_what_is_wrong() {
    let good = Config {
        to: vec!["a@example.com".into()],
        from: "b@example.com".into(),
        smarthost: "relay.example.com:587".into(),
        ..Config::default()
    };
    assert!(good.clone().build().is_ok());
    let error = |config: Config| config.build().unwrap_err().to_string();
    assert!(error(Config { to: vec![], ..good.clone() }).contains("to: needs"));
    assert!(error(Config { to: vec!["nobody".into()], ..good.clone() }).contains("\"nobody\""));
    assert!(error(Config { from: String::new(), ..good.clone() }).contains("from"));
    assert!(error(Config { smarthost: "a b".into(), ..good.clone() }).contains("host:port"));
    assert!(error(Config { username: Some("u".into()), ..good.clone() }).contains("go together"));
    let secret = Config { password_env: Some("PATH".into()), username: Some("u".into()), ..good };
    assert!(!format!("{:?}", secret.build().unwrap()).contains(&std::env::var("PATH").unwrap()));
}

fn chart(bytes: usize) -> Picture {
    let alt = "Chart of loss of llama-70b: <b>loss</b> is NaN".into();
    Picture { name: "chart.png".into(), alt, png: vec![7; bytes].into() }
}

#[tokio::test]
async fn the_chart_travels_within_the_mail() {
    let bench = Bench::new().await;
    for (seq, picture) in [(1, chart(4000)), (2, chart(CHART_MAX + 1))] {
        let n = page("mail", seq, Action::Trigger);
        bench.email.send(Attempt { chart: Some(&picture), ..Attempt::first(&n) }).await.unwrap();
    }
    bench.relay.with(|s| {
        assert_eq!(s.refused, Vec::<String>::new());
        assert_eq!(s.mails[0].pictures, [("chart".to_owned(), vec![7; 4000])]);
        assert!(
            s.mails[0].html.contains("alt=\"Chart of loss of llama-70b: &lt;b&gt;loss"),
            "{}",
            s.mails[0].html
        );
        assert!(s.mails[0].text.contains("27.3"), "the text has the numbers");
        assert!(
            s.mails[1].pictures.is_empty() && !s.mails[1].html.contains("<img"),
            "one that is too large is left out"
        );
    });
}
