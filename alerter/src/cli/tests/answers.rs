//! Actions on incidents of a running alerter.

use super::*;

#[tokio::test]
async fn incidents_are_answered_from_a_shell() {
    let app = TestApp::start().await;
    let id = app.page("llama").await;
    let url = ["--url", app.url.as_str()];
    let ask = async |args: &[&str]| cli(&[args, &url].concat()).await;

    let (status, out, _) = ask(&["incidents", "list"]).await;
    assert!(status == 0 && out.contains(&id) && out.contains("rank_dead"), "{out}");
    let (_, out, _) = ask(&["incidents", "list", "--format", "json", "--severity", "page"]).await;
    assert_eq!(serde_json::from_str::<serde_json::Value>(&out).unwrap()["incidents"][0]["id"], id);

    let (status, out, _) = ask(&["incidents", "ack", &id, "--by", "alice"]).await;
    assert!(status == 0 && out.contains("acknowledged by alice"), "{out}");
    // The second answer names the first person.
    let (status, out, _) = ask(&["incidents", "ack", &id, "--by", "bob"]).await;
    assert!(status == 0 && out.contains("was already acknowledged by alice at 2"), "{out}");
    // A repeated answer of the same person does not.
    let (_, out, _) = ask(&["incidents", "ack", &id, "--by", "alice"]).await;
    assert!(out.contains(" acknowledged by alice: "), "{out}");
    // An answer without a name is accepted.
    assert_eq!(ask(&["incidents", "ack", &id]).await.0, 0);
    let (_, out, _) = ask(&["incidents", "show", &id]).await;
    assert!(out.contains("acknowledged by alice after"), "{out}");
    let (status, out, _) = ask(&["incidents", "note", &id, "the switch\nis replaced"]).await;
    assert_eq!((status, out.as_str()), (1, ""), "a note is one line");
    let (status, out, _) = ask(&["incidents", "note", &id, "the switch is replaced", "--by", "alice"]).await;
    assert!(status == 0 && out.ends_with("noted by alice\n"), "{out}");
    let (status, out, _) = ask(&["incidents", "unack", &id, "--by", "alice"]).await;
    assert!(status == 0 && out.contains("given back by alice"), "{out}");
    // Nobody has acknowledged the incident, so nothing changes.
    assert_eq!(ask(&["incidents", "unack", &id, "--by", "alice"]).await.0, 0);
    let (status, out, _) = ask(&["incidents", "escalate", &id, "--by", "bob", "--format", "json"]).await;
    let escalated: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((status, &escalated["state"]), (0, &"open".into()), "{out}");
    let (status, _, _) = ask(&["incidents", "resolve", &id, "--by", "bob"]).await;
    assert_eq!(status, 0);
    // Notes can be added after the incident.
    let (status, out, _) = ask(&["incidents", "note", &id, "a cable was loose", "--by", "alice"]).await;
    assert!(status == 0 && out.ends_with("noted by alice\n"), "{out}");
    for word in ["escalate", "unack"] {
        let (status, _, err) = ask(&["incidents", word, &id, "--by", "bob"]).await;
        assert!(status == 1 && err.contains("was resolved at"), "{word}: {err}");
    }
    let (status, _, err) = ask(&["incidents", "ack", &id, "--by", "bob"]).await;
    assert!(status == 1 && err.contains("was resolved at"), "{err}");
    // The explanation names every delivery, and changes until the last one is done.
    let path = format!("/api/v1/incidents/{id}");
    wait_for("the deliveries", async || {
        let said = app.json(&path).await;
        let done = |d: &serde_json::Value| d["state"] == "delivered" || d["state"] == "superseded";
        said["deliveries"].as_array()?.iter().all(done).then_some(())
    })
    .await;
    let (_, out, _) = ask(&["explain", &id]).await;
    assert!(out.contains("what happened") && out.contains("alice") && out.contains("hook"), "{out}");
    for what in ["the switch is replaced", "asked for the next level"] {
        assert!(out.contains(what), "{what}: {out}");
    }
    // The reason for the call, and why earlier receivers got the update.
    for words in [
        "new incident (first)",
        "every receiver (no routes)",
        "notified of the incident before",
        "delivered after",
    ] {
        assert!(out.contains(words), "{words} in {out}");
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("account.md");
    let write = ["incidents", "postmortem", &id, "--output", file.to_str().unwrap()];
    assert_eq!(ask(&write).await.0, 0);
    let account = std::fs::read_to_string(&file).unwrap();
    assert!(
        account.contains("# Post-mortem: dead rank of llama") && account.contains("## Action items"),
        "{account}"
    );
    let (_, out, _) = ask(&["incidents", "postmortem", &id]).await;
    assert_eq!(out, account, "it is over: it stays as it is");
    let (_, out, _) = ask(&["incidents", "postmortem", &id, "--format", "json"]).await;
    let said: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&said["id"], said["markdown"].as_str()), (&id.clone().into(), Some(account.as_str())));
    assert!(said["impact"]["lasted_seconds"].is_number() && said["deliveries"].is_array(), "{said}");
    let (status, _, err) = ask(&write).await;
    assert!(status == 1 && err.contains("account.md: "), "what was begun is not overwritten: {err}");
    let (status, _, err) = ask(&["explain", "nonsense"]).await;
    assert!(status == 1 && err.contains("there is no incident"), "{err}");

    let (status, _, err) = cli(&["incidents", "list", "--url", "http://127.0.0.1:1"]).await;
    assert!(status == 1 && err.contains("cannot reach the alerter at http://127.0.0.1:1/"), "{err}");
    let (status, _, err) = cli(&["incidents", "list", "--url", "127.0.0.1:1"]).await;
    assert!(status == 1 && err.contains("is not an http:// or https:// URL"), "{err}");
}
