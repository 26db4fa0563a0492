//! Incidents as they open and resolve: a live table on a terminal, else one line per change.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anstyle::Style;
use clap::Args;
use stepwatch_model::time::Ts;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use super::client::{Client, ClientArgs, ClientError, EventReader};
use super::error::CliError;
use super::format::Format;
use super::incidents::{Which, table};
use super::screen::{self, Key, Screen};
use super::table::{FAINT, HEADING, WARNING, of_severity, plain};
use crate::api::events::{ChangeWord, IncidentEvent};
use crate::api::view::{IncidentList, IncidentView};
use crate::clock::wall;

/// The wait between two attempts to reach the alerter.
const RETRY: Duration = Duration::from_secs(2);
/// The redraw interval, so that ages advance.
const REDRAW: Duration = Duration::from_secs(1);
/// The most news that wait to be shown.
const QUEUE: usize = 256;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stepwatch-alerter incidents watch
  stepwatch-alerter incidents watch --severity page --run llama-70b
  stepwatch-alerter incidents watch --format json | jq -r .incident.summary")]
pub(super) struct WatchArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    which: Which,
    /// json: one object a line for each change, after one for each incident that is unresolved now
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

/// News from the connection to the alerter.
#[derive(Debug)]
enum News {
    Change(Box<IncidentEvent>),
    /// Changes may have been missed: read everything again.
    Reset,
    /// The alerter cannot be reached; the client retries.
    Lost(ClientError),
}

pub(super) async fn run(args: WatchArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let client = Arc::new(args.client.client()?);
    // A wrong address or token ends the command here; later failures are retried. Changes while the
    // list is read are in the events.
    let events = client.events(None).await?;
    let first = args.read(&client).await?;
    let (sender, news) = mpsc::channel(QUEUE);
    let follower = tokio::spawn(follow(Arc::clone(&client), events, sender));
    let done = if args.format == Format::Table && screen::is_terminal() {
        live(&args, &client, first, news).await
    } else {
        lines(&args, &client, first, news, out).await
    };
    follower.abort();
    done
}

impl WatchArgs {
    async fn read(&self, client: &Client) -> Result<IncidentList, ClientError> {
        let mut query = vec![("state", "unresolved")];
        query.extend(self.which.query());
        client.get(&["incidents"], &query).await
    }

    fn wants(&self, incident: &IncidentView) -> bool {
        let node = |wanted: &String| incident.nodes.contains(wanted);
        self.which.run.as_ref().is_none_or(|run| *run == incident.run)
            && self.which.node.as_ref().is_none_or(node)
            && self.which.severity.as_ref().is_none_or(|severity| severity == incident.severity.as_str())
    }
}

/// Reads the events of the alerter, also across its restarts, until the receiver is closed.
async fn follow(client: Arc<Client>, first: EventReader, news: mpsc::Sender<News>) {
    let (mut last, mut events) = (None, Ok(first));
    while !news.is_closed() {
        let ended = match events {
            Ok(events) => read(events, &mut last, &news).await,
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            if news.send(News::Lost(error)).await.is_err() {
                return;
            }
            tokio::time::sleep(RETRY).await;
        }
        events = client.events(last.as_deref()).await;
        // Without an id, missed events are unknown.
        if events.is_ok() && last.is_none() && news.send(News::Reset).await.is_err() {
            return;
        }
    }
}

/// Passes on the events until the connection ends.
async fn read(
    mut events: EventReader,
    last: &mut Option<String>,
    news: &mpsc::Sender<News>,
) -> Result<(), ClientError> {
    while let Some(event) = events.next().await? {
        if !event.id.is_empty() {
            *last = Some(event.id);
        }
        let item = match event.name.as_str() {
            "incident" => match serde_json::from_str(&event.data) {
                Ok(change) => News::Change(change),
                // A newer alerter may send events that this client cannot parse.
                Err(_) => News::Reset,
            },
            "reset" => News::Reset,
            _ => continue,
        };
        if news.send(item).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

async fn live(
    args: &WatchArgs,
    client: &Client,
    mut list: IncidentList,
    mut news: mpsc::Receiver<News>,
) -> Result<(), CliError> {
    let mut screen = Screen::open()?;
    let mut ticks = tokio::time::interval(REDRAW);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut lost = None;
    loop {
        Screen::draw(&frame(&list, lost.as_ref(), wall()))?;
        let anew = tokio::select! {
            key = screen.key() => match key {
                Key::Quit => return Ok(()),
                Key::Draw => false,
            },
            _ = ticks.tick() => false,
            item = news.recv() => match item {
                Some(News::Lost(error)) => {
                    lost = Some(error);
                    false
                }
                Some(_) => true,
                None => return Ok(()),
            },
        };
        if anew {
            // The list includes all pending changes.
            while news.try_recv().is_ok() {}
            match args.read(client).await {
                Ok(read) => (list, lost) = (read, None),
                Err(error) => lost = Some(error),
            }
        }
    }
}

fn frame(list: &IncidentList, lost: Option<&ClientError>, now: Ts) -> Vec<String> {
    let (columns, rows) = Screen::size();
    let count = list.incidents.len();
    let title = match count {
        0 => "nothing is wrong".to_owned(),
        1 => "1 unresolved incident".to_owned(),
        n => format!("{n} unresolved incidents"),
    };
    let mut lines = vec![screen::line(&format!("{title}   {now}   q quits"), HEADING, columns)];
    if let Some(error) = lost {
        lines.push(screen::line(&format!("{error}; trying again"), WARNING, columns));
    }
    lines.push(String::new());
    if count > 0 {
        lines.extend(table(&list.incidents, now).lines(columns));
    }
    if lines.len() > rows {
        let hidden = lines.len() - rows + 1;
        lines.truncate(rows.saturating_sub(1));
        lines.push(screen::line(&format!("and {hidden} more"), FAINT, columns));
    }
    lines
}

async fn lines(
    args: &WatchArgs,
    client: &Client,
    list: IncidentList,
    mut news: mpsc::Receiver<News>,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    begin(args.format, ChangeWord::Opened, list, out)?;
    let mut lost = false;
    while let Some(item) = news.recv().await {
        match item {
            News::Change(event) => {
                lost = false;
                if args.wants(&event.incident) {
                    print(args.format, &event, out)?;
                }
            }
            News::Reset => {
                if let Ok(list) = args.read(client).await {
                    begin(args.format, ChangeWord::Changed, list, out)?;
                }
            }
            News::Lost(error) if !lost => {
                lost = true;
                // The error goes to standard error, because standard output has only the data.
                let _ = writeln!(std::io::stderr(), "{error}; trying again");
            }
            News::Lost(_) => {}
        }
    }
    Ok(())
}

/// Prints all unresolved incidents, oldest first.
fn begin(
    format: Format,
    change: ChangeWord,
    list: IncidentList,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let all = list.incidents.into_iter().rev();
    all.map(|incident| IncidentEvent { change, incident }).try_for_each(|event| print(format, &event, out))
}

fn print(format: Format, event: &IncidentEvent, out: &mut dyn Write) -> Result<(), CliError> {
    let IncidentEvent { change, incident } = event;
    if format == Format::Json {
        let line = serde_json::to_string(event).map_err(|e| CliError::Other(e.to_string()))?;
        writeln!(out, "{line}")?;
    } else {
        let (word, style) = match change {
            ChangeWord::Opened => ("opened", of_severity(incident.severity)),
            ChangeWord::Changed => ("changed", Style::new()),
            ChangeWord::Resolved => ("resolved", FAINT),
        };
        writeln!(
            out,
            "{}  {style}{word:<8}  {:<6}{style:#}  {}  {:<12}  {}  {}: {}",
            wall(),
            incident.severity.as_str(),
            incident.id,
            incident.standing(),
            plain(&incident.place()),
            incident.kind.as_str(),
            plain(&incident.summary),
        )?;
    }
    // The output is flushed, because the reader follows it live.
    Ok(out.flush()?)
}
