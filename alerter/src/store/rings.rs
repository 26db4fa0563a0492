//! The calls of an incident to receivers that notify people once per key.

use stepwatch_model::time::Ts;
use stepwatch_respond::effect::{Action, Notification};

use super::error::Result;
use super::handle::Store;
use super::sql::{Connection, On, query, query_as, query_scalar};
use super::writer::Who;
use crate::notify::Ring;
use crate::notify::pagerduty::taken_back_there;

/// The delivery properties of a receiver.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Means {
    /// Whether the receiver wakes a person.
    pub wakes: bool,
    /// Whether its calls get numbers before they are sent.
    pub numbered: bool,
}

/// The most calls that are read, latest first.
const RINGS_MAX: i64 = 32;

/// The most calls of a lane that are read, latest first; earlier ones were settled long ago.
const UNSURE_MAX: i64 = 32;

/// The last call numbers of incidents that are not over.
pub(super) async fn last_rings(tx: &mut Connection) -> Result<Vec<(String, Ring)>> {
    let sql = "SELECT o.incident, o.page = 1, MAX(o.ring) FROM incidents i JOIN outbox o ON o.incident = i.id \
               WHERE i.state <> 'resolved' AND o.ring IS NOT NULL GROUP BY o.incident, o.page";
    let rows: Vec<(String, bool, i64)> = query_as(sql).fetch_all(tx).await?;
    Ok(rows
        .into_iter()
        .map(|(incident, page, number)| (incident, Ring { number: number as u32, page }))
        .collect())
}

impl Store {
    /// The latest calls of an incident.
    pub(crate) async fn rings_of(&self, incident: &str) -> Result<Vec<Ring>> {
        let sql = "SELECT ring, page = 1 FROM outbox WHERE incident = $1 AND ring IS NOT NULL \
                   ORDER BY ring DESC, page LIMIT $2";
        let rows = query_as(sql).bind(incident).bind(RINGS_MAX);
        let rows: Vec<(i64, bool)> = rows.fetch_all(&*self.finder()?).await?;
        Ok(rows.into_iter().map(|(number, page)| Ring { number: number as u32, page }).collect())
    }

    /// When a call was added to the outbox.
    pub(crate) async fn called_at(&self, incident: &str, ring: Ring) -> Result<Option<Ts>> {
        let sql = "SELECT MAX(created_ms) FROM outbox WHERE incident = $1 AND ring = $2 AND page = $3";
        let call = query_scalar(sql).bind(incident);
        let call = call.bind(i64::from(ring.number)).bind(i64::from(ring.page));
        let at: Option<i64> = call.fetch_one(&*self.finder()?).await?;
        Ok(at.map(Ts))
    }

    /// The receiver to which a call was sent.
    pub(crate) async fn called_by(&self, incident: &str, ring: Ring) -> Result<Option<String>> {
        let sql = "SELECT receiver FROM outbox WHERE incident = $1 AND ring = $2 AND page = $3 LIMIT 1";
        let call = query_scalar(sql).bind(incident);
        let call = call.bind(i64::from(ring.number)).bind(i64::from(ring.page));
        Ok(call.fetch_optional(&*self.finder()?).await?)
    }

    /// The receivers to which calls of an incident were sent.
    pub(crate) async fn called(&self, incident: &str) -> Result<Vec<String>> {
        let sql = "SELECT DISTINCT receiver FROM outbox WHERE incident = $1 AND ring IS NOT NULL";
        Ok(query_scalar(sql).bind(incident).fetch_all(&*self.finder()?).await?)
    }

    /// Changes the memory of the lanes that made these calls. False while one of them is sending,
    /// because its result would overwrite the memory.
    pub(crate) async fn remember_rings(
        &self,
        incident: &str,
        rings: &[Ring],
        with: fn(Option<&str>, Ring) -> String,
        now: Ts,
    ) -> Result<bool> {
        self.write(Who::Prompt, async |tx| {
            for ring in rings {
                let sql = "SELECT o.receiver, (SELECT memory FROM lanes l WHERE l.incident = o.incident \
                           AND l.receiver = o.receiver), EXISTS (SELECT 1 FROM outbox a WHERE \
                           a.incident = o.incident AND a.receiver = o.receiver AND a.state = 'attempting') \
                           FROM outbox o WHERE o.incident = $1 AND o.ring = $2 AND o.page = $3 LIMIT 1";
                let rows = query_as(sql).bind(incident);
                let rows = rows.bind(i64::from(ring.number)).bind(i64::from(ring.page));
                let found: Option<(String, Option<String>, bool)> = rows.fetch_optional(&mut *tx).await?;
                let Some((receiver, memory, sends)) = found else { continue };
                if sends || self.holds(&receiver, incident) {
                    return Ok(false);
                }
                let sql = "INSERT INTO lanes (incident, receiver, memory, updated_ms) VALUES ($1, $2, $3, $4) \
                           ON CONFLICT (incident, receiver) DO UPDATE SET memory = excluded.memory";
                let insert = query(sql).bind(incident).bind(&receiver);
                insert.bind(with(memory.as_deref(), *ring)).bind(now.0).execute(&mut *tx).await?;
            }
            Ok(true)
        })
        .await
    }
}

/// Whether a call to the receiver was begun, so that it may have arrived.
pub(super) async fn begun(on: On<'_>, incident: &str, receiver: &str) -> Result<bool> {
    let sql =
        "SELECT EXISTS (SELECT 1 FROM outbox WHERE incident = $1 AND receiver = $2 AND ring IS NOT NULL)";
    Ok(query_scalar(sql).bind(incident).bind(receiver).fetch_one(on).await?)
}

/// The call number of a message that may call a person (`had` if it has one), and the calls of its
/// lane that may not have arrived. The delivered ones are in the notifier's memory.
pub(super) async fn rings(
    mut on: On<'_>,
    n: &Notification,
    had: Option<u32>,
) -> Result<(Option<Ring>, Vec<Ring>)> {
    let sql = "SELECT ring, page = 1, state = 'delivered' FROM outbox WHERE incident = $1 AND receiver = $2 AND ring IS NOT NULL \
               AND seq <> $3 ORDER BY seq DESC LIMIT $4";
    let rows = query_as(sql).bind(&n.incident).bind(&n.receiver).bind(i64::from(n.seq));
    let others: Vec<(i64, bool, bool)> = rows.bind(UNSURE_MAX).fetch_all(on.again()).await?;
    // An update notifies people if there is no open alert to which it could be added. If the
    // acknowledgement was taken back in the service, the service calls by itself.
    let may_ring = n.calls() && !taken_back_there(n) || n.action == Action::Update && others.is_empty();
    let number = match had {
        None if may_ring => {
            // The number is unique across receivers: two of them may be the same service, where an
            // open key calls nobody.
            let sql = "SELECT COALESCE(MAX(ring), 0) + 1 FROM outbox WHERE incident = $1 AND page = $2";
            let next: i64 =
                query_scalar(sql).bind(&n.incident).bind(i64::from(n.page)).fetch_one(on.again()).await?;
            Some(next as u32)
        }
        had => had,
    };
    let unsure = others.into_iter().rev().filter(|(.., delivered)| !delivered);
    let unsure = unsure.map(|(number, page, _)| Ring { number: number as u32, page }).collect();
    Ok((number.map(|number| Ring { number, page: n.page }), unsure))
}
