use proptest::prelude::*;
use stepwatch_respond::effect::Action;
use stepwatch_respond::message::Details;

use super::*;
use crate::notify::tests::{gpu_fault, hostile, page};
use crate::notify::{FactTemplate, LinkTemplate};

fn config(yaml: &str) -> TemplatesConfig {
    stepwatch_kit::config::parse("templates.yml", yaml).unwrap()
}

fn receiver(name: &str, own: Option<&str>) -> ReceiverConfig {
    ReceiverConfig { name: name.into(), templates: own.map(config), ..ReceiverConfig::default() }
}

fn build(yaml: &str) -> Result<Templates, Vec<String>> {
    let mut errors = Vec::new();
    let templates = Templates::build(&config(yaml), &[receiver("chat", None)], &mut errors);
    if errors.is_empty() { Ok(templates) } else { Err(errors) }
}

/// The first mistake of a configuration.
fn wrong(yaml: &str) -> String {
    build(yaml).expect_err("a mistake").remove(0)
}

fn title(template: &str) -> TemplatesConfig {
    TemplatesConfig { title: Some(template.into()), ..TemplatesConfig::default() }
}

#[test]
fn everything_that_can_be_said() {
    let templates = build(
        r#"
title: "{{ incident.severity|upper }} {{ run.name }}: {{ incident.name }} [{{ reason.code }}]"
summary: |
  {{ summary }}
  {% for s in suspects -%}
  {{ loop.index }}. {{ s.what }} ({{ s.why }})
  {% endfor -%}
  Burning {{ cost.per_hour|dollars }}/h, rolled back {{ checkpoint.age_seconds|duration }}.
  {{ advice }}
facts:
- {label: Owner, text: "{{ labels.owner or 'nobody' }}"}
- {label: Left out, text: "{{ labels.absent }}"}
links:
- {text: Dashboard, href: "https://grafana.example.com/d/run?var-run={{ run.name|urlencode }}&from={{ incident.started_at|urlencode }}"}
- {text: Left out, href: "{% if labels.owner %}{% endif %}"}
"#,
    )
    .unwrap();
    let mut n = page("chat", 1, Action::Trigger);
    n.message.labels.insert("owner".into(), "alice".into());
    assert_eq!(templates.dress(&mut n), []);
    let m = &n.message;
    assert_eq!(m.title, "PAGE test-run: gradient spike [first]");
    let facts = m.facts[5..].iter().map(|f| format!("{}: {}", f.label, f.text)).collect::<Vec<_>>();
    let links = m.links[2..].iter().map(|l| format!("{} {}", l.text, l.href)).collect::<Vec<_>>();
    insta::assert_snapshot!(format!("{}\n\n{}\n\n{}", m.summary, facts.join("\n"), links.join("\n")));
}

#[test]
fn what_is_not_known_is_empty_and_no_mistake() {
    let templates =
        build("summary: 'saved {{ checkpoint.age_seconds|duration }}|{{ checkpoint.step }}|{{ cost.per_hour|dollars }}|{{ evidence.value|number }}|{{ advice }}|{{ incident.acknowledged_by }}|'")
            .unwrap();
    let mut n = page("chat", 1, Action::Trigger);
    n.message.details = Details::default();
    assert_eq!(templates.dress(&mut n), []);
    assert_eq!(n.message.summary, "saved ||||||");
}

#[test]
fn a_receiver_speaks_in_its_own_words_where_it_has_any() {
    let receivers = [
        receiver("chat", None),
        receiver("pager", Some("title: 'short: {{ incident.place }}'\nlinks: []\n")),
    ];
    let common =
        config("title: '{{ title }}!'\nsummary: ours\nlinks: [{text: W, href: 'https://w.example.com'}]\n");
    let templates = Templates::build(&common, &receivers, &mut Vec::new());
    let dressed = |receiver: &str| {
        let mut n = page(receiver, 1, Action::Trigger);
        templates.dress(&mut n);
        (n.message.title, n.message.summary, n.message.links.len())
    };
    assert_eq!(dressed("chat"), ("PAGE llama-70b: gradient spike at step 31215!".into(), "ours".into(), 3));
    assert_eq!(dressed("pager"), ("short: llama-70b".into(), "ours".into(), 2));
    let untouched = page("other", 1, Action::Trigger);
    assert_eq!(dressed("other").0, untouched.message.title);
}

#[test]
fn mistakes_are_found_before_anything_runs() {
    let long = format!("title: '{}'", "x".repeat(SOURCE_MAX + 1));
    insta::assert_snapshot!(
        [
            "title: '{{ title'",
            "summary: |\n  first line\n  {% if summary %}\n  no end\n",
            "title: '{{ titel }}'",
            "title: '{{ incident.naem }}'",
            "title: '{{ title|shout }}'",
            "title: '{{ reason.text.upper() }}'",
            "facts: [{label: A, text: '{{ 1 + title }}'}]",
            "title: '{% for i in range(100000) %}{{ i }}{% endfor %}'",
            "summary: \"{{ 'x' * 20000 }}\"",
            "title: '{% include \"/etc/passwd\" %}'",
            "title: '{% set ns = namespace(a=1) %}{{ ns.a }}'",
            &long,
        ]
        .map(wrong)
        .join("\n")
    );
    let many = format!("facts: [{}]", ["{label: a, text: b}"; 11].join(","));
    assert_eq!(wrong(&many), "templates.facts: has 11 entries, more than 10");
}

#[test]
fn one_that_fails_later_costs_its_message_only_its_own_words() {
    // This works only for the sample, in which every incident has a suspect.
    let yaml = "title: '{{ title }} - {{ suspects[0].what ~ (1 // suspects|length) }}'\nsummary: 'fine {{ title }}'\n";
    let templates = build(yaml).unwrap();
    let mut n = page("chat", 1, Action::Trigger);
    n.message.details.suspects.clear();
    let before = n.message.clone();
    let failed = templates.dress(&mut n);
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].template, "templates.title");
    assert_eq!(n.message.title, before.title);
    assert_eq!(n.message.summary, format!("fine {}", before.title));
}

#[test]
fn nothing_is_no_title_and_a_link_leads_to_the_web() {
    let templates = build(
        "title: '{% if run.gpus > 100000 %}big{% endif %}'\nlinks: [{text: x, href: 'javascript:{{ run.name }}'}]\n",
    );
    let mut n = page("chat", 1, Action::Trigger);
    let before = n.message.clone();
    let failed = templates.unwrap().dress(&mut n);
    assert_eq!((&n.message.title, &n.message.links), (&before.title, &before.links));
    let failed: Vec<_> = failed.iter().map(|f| format!("{}: {}", f.template, f.error)).collect();
    assert_eq!(
        failed,
        ["templates.title: it wrote nothing", "templates.links[0].href: it wrote no http(s) address"]
    );
}

#[test]
fn every_name_is_described() {
    fn walk(path: &str, value: &serde_json::Value, out: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(map) if path != "labels" => {
                for (key, value) in map {
                    walk(&if path.is_empty() { key.clone() } else { format!("{path}.{key}") }, value, out);
                }
            }
            serde_json::Value::Array(list) if list.first().is_some_and(serde_json::Value::is_object) => {
                walk(&format!("{path}[]"), &list[0], out);
            }
            _ => out.push(path.to_owned()),
        }
    }
    let sample = test_notification("chat", "01J9ZC", Ts(0));
    let value = serde_json::to_value(context::for_notification(&sample)).unwrap();
    let mut names = Vec::new();
    walk("", &value, &mut names);
    let docs = include_str!("../../../docs/incidents.md");
    let missing: Vec<_> = names.iter().filter(|name| !docs.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "not in docs/incidents.md: {missing:?}");
}

/// A valid or invalid piece of a template.
fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        "\\PC{0,20}",
        Just("{{ title }}".to_owned()),
        Just("{{ labels.owner|upper|replace('a', title) }}".to_owned()),
        Just("{% for s in suspects %}{{ s.why ~ title }}".to_owned()),
        Just("{% endfor %}".to_owned()),
        Just("{% for i in range(9999) %}{{ summary }}{% endfor %}".to_owned()),
        Just("{% if cost %}".to_owned()),
        Just("{% endif %}".to_owned()),
        Just("{{ facts[7].text[3:]|trim|truncate(5) }}".to_owned()),
        Just("{{ checkpoint.age_seconds|duration }}".to_owned()),
        Just("{% set x = title * 9 %}{{ x }}".to_owned()),
        Just("{{ links|tojson }}".to_owned()),
        "\\{\\{ (title|run|cost|suspects|evidence.value)( [-+*/~%] |\\|)(length|first|last|join|sum|round|1e308|title) \\}\\}",
        "[{}%#|\"' .a-z0-9\n()-]{0,24}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_template_and_any_label_end_in_a_bounded_message(
        pieces in proptest::collection::vec(piece(), 0..6),
        label in "\\PC{0,40}|[\\x00-\\x1f<>&{}%\u{202e}]{0,20}",
        big in 0usize..4000,
    ) {
        let text = pieces.concat();
        let mut errors = Vec::new();
        let config = TemplatesConfig {
            summary: Some(text.clone()),
            facts: Some(vec![FactTemplate { label: label.clone(), text: text.clone() }]),
            links: Some(vec![LinkTemplate { text: label.clone(), href: text.clone() }]),
            ..title(&text)
        };
        // Mistakes are rendered too, because a check may miss them.
        let templates = Templates::build(&config, &[receiver("chat", None)], &mut errors);
        for mut n in [page("chat", 1, Action::Trigger), hostile(page("chat", 2, Action::Resolve)), gpu_fault(false)] {
            n.receiver = "chat".into();
            n.message.labels.insert("owner".into(), label.repeat(1 + big / 40));
            n.message.summary = label.repeat(big / 10);
            let facts = n.message.facts.len();
            templates.dress(&mut n);
            let m = &n.message;
            prop_assert!((1..=TITLE_MAX.max(300)).contains(&m.title.chars().count()));
            prop_assert!(m.summary.chars().count() <= SUMMARY_MAX.max(40 * (big / 10)));
            for fact in &m.facts[facts..] {
                prop_assert!((1..=TEXT_MAX).contains(&fact.text.chars().count()));
                prop_assert!(fact.label.chars().count() <= LABEL_MAX);
            }
        }
    }
}
