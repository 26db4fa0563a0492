//! `store`: works on the database of an alerter that does not run.

use std::io::Write;
use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};
use serde::Serialize;

use super::error::CliError;
use super::format::{Format, json};
use super::table::{self, Table};
use crate::config::PostgresConfig;
use crate::errors::chain;
use crate::store::{CopiedTable, PostgresPlan, copy_to_postgres};

#[derive(Debug, Subcommand)]
pub(super) enum StoreCommand {
    /// Copy everything from a file of SQLite into an empty database of PostgreSQL
    ///
    /// The alerter must not run. The copy is one transaction: if it is interrupted, the database
    /// stays empty. The file keeps its contents, and gets the schema of this version.
    Migrate(MigrateArgs),
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("target").required(true).args(["to", "to_url_file"]), after_help = "\
Examples:
  stepwatch-alerter store migrate --from sqlite:/var/lib/stepwatch/alerter.db --to-url-file pg.url")]
pub(super) struct MigrateArgs {
    /// The file
    #[arg(long, value_name = "sqlite:FILE", value_parser = sqlite_file)]
    from: PathBuf,
    /// The database, without a password
    #[arg(long, value_name = "postgres://USER@HOST/DATABASE")]
    to: Option<String>,
    /// A file with the URL of the database, which may have a password
    #[arg(long, value_name = "FILE")]
    to_url_file: Option<PathBuf>,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Debug, Serialize)]
struct Migrated<'a> {
    tables: Vec<MigratedTable<'a>>,
}

#[derive(Debug, Serialize)]
struct MigratedTable<'a> {
    table: &'a str,
    rows: i64,
}

pub(super) async fn run(command: StoreCommand, out: &mut dyn Write) -> Result<(), CliError> {
    let StoreCommand::Migrate(args) = command;
    let plan = args.plan()?;
    let copied = copy_to_postgres(&args.from, &plan).await;
    let copied = copied.map_err(|err| CliError::Other(chain(&err)))?;
    match args.format {
        Format::Json => json(out, &Migrated::of(&copied)),
        Format::Table => Ok(report(&args, &copied, out)?),
    }
}

fn report(args: &MigrateArgs, copied: &[CopiedTable], out: &mut dyn Write) -> std::io::Result<()> {
    let mut rows = Table::new(&["TABLE", "ROWS"]);
    for CopiedTable { name, rows: count } in copied {
        rows.row([name.as_str(), &count.to_string()]);
    }
    rows.write(out)?;
    let from = args.from.display().to_string();
    writeln!(
        out,
        "\nAll rows are in PostgreSQL. Give every replica storage.postgres, and start none on {} any more.",
        table::plain(&from)
    )
}

impl MigrateArgs {
    fn plan(&self) -> Result<PostgresPlan, CliError> {
        // `postgres:URL` is written like `sqlite:FILE`.
        let url = self.to.as_ref().map(|url| match url.strip_prefix("postgres:") {
            Some(inner) if inner.starts_with("postgres") => inner.to_owned(),
            _ => url.clone(),
        });
        let postgres =
            PostgresConfig { url, url_file: self.to_url_file.clone(), ..PostgresConfig::default() };
        postgres.build().map_err(|mistake| match mistake.key.as_deref() {
            Some("url") if self.to.is_some() && mistake.text.contains("url_file") => {
                CliError::Other("--to has a password in it, which others can read: use --to-url-file".into())
            }
            _ => CliError::Other(mistake.to_string()),
        })
    }
}

impl<'a> Migrated<'a> {
    fn of(copied: &'a [CopiedTable]) -> Self {
        let table = |table: &'a CopiedTable| MigratedTable { table: &table.name, rows: table.rows };
        Self { tables: copied.iter().map(table).collect() }
    }
}

fn sqlite_file(text: &str) -> Result<PathBuf, String> {
    match text.strip_prefix("sqlite:").map(|path| path.strip_prefix("//").unwrap_or(path)) {
        Some(path) if !path.is_empty() => Ok(PathBuf::from(path)),
        _ => {
            Err("must be sqlite: and the path of the file, such as sqlite:/var/lib/stepwatch/alerter.db"
                .into())
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(subcommand)]
        command: StoreCommand,
    }

    fn parsed(words: &str) -> Result<MigrateArgs, String> {
        let line = Line::try_parse_from(["store", "migrate"].into_iter().chain(words.split_whitespace()));
        let StoreCommand::Migrate(args) = line.map_err(|err| err.to_string())?.command;
        Ok(args)
    }

    fn url(words: &str) -> Result<String, String> {
        let plan = parsed(words)?.plan().map_err(|err| err.to_string())?;
        Ok(plan.url.expose().to_owned())
    }

    #[test]
    fn a_file_and_one_database_are_needed() {
        let args = parsed("--from sqlite:/a/b.db --to postgres://h/d").unwrap();
        assert_eq!(args.from, PathBuf::from("/a/b.db"));
        assert_eq!(parsed("--from sqlite:///a/b.db --to postgres://h/d").unwrap().from, args.from);
        assert_eq!(parsed("--from sqlite:b.db --to postgres://h/d").unwrap().from, PathBuf::from("b.db"));
        for wrong in [
            "--from /a/b.db --to postgres://h/d",
            "--from sqlite: --to postgres://h/d",
            "--from sqlite:b.db",
            "--to postgres://h/d",
            "--from sqlite:b.db --to postgres://h/d --to-url-file f",
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_database_is_a_url_without_a_password_or_a_file_with_one() {
        let from = "--from sqlite:b.db";
        assert_eq!(url(&format!("{from} --to postgres://me@h/d")).unwrap(), "postgres://me@h/d");
        assert_eq!(url(&format!("{from} --to postgres:postgres://me@h/d")).unwrap(), "postgres://me@h/d");
        assert!(url(&format!("{from} --to mysql://h/d")).unwrap_err().contains("postgres://"));
        for with in ["postgres://me:secret@h/d", "postgres://me@h/d?password=secret"] {
            let err = url(&format!("{from} --to {with}")).unwrap_err();
            assert!(err.contains("--to-url-file") && !err.contains("secret"), "{err}");
        }
        let err = url(&format!("{from} --to postgres://me@h/d?sslpassword=canary")).unwrap_err();
        assert!(err.contains("sslpassword") && !err.contains("canary"), "{err}");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("url");
        std::fs::write(&file, "postgres://me:secret@h/d\n").unwrap();
        let found = url(&format!("{from} --to-url-file {}", file.display())).unwrap();
        assert_eq!(found.trim(), "postgres://me:secret@h/d");
    }
}
