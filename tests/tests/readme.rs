//! The commands of the README work.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use stepwatch_fakes::{PagerDuty, Slack};
use stepwatch_tests::{bins, daemon};

struct Block {
    language: String,
    text: String,
}

fn blocks(markdown: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut open: Option<Block> = None;
    for line in markdown.lines() {
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => found.extend(open.take()),
            (Some(language), None) => {
                open = Some(Block { language: language.trim().to_owned(), text: String::new() });
            }
            (None, Some(block)) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block that never ends");
    found
}

fn text() -> String {
    std::fs::read_to_string(bins::root().join("README.md")).unwrap()
}

/// Commands of the shell blocks (continued lines joined, comments and prompts gone), and those in
/// running text.
fn commands() -> Vec<String> {
    let readme = text();
    let blocks = blocks(&readme);
    let shell = blocks.iter().filter(|b| matches!(b.language.as_str(), "sh" | "bash" | "console" | "shell"));
    let joined: Vec<_> = shell.map(|b| b.text.replace("\\\n", " ")).collect();
    let lines = joined.iter().flat_map(|t| t.lines());
    let lines = lines.map(|l| l.split(" #").next().unwrap_or(l).trim().trim_start_matches("$ "));
    let inline = readme.split('`').skip(1).step_by(2).filter(|c| {
        !c.contains('\n')
            && (c.starts_with("cargo ")
                || c.starts_with("stepwatch-alerter ")
                || c.starts_with("stepwatch-exporter "))
    });
    lines.chain(inline).filter(|l| !l.is_empty() && !l.starts_with('#')).map(str::to_owned).collect()
}

async fn succeeds(program: &Path, args: &[&str]) -> Result<String, String> {
    let out = daemon::command(program).args(args).output().await.map_err(|e| e.to_string())?;
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    if out.status.success() { Ok(text) } else { Err(text) }
}

#[tokio::test]
async fn commands_exist() {
    let aliases = std::fs::read_to_string(bins::root().join(".cargo/config.toml")).unwrap();
    let commands = commands();
    for needed in ["cargo demo", "cargo verify"] {
        assert!(commands.iter().any(|c| c.starts_with(needed)), "the README does not contain `{needed}`");
    }
    for command in &commands {
        let mut words = command.split_whitespace().skip_while(|w| *w == "sudo" || w.contains('='));
        let (program, args) = (words.next().unwrap_or_default(), words.collect::<Vec<_>>());
        match program.rsplit('/').next().unwrap_or(program) {
            "cargo" => {
                let sub = args.first().copied().unwrap_or_default();
                let known = ["build", "install", "test", "run", "bench"].contains(&sub);
                assert!(known || aliases.contains(&format!("{sub} =")), "no such alias: {command}");
            }
            ours @ (bins::EXPORTER | bins::ALERTER) => {
                // The subcommand must exist, and have every option that is written.
                let subcommand: Vec<_> =
                    args.iter().copied().take_while(|a| a.chars().all(|c| c.is_ascii_lowercase())).collect();
                let help = [&subcommand[..subcommand.len().min(2)], &["--help"]].concat();
                let program = bins::path(ours).unwrap();
                let help = match succeeds(&program, &help).await {
                    Ok(help) => help,
                    Err(_) => {
                        succeeds(&program, &[&subcommand[..subcommand.len().min(1)], &["--help"]].concat())
                            .await
                            .unwrap_or_else(|e| panic!("{command}: {e}"))
                    }
                };
                for option in args.iter().filter(|a| a.starts_with("--")) {
                    let name = option.split('=').next().unwrap_or(option);
                    assert!(help.contains(name), "{command}: no option {name} in\n{help}");
                }
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn configurations_are_valid() {
    let dir = tempfile::tempdir().unwrap();
    // What an operator has in /etc: the examples point there.
    for (file, secret) in [("secret", PagerDuty::ROUTING_KEY), ("slack", Slack::TOKEN)] {
        std::fs::write(dir.path().join(file), secret).unwrap();
    }
    let path = |file: &str| dir.path().join(file).display().to_string();
    let mut checked = 0;
    for (i, block) in blocks(&text()).iter().filter(|b| b.language == "yaml").enumerate() {
        let program = if block.text.contains("receivers:") { bins::ALERTER } else { bins::EXPORTER };
        let with_secrets: Vec<_> = block
            .text
            .split_inclusive([' ', ',', '}', '\n'])
            .map(|w| {
                if w.starts_with("/etc/stepwatch/") {
                    let end = w.find([' ', ',', '}', '\n']).unwrap_or(w.len());
                    let secret = if w[..end].contains("slack") { "slack" } else { "secret" };
                    format!("{}{}", path(secret), &w[end..])
                } else {
                    w.to_owned()
                }
            })
            .collect();
        let file = dir.path().join(format!("{i}.yml"));
        std::fs::write(&file, with_secrets.concat()).unwrap();
        let file = file.display().to_string();
        let result = succeeds(&bins::path(program).unwrap(), &["config", "check", &file]).await;
        assert!(result.is_ok(), "{program} config check: {}\n{}", result.unwrap_err(), block.text);
        checked += 1;
    }
    assert!(checked > 0, "the README shows no configuration");
}

#[test]
fn blocks_are_found() {
    let found = blocks("a\n```sh\nx \\\n  y\n```\nb\n```yaml\nk: v\n```\n");
    assert_eq!(found.iter().map(|b| b.language.as_str()).collect::<Vec<_>>(), ["sh", "yaml"]);
    assert_eq!(found[1].text, "k: v\n");
}
