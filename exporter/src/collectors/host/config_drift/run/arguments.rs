//! The arguments of a command line, and the files that it names.

use std::collections::BTreeMap;
use std::path::Path;

use stepwatch_wire::names::setting::SET;
use stepwatch_wire::secrets::{Shown, is_secret_name, shown as shown_of};
use stepwatch_wire::setting::{ARGUMENT, Topic, topic};

use super::super::value::hash;

/// Options whose value is a configuration file.
const OPTIONS: &[&str] = &[
    "--config",
    "--config-file",
    "--config_file",
    "--cfg",
    "--conf",
    "--yaml",
    "--job.config_file",
    "--job.config-file",
    "--deepspeed",
    "--deepspeed_config",
    "--ds-config",
    "--ds_config",
    "--model-config",
    "--model_config",
    "--training-config",
];
/// Options by which Hydra is told the name and the folder of its configuration, and the usual names
/// of the folder.
const HYDRA_NAMES: &[&str] = &["--config-name", "-cn"];
const HYDRA_FOLDERS: &[&str] = &["--config-path", "--config-dir", "-cp", "-cd"];
const HYDRA_USUAL: &[&str] = &["conf", "config", "configs"];
/// Its short options, and what they stand for: a word after one dash may be a letter and a secret.
const HYDRA_SHORT: &[(&str, &str)] =
    &[("-cn", "--config-name"), ("-cp", "--config-path"), ("-cd", "--config-dir")];
/// Extensions of configuration files, anywhere on the command line.
const ENDINGS: &[&str] = &["yaml", "yml", "toml", "json", "gin", "ini", "cfg"];

/// The most arguments that are read.
const MAX_ARGUMENTS: usize = 4096;
/// The most arguments that are published, of some 160 bytes at most; those of which most is known
/// come first. Megatron is started with some 90.
pub(super) const MAX_SHOWN: usize = 128;
/// The most characters of an argument without a name that is published.
const MAX_WORD: usize = 24;
/// The most characters of the name of an argument. Those of verl have up to 70.
const MAX_NAME: usize = 96;
/// The value of an option without one.
const GIVEN: &str = "given";
pub(super) const MAX_FILES: usize = 8;

/// The words of a command line.
fn words(cmdline: &[u8]) -> Vec<&str> {
    cmdline.split(|b| *b == 0).take(MAX_ARGUMENTS).filter_map(|a| core::str::from_utf8(a).ok()).collect()
}

/// The arguments that follow the script.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Arguments {
    /// By name; those without one by their number.
    pub(super) shown: BTreeMap<String, String>,
    /// The numbers of those that may be secrets, and of those over the limit.
    pub(super) secret: usize,
    pub(super) over: usize,
}

impl Arguments {
    /// What only says where the run lives is left out: nodes and runs would differ by it without a
    /// reason. So are files of configuration, whose contents are compared. Of an argument that is
    /// given twice, the last value counts, as it does for the parsers of trainers.
    pub(super) fn of(cmdline: &[u8]) -> Self {
        let words = words(cmdline);
        let Some(from) = first_argument(&words) else { return Self::default() };
        let rest = words.get(from..).unwrap_or_default();
        let (mut found, mut secret): (Vec<(String, String)>, usize) = (Vec::new(), 0);
        let (mut at, mut unnamed) = (0, 0);
        while let Some(word) = rest.get(at).copied().map(long) {
            at += 1;
            let is_option_word = is_option(word);
            if !is_option_word && !word.contains('=') {
                unnamed += 1;
                found.extend(unnamed_word(word).map(|shown| (unnamed.to_string(), shown)));
                continue;
            }
            let following = rest.get(at..).unwrap_or_default();
            let count = following.iter().take_while(|next| !is_option(next)).count();
            let following = following.get(..count).unwrap_or_default();
            let (name, value, taken) = match word.split_once('=') {
                Some((name, value)) => (name, value.to_owned(), 0),
                None => valued(word, following),
            };
            let shown = shown_argument(name, &value);
            let is_secret = shown == Shown::Nothing || is_secret_name(bare(name));
            secret += usize::from(is_secret);
            // Words after an option that may be a secret may be parts of it.
            at += if is_secret && is_option_word { count } else { taken };
            // A word in base64 may end so.
            let is_padded = !is_option_word && value.bytes().all(|b| b == b'=');
            if is_secret || is_padded || is_elsewhere(name, &value) || !is_name(bare(name)) {
                continue;
            }
            let value = match shown {
                Shown::Value => value.trim().to_owned(),
                Shown::Hash => hash(value.as_bytes()),
                Shown::Name | Shown::Nothing => SET.to_owned(),
            };
            match found.iter_mut().find(|had| had.0 == bare(name)) {
                Some(had) => had.1 = value,
                None => found.push((bare(name).to_owned(), value)),
            }
        }
        // What is told by its name, first; of equals, those that come first.
        found.sort_by_key(|(name, _)| topic(&format!("{ARGUMENT}{name}")));
        let over = found.len().saturating_sub(MAX_SHOWN);
        found.truncate(MAX_SHOWN);
        Self { shown: found.into_iter().collect(), secret, over }
    }
}

/// The place of the first word after the script or the module.
fn first_argument(words: &[&str]) -> Option<usize> {
    let script = words.iter().position(|word| ending(word) == Some("py"));
    let module = words.iter().position(|word| *word == "-m").map(|at| at + 1);
    entry_point(words).or_else(|| script.into_iter().chain(module).min()).map(|at| at + 1)
}

/// The place of the script that a Python was started with, which may lack the ending of one:
/// `python /opt/venv/bin/tune run`.
fn entry_point(words: &[&str]) -> Option<usize> {
    let program = Path::new(words.first()?).file_name()?.to_str()?;
    if !program.starts_with("python") {
        return None;
    }
    let mut at = 1;
    loop {
        match *words.get(at)? {
            "-c" => return None,
            "-m" => return Some(at + 1),
            "-W" | "-X" => at += 2,
            word if word.starts_with('-') => at += 1,
            _ => return Some(at),
        }
    }
}

/// An option, its values of the words that follow, and how many these are: one, and of data and
/// sizes all numbers and paths.
fn valued<'a>(option: &'a str, following: &[&str]) -> (&'a str, String, usize) {
    let is_list = matches!(topic(&format!("{ARGUMENT}{}", bare(option))), Topic::Work | Topic::Recipe);
    let more = following.iter().skip(1).take_while(|word| is_list && is_item(word)).count();
    let taken = following.len().min(1 + more);
    let value = following.get(..taken).unwrap_or_default().join(" ");
    (option, if taken == 0 { GIVEN.to_owned() } else { value }, taken)
}

fn is_item(word: &str) -> bool {
    !word.contains('=') && !is_file(word) && (word.contains('/') || word.parse::<f64>().is_ok())
}

/// Whether an argument says where the run lives, or names a file whose contents are compared.
fn is_elsewhere(name: &str, value: &str) -> bool {
    topic(&format!("{ARGUMENT}{}", bare(name))) == Topic::Place || (OPTIONS.contains(&name) && is_file(value))
}

/// Whether a word names a script or a file of configuration.
fn is_file(word: &str) -> bool {
    ending(word).is_some_and(|e| e == "py" || ENDINGS.contains(&e))
}

fn long(word: &str) -> &str {
    HYDRA_SHORT.iter().find(|(short, _)| *short == word).map_or(word, |(_, name)| *name)
}

/// The name of an option without dashes and the marks of Hydra.
fn bare(name: &str) -> &str {
    name.trim_start_matches(['-', '+', '~'])
}

fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(plain)
}

/// How much is shown of an argument. After one dash, the word may be a letter and its value.
fn shown_argument(name: &str, value: &str) -> Shown {
    let key = format!("{ARGUMENT}{}", bare(name));
    let is_short = name.starts_with('-') && !name.starts_with("--");
    if is_short && bare(name).len() > 1 && topic(&key) == Topic::Other {
        return Shown::Nothing;
    }
    shown_of(&key, value)
}

/// What is shown of an argument without a name: the name of a file, and a word of letters, such as
/// `pretrain`.
fn unnamed_word(word: &str) -> Option<String> {
    let is_file = is_file(word);
    let name = if is_file { Path::new(word).file_name()?.to_str()? } else { word };
    let is_word = name.len() <= MAX_WORD && name.bytes().all(|b| b.is_ascii_alphabetic());
    let is_plain = !name.is_empty() && (is_word || is_file);
    (is_plain && shown_of(&format!("{ARGUMENT}model"), name) == Shown::Value).then(|| name.to_owned())
}

/// Whether a word is the name of an option, and not a negative number.
fn is_option(word: &str) -> bool {
    word.strip_prefix('-').is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit() || c == '.'))
}

/// Arguments that name a script or a configuration file, in order and without repetition.
pub(super) fn files(cmdline: &[u8]) -> Vec<String> {
    let arguments = words(cmdline);
    let mut found: Vec<String> = Vec::new();
    for (i, argument) in arguments.iter().enumerate().skip(1) {
        let after_option = OPTIONS.contains(&arguments[i - 1]) && !argument.starts_with('-');
        let (option, value) = argument.split_once('=').unwrap_or(("", argument));
        // nanoGPT is configured by further scripts.
        let is_script = ending(argument) == Some("py") && !argument.starts_with('-');
        let is_file = ending(value).is_some_and(|e| ENDINGS.contains(&e)) || OPTIONS.contains(&option);
        if (is_script || is_file || after_option) && !value.is_empty() && found.iter().all(|f| f != value) {
            found.push(value.to_owned());
        }
    }
    // The file of Hydra's configuration, wherever it exists.
    if let Some(name) = value_of(&arguments, HYDRA_NAMES) {
        let name = name.strip_suffix(".yaml").unwrap_or(name);
        let folder = value_of(&arguments, HYDRA_FOLDERS);
        let folders = folder.into_iter().chain(HYDRA_USUAL.iter().copied());
        found.extend(folders.map(|folder| format!("{folder}/{name}.yaml")));
    }
    found.truncate(MAX_FILES);
    found
}

/// The value of the first of these options on a command line.
fn value_of<'a>(arguments: &[&'a str], options: &[&str]) -> Option<&'a str> {
    arguments.iter().enumerate().find_map(|(at, word)| match word.split_once('=') {
        Some((option, value)) => options.contains(&option).then_some(value),
        None if options.contains(word) => arguments.get(at + 1).copied(),
        None => None,
    })
}

fn ending(argument: &str) -> Option<&str> {
    Path::new(argument).extension()?.to_str()
}

#[cfg(test)]
mod tests;
