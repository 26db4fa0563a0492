//! The help of the commands.

use super::*;

#[test]
fn help() {
    let mut command = Cli::command();
    let main = command.render_help().to_string();
    let ack = command
        .find_subcommand_mut("incidents")
        .and_then(|c| c.find_subcommand_mut("ack"))
        .map(|c| c.render_help().to_string());
    assert_snapshot!(format!("{main}\n{}", ack.unwrap()));
}

/// The words of a command up to a pipe, split as by a shell.
fn words(line: &str) -> Vec<&str> {
    let parts = line.split(" | ").next().unwrap_or_default().split('\'').enumerate();
    parts.flat_map(|(i, p)| if i % 2 == 1 { vec![p] } else { p.split_whitespace().collect() }).collect()
}

#[test]
fn the_examples_are_commands() {
    fn examples(command: &clap::Command, found: &mut Vec<String>) {
        let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        found.extend(text.lines().filter(|l| l.starts_with("  stepwatch-")).map(str::to_owned));
        command.get_subcommands().for_each(|sub| examples(sub, found));
    }
    let mut found = Vec::new();
    examples(&Cli::command(), &mut found);
    assert!(found.len() > 20, "{found:?}");
    for line in found {
        // The shell handles redirections.
        let words = words(&line).into_iter().take_while(|word| *word != ">");
        let parsed = Cli::try_parse_from(words);
        assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
    }
}

#[test]
fn whatever_answers_a_person_answers_a_program_too() {
    fn leaves(command: &clap::Command, path: &str, deaf: &mut Vec<String>) {
        for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
            leaves(sub, format!("{path} {}", sub.get_name()).trim(), deaf);
        }
        let format = command.get_arguments().find(|arg| arg.get_id() == "format");
        let json = format.is_some_and(|arg| arg.get_possible_values().iter().any(|v| v.get_name() == "json"));
        if !command.has_subcommands() && !json {
            deaf.push(path.to_owned());
        }
    }
    let mut deaf = Vec::new();
    leaves(&Cli::command(), "", &mut deaf);
    // The first prints no answer, the second only JSON, and the others text for a shell.
    assert_eq!(deaf, ["run", "openapi", "completions", "man"]);
}
