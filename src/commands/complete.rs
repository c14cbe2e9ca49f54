//! Completions and manual pages, all from the one definition of the command line; and what kubectl asks of a plugin.

use std::{
    ffi::OsString,
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Arg, Command, CommandFactory as _};
use clap_complete::Shell;

use super::Cli;

/// The name of this program as a plugin of kubectl.
pub const PLUGIN: &str = "kubectl-pausegen";
/// The name under which kubectl asks a plugin for completions.
pub const PLUGIN_COMPLETE: &str = "kubectl_complete-pausegen";

const COMPLETION_HELP: &str = "\
Examples:
  source <(pausegen completion bash)
  pausegen completion zsh > \"${fpath[1]}/_pausegen\"
  pausegen completion fish > ~/.config/fish/completions/pausegen.fish

For `kubectl pausegen`: two links to this program in the PATH, kubectl-pausegen and kubectl_complete-pausegen.";

/// Prints completions for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = COMPLETION_HELP)]
pub struct CompletionArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Writes manual pages, one for each subcommand.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  pausegen man ~/.local/share/man/man1")]
pub struct ManArgs {
    /// The folder
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

/// Prints completions.
///
/// # Errors
/// They cannot be written.
pub fn completion(args: &CompletionArgs) -> super::Result {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "pausegen", &mut script);
    io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes manual pages.
///
/// # Errors
/// The folder cannot be written.
pub fn man(args: &ManArgs) -> super::Result {
    let ManArgs { folder } = args;
    fs::create_dir_all(folder).map_err(|error| format!("{} cannot be made: {error}", folder.display()))?;
    clap_mangen::generate_to(Cli::command(), folder)
        .map_err(|error| format!("manual pages cannot be written to {}: {error}", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// The name under which the program was called.
fn called(arguments: &[OsString]) -> Option<&str> {
    arguments.first().and_then(|path| Path::new(path).file_stem()?.to_str())
}

/// The command line as it is called: `pausegen`, or `kubectl pausegen`.
#[must_use]
pub fn command(arguments: &[OsString]) -> Command {
    let command = Cli::command();
    if called(arguments) == Some(PLUGIN) {
        command.bin_name("kubectl pausegen")
    } else {
        command
    }
}

/// Where kubectl asks for completions: what is to be answered.
#[must_use]
pub fn asked_by_kubectl(arguments: &[OsString]) -> Option<String> {
    if called(arguments) != Some(PLUGIN_COMPLETE) {
        return None;
    }
    let words: Vec<String> = arguments
        .iter()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    Some(answer(&words))
}

/// What to do about a word when none of these is meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Otherwise {
    Nothing = 4,
    Files = 0,
}

/// The answer in the form that kubectl reads (cobra's `__complete`): a candidate a line, then a directive.
fn answer(words: &[String]) -> String {
    let (candidates, otherwise) = candidates(words);
    let mut out = String::new();
    for (word, about) in candidates {
        out.push_str(&format!("{word}\t{about}\n"));
    }
    out.push_str(&format!(":{}\n", otherwise as u8));
    out
}

fn candidates(words: &[String]) -> (Vec<(String, String)>, Otherwise) {
    let mut root = Cli::command();
    root.build();
    let (last, before) = words
        .split_last()
        .map_or(("", [].as_slice()), |(last, before)| (last.as_str(), before));
    let mut command = &root;
    let mut value_of: Option<&Arg> = None;
    for word in before {
        if value_of.take().is_some() {
            continue;
        }
        if word.starts_with('-') {
            value_of = option(command, word).filter(|arg| !word.contains('=') && arg.get_action().takes_values());
        } else if let Some(sub) = command.find_subcommand(word) {
            command = sub;
        }
    }
    if let Some(arg) = value_of {
        return values(arg, last, "");
    }
    if let Some((flag, value)) = last.split_once('=').filter(|_| last.starts_with("--")) {
        return option(command, flag).map_or((Vec::new(), Otherwise::Nothing), |arg| {
            values(arg, value, &format!("{flag}="))
        });
    }
    if last.starts_with('-') {
        let flags = command.get_arguments().filter(|arg| !arg.is_hide_set());
        let flags = flags.filter_map(|arg| Some((format!("--{}", arg.get_long()?), help(arg.get_help()))));
        return (
            flags.filter(|(flag, _)| flag.starts_with(last)).collect(),
            Otherwise::Nothing,
        );
    }
    let subcommands = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let mut found: Vec<(String, String)> = subcommands
        .map(|sub| (sub.get_name().to_owned(), help(sub.get_about())))
        .filter(|(name, _)| name.starts_with(last))
        .collect();
    let mut otherwise = Otherwise::Nothing;
    for arg in command.get_positionals() {
        let (more, files) = values(arg, last, "");
        found.extend(more);
        if files == Otherwise::Files {
            otherwise = files;
        }
    }
    (found, otherwise)
}

fn option<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let word = word.split('=').next().unwrap_or_default();
    command.get_arguments().find(|arg| {
        arg.get_long().is_some_and(|long| word.strip_prefix("--") == Some(long))
            || arg.get_short().is_some_and(|short| *word == format!("-{short}"))
    })
}

fn values(arg: &Arg, begins: &str, before: &str) -> (Vec<(String, String)>, Otherwise) {
    let possible = arg.get_possible_values();
    let found = possible
        .iter()
        .filter(|value| !value.is_hide_set() && value.get_name().starts_with(begins))
        .map(|value| (format!("{before}{}", value.get_name()), help(value.get_help())))
        .collect();
    let is_path = arg.get_value_names().is_some_and(|names| {
        names
            .iter()
            .any(|name| matches!(name.as_str(), "FILE" | "FILES" | "FOLDER"))
    });
    (found, if is_path { Otherwise::Files } else { Otherwise::Nothing })
}

/// The first line of a help text.
fn help(text: Option<&clap::builder::StyledStr>) -> String {
    text.map(ToString::to_string)
        .unwrap_or_default()
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::CommandFactory as _;

    use super::{Cli, asked_by_kubectl, command};

    fn asked(words: &[&str]) -> Vec<String> {
        let words = ["/usr/bin/kubectl_complete-pausegen"]
            .iter()
            .chain(words)
            .map(OsString::from)
            .collect::<Vec<_>>();
        let answer = asked_by_kubectl(&words).unwrap();
        answer
            .lines()
            .map(|line| line.split('\t').next().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn kubectl_is_answered() {
        let all = asked(&[""]);
        for name in ["audit", "wait", "pause", "resume", "describe", "history"] {
            assert!(all.iter().any(|word| word == name), "{name}: {all:?}");
        }
        assert!(!all.iter().any(|word| word.starts_with("__")), "{all:?}");
        assert_eq!(asked(&["aud"]), ["audit", ":4"]);
        assert_eq!(asked(&["audit", "--unack"]), ["--unacknowledged", ":4"]);
        assert_eq!(asked(&["audit", "-o", "mark"]), ["markdown", ":4"]);
        assert_eq!(asked(&["audit", "--output=mark"]), ["--output=markdown", ":4"]);
        assert_eq!(asked(&["audit", "-f", ""]), [":0"]);
        assert_eq!(asked(&["wait", "--for", "pa"]), ["paused", "paused-self", ":4"]);
        assert_eq!(asked(&["completion", "z"]), ["zsh", ":4"]);
    }

    #[test]
    fn a_plugin_calls_itself_so() {
        let help = |name: &str| {
            let mut command = command(&[OsString::from(name)]);
            command.render_help().to_string()
        };
        assert!(help("/usr/bin/kubectl-pausegen").contains("Usage: kubectl pausegen"));
        assert!(help("pausegen").contains("Usage: pausegen"));
    }

    #[test]
    fn every_subcommand_says_what_its_arguments_are_and_shows_how() {
        let mut root = Cli::command();
        root.build();
        let mut stack = vec![&root];
        while let Some(command) = stack.pop() {
            stack.extend(
                command
                    .get_subcommands()
                    .filter(|sub| !sub.is_hide_set() && sub.get_name() != "help"),
            );
            if !command.has_subcommands() {
                let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(examples.contains("Examples:"), "{} has no examples", command.get_name());
            }
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                assert!(arg.get_help().is_some(), "{} {}", command.get_name(), arg.get_id());
            }
        }
    }
}
