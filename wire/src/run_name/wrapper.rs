//! `stepwatch run [options] -- COMMAND` belongs to the run that its command would name itself.

use super::process::{NAME, NAMED_BY, Process};
use super::script;

/// Options of `stepwatch run` without a value.
const FLAGS: &[&str] = &["--no-output", "--no-kubeflow", "--no-env"];
/// Options of launchers with a value that all nodes share, and the variable in which the ranks will
/// find it.
const COMMON: &[(&str, &str)] = &[
    ("--rdzv-id", "TORCHELASTIC_RUN_ID"),
    ("--master-addr", "MASTER_ADDR"),
    ("--main-process-ip", "MASTER_ADDR"),
    ("--master-port", "MASTER_PORT"),
    ("--main-process-port", "MASTER_PORT"),
    ("--nnodes", "WORLD_SIZE"),
    ("--num-machines", "WORLD_SIZE"),
];
/// The paths of launchers that are Python files.
const LAUNCHERS: &[&str] =
    &["distributed/run.py", "distributed/launch.py", "commands/launch.py", "launcher/launch.py"];
/// The option for the rendezvous endpoint of torchrun's agents.
const ENDPOINT: &str = "--rdzv-endpoint";
/// The port of an endpoint without one.
const DEFAULT_PORT: &str = "29400";

/// Whether a command line is `stepwatch run`.
pub fn is_wrapper(argv: &[String]) -> bool {
    split(argv).is_some()
}

/// The command that `stepwatch run` runs, if this is its command line.
pub(super) fn command(argv: &[String]) -> Option<&[String]> {
    split(argv).map(|(_, command)| command)
}

/// The process as if it were the command, with the run and job of the options.
pub(super) fn unwrapped(process: &Process) -> Option<Process> {
    let (options, command) = split(&process.argv)?;
    let mut env = process.env.clone();
    told(command, |variable, value| drop(env.insert(variable.to_owned(), value.to_owned())));
    for (option, value) in pairs(options) {
        match option.as_str() {
            "--job" => drop(env.insert("STEPWATCH_JOB_ID".to_owned(), value.to_owned())),
            "--run" => {
                env.insert(NAME.to_owned(), value.to_owned());
                env.remove(NAMED_BY);
            }
            _ => {}
        }
    }
    Some(Process { env, argv: command.to_vec(), ..process.clone() })
}

/// The rendezvous port of a launcher's agents, from its command line. It stays when they restart
/// their ranks, which then meet at another port.
pub(super) fn port(argv: &[String]) -> Option<String> {
    let mut port = None;
    told(argv, |variable, value| {
        if variable == "MASTER_PORT" {
            port = Some(value.to_owned());
        }
    });
    port
}

pub(super) fn port_of(endpoint: &str) -> &str {
    endpoint.rsplit_once(':').map_or(DEFAULT_PORT, |(_, port)| port)
}

/// Passes the variables that a launcher's options set for its ranks to `put`.
fn told(command: &[String], mut put: impl FnMut(&str, &str)) {
    let words = command.iter().position(|word| word.strip_suffix(".py").is_some() && !is_launcher(word));
    // The options that follow belong to the script.
    for (option, value) in pairs(&command[..words.unwrap_or(command.len())]) {
        if let Some((_, variable)) = COMMON.iter().find(|(of, _)| *of == option) {
            put(variable, value);
        } else if option == ENDPOINT {
            put("MASTER_ADDR", value.rsplit_once(':').map_or(value, |(host, _)| host));
            put("MASTER_PORT", port_of(value));
        }
    }
}

/// Whether the word is the path of a launcher.
fn is_launcher(word: &str) -> bool {
    LAUNCHERS.iter().any(|file| word.ends_with(file))
}

/// Every option with the word after it, which need not be its value.
fn pairs(words: &[String]) -> impl Iterator<Item = (String, &str)> {
    words.iter().enumerate().filter(|(_, word)| word.starts_with("--")).map(|(at, word)| {
        let (option, value) =
            word.split_once('=').unwrap_or_else(|| (word, words.get(at + 1).map_or("", String::as_str)));
        (option.replace('_', "-"), value)
    })
}

/// Splits `stepwatch run`, started as a program or as a module, into its options and command.
fn split(argv: &[String]) -> Option<(&[String], &[String])> {
    let first = usize::from(script::is_python(argv));
    let at = first + argv.get(first..)?.iter().position(|word| !word.starts_with('-'))?;
    let module = at > 0 && argv[at - 1].starts_with('-') && argv[at - 1] != "-m";
    if module || script::stem(&argv[at]).as_deref() != Some("stepwatch") {
        return None;
    }
    let (run, words) = argv.get(at + 1..)?.split_first()?;
    if run != "run" {
        return None;
    }
    let mut end = 0;
    while let Some(word) = words.get(end).filter(|word| word.starts_with('-') && *word != "--") {
        end += if word.contains('=') || FLAGS.contains(&word.as_str()) { 1 } else { 2 };
    }
    let command = words.get(end..)?;
    let command = command.strip_prefix(&["--".to_owned()][..]).unwrap_or(command);
    (!command.is_empty()).then(|| (&words[..end], command))
}
