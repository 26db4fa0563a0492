//! Stores how the time of runs was used, by hour.

use std::collections::BTreeMap;

use stepwatch_detect::run::{Counts, Energy, HOUR, RunHour, TimeState, Totals};
use stepwatch_model::time::Ts;

use super::error::{Result, StoreError};
use super::handle::Store;
use super::rows::{list, portions};
use super::sql::{Connection, QueryBuilder, Row, Separated, query_scalar};

/// The most runs, whose number is a part of a row's id.
const MAX_RUNS: i64 = 1 << 20;

/// The accounted time of a run in a period.
#[derive(Debug, Clone, PartialEq)]
pub struct RunTotals {
    pub run: String,
    pub totals: Totals,
}

impl Store {
    /// The accounted time of each run, or of one, in the hours that begin in `from..to`.
    pub async fn accounted(&self, from: Ts, to: Ts, run: Option<&str>) -> Result<Vec<RunTotals>> {
        // Each half uses its own connection, and so its own thread.
        let middle = Ts(from.0 / 2 + to.0 / 2);
        let (first, second) =
            tokio::try_join!(self.accounted_in(from, middle, run), self.accounted_in(middle, to, run))?;
        let mut all: BTreeMap<String, (Totals, f64)> = BTreeMap::new();
        for (run, totals, dollars) in first.into_iter().chain(second) {
            let (sum, cost) = all.entry(run).or_default();
            sum.join(&totals);
            *cost += dollars;
        }
        let priced = |(run, (totals, dollars))| RunTotals { run, totals: priced(&totals, dollars) };
        Ok(all.into_iter().map(priced).collect())
    }

    /// The run, its accounted time and the cost, for each number of GPUs that a run had.
    async fn accounted_in(&self, from: Ts, to: Ts, run: Option<&str>) -> Result<Vec<(String, Totals, f64)>> {
        let mut query = QueryBuilder::new("SELECT r.run, s.* FROM (SELECT id & ");
        query.push(MAX_RUNS - 1).push(" AS number, gpus, gpu_ms, COUNT(*) AS hours");
        let times = TimeState::ALL.map(column_of);
        for column in COUNTS.into_iter().chain(["dollars"]).chain(times.iter().map(String::as_str)) {
            // A sum of floating point numbers cannot overflow, so that one row with an absurd
            // number does not break all reports.
            query.push(format_args!(", SUM(CAST({column} AS DOUBLE PRECISION)) AS {column}"));
        }
        query.push(" FROM run_hours WHERE id >= ").push_bind(first_id(from));
        query.push(" AND id < ").push_bind(first_id(to));
        if let Some(run) = run {
            query.push(" AND id & ").push(MAX_RUNS - 1);
            query.push(" = (SELECT number FROM accounted_runs WHERE run = ").push_bind(run).push(")");
        }
        query.push(" GROUP BY 1, gpus, gpu_ms) AS s JOIN accounted_runs AS r ON r.number = s.number");
        let rows = query.build().fetch_all(&*self.reader()?).await?;
        rows.iter().map(totals).collect()
    }
}

fn column_of(state: TimeState) -> String {
    format!("{}_ms", state.as_str())
}

/// The id of the first row of the first hour that begins at `at` or later.
fn first_id(at: Ts) -> i64 {
    let hour = at.0.saturating_add(HOUR.0 - 1).div_euclid(HOUR.0);
    hour.clamp(0, i64::MAX / MAX_RUNS) * MAX_RUNS
}

/// The columns of [`Counts`].
const COUNTS: [&str; 6] = ["starts", "interruptions", "tokens", "joules", "measured_gpu_ms", "carbon_grams"];

/// All columns of a row except the id, in the order of the values of [`bind`].
fn columns() -> impl Iterator<Item = String> {
    let counts = COUNTS.into_iter().chain(["dollars", "gpus", "gpu_ms"]).map(str::to_owned);
    counts.chain(TimeState::ALL.map(column_of))
}

/// Binds the values of a row. Whole tokens, joules and grams take half the space of fractions.
fn bind(row: &mut Separated<'_, '_>, id: i64, totals: &Totals) {
    let Counts { starts, interruptions, tokens, energy } = *totals.counts();
    let dollars: f64 = TimeState::ALL.into_iter().filter_map(|state| totals.dollars(state)).sum();
    row.push_bind(id).push_bind(starts).push_bind(interruptions).push_bind(whole(tokens));
    row.push_bind(whole(energy.joules)).push_bind(energy.gpu_ms).push_bind(whole(energy.carbon_grams));
    row.push_bind(dollars).push_bind(totals.gpus().unwrap_or_default()).push_bind(gpu_times(totals));
    for state in TimeState::ALL {
        row.push_bind(totals.millis(state));
    }
}

fn whole(value: f64) -> i64 {
    value.round() as i64
}

/// A sum of a column, which is a floating point number and exact up to 2^53.
fn sum(row: &Row, column: &str) -> Result<i64> {
    Ok(whole(row.try_get::<f64, _>(column)?))
}

/// The GPU time by state, unless a constant number of GPUs gives it.
fn gpu_times(totals: &Totals) -> Option<String> {
    let by_state = || TimeState::ALL.map(|state| (state.as_str(), totals.gpu_millis(state)));
    totals.gpus().is_none().then(|| serde_json::json!(BTreeMap::from(by_state())).to_string())
}

/// Stores completed hours. A stored hour is replaced.
pub(super) async fn put_hours(tx: &mut Connection, hours: &[RunHour]) -> Result<()> {
    if hours.is_empty() {
        return Ok(());
    }
    let numbers = numbers(tx, hours).await?;
    let numbered = hours.iter().filter_map(|hour| {
        let number = numbers.get(hour.run.as_str()).filter(|number| **number < MAX_RUNS)?;
        let is_possible = (0..i64::MAX / MAX_RUNS).contains(&hour.hour.hour);
        is_possible.then(|| (hour.hour.hour * MAX_RUNS + number, &hour.hour.totals))
    });
    let is_beyond = |hour: &&RunHour| numbers.get(hour.run.as_str()).is_none_or(|n| *n >= MAX_RUNS);
    let dropped = hours.iter().filter(is_beyond).count();
    if dropped > 0 {
        tracing::warn!(dropped, "hours of runs are not kept: {MAX_RUNS} runs have some already");
    }
    // The last value of an hour counts.
    let rows: BTreeMap<i64, &Totals> = numbered.collect();
    let rows: Vec<(i64, &Totals)> = rows.into_iter().collect();
    let columns: Vec<String> = columns().collect();
    for rows in portions(&rows) {
        let mut insert = QueryBuilder::new("INSERT INTO run_hours (id, ");
        insert.push(columns.join(", ")).push(") ");
        insert.push_values(rows, |mut row, (id, totals)| bind(&mut row, *id, totals));
        insert.push(" ON CONFLICT (id) DO UPDATE SET id = excluded.id");
        for column in &columns {
            insert.push(format_args!(", {column} = excluded.{column}"));
        }
        insert.build().execute(&mut *tx).await?;
    }
    Ok(())
}

/// The numbers of the runs; new runs get one.
async fn numbers<'a>(tx: &mut Connection, hours: &'a [RunHour]) -> Result<BTreeMap<&'a str, i64>> {
    let mut names: Vec<&str> = hours.iter().map(|hour| hour.run.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let mut numbers = BTreeMap::new();
    for names in portions(&names) {
        let mut select = QueryBuilder::new("SELECT number, run FROM accounted_runs WHERE run IN ");
        list(&mut select, names);
        let rows: Vec<(i64, String)> = select.build_query_as().fetch_all(&mut *tx).await?;
        for (number, run) in rows {
            let name = names.iter().find(|name| **name == run);
            numbers.extend(name.map(|name| (*name, number)));
        }
    }
    let new: Vec<&str> = names.into_iter().filter(|name| !numbers.contains_key(name)).collect();
    if new.is_empty() {
        return Ok(numbers);
    }
    // There is only one writer, so the largest number plus one is free.
    let sql = "SELECT COALESCE(MAX(number), 0) FROM accounted_runs";
    let last: i64 = query_scalar(sql).fetch_one(&mut *tx).await?;
    let new: Vec<(i64, &str)> = (last + 1..).zip(new).collect();
    for rows in portions(&new) {
        let mut insert = QueryBuilder::new("INSERT INTO accounted_runs (number, run) ");
        insert.push_values(rows, |mut row, (number, name)| _ = row.push_bind(*number).push_bind(*name));
        insert.build().execute(&mut *tx).await?;
    }
    numbers.extend(new.into_iter().map(|(number, name)| (name, number)));
    Ok(numbers)
}

/// Distributes the cost over the states, in proportion to their GPU time.
fn priced(totals: &Totals, dollars: f64) -> Totals {
    let all: f64 = TimeState::ALL.into_iter().map(|state| totals.gpu_millis(state) as f64).sum();
    let states = TimeState::ALL.map(|state| {
        let (ms, gpu_ms) = (totals.millis(state), totals.gpu_millis(state));
        (state, [ms, gpu_ms], if all > 0.0 { dollars * gpu_ms as f64 / all } else { 0.0 })
    });
    Totals::from_states(states, *totals.counts())
}

fn totals(row: &Row) -> Result<(String, Totals, f64)> {
    let (hours, gpus): (i64, i64) = (row.try_get("hours")?, row.try_get("gpus")?);
    let text: Option<String> = row.try_get("gpu_ms")?;
    let read = text.map(|text| serde_json::from_str(&text)).transpose();
    let by_state: Option<BTreeMap<String, i64>> =
        read.map_err(|source| StoreError::Damaged { what: "gpu_ms of run_hours".to_owned(), source })?;
    let mut times = Vec::with_capacity(TimeState::ALL.len());
    for state in TimeState::ALL {
        let ms = sum(row, &column_of(state))?;
        let gpu_ms = match &by_state {
            Some(by_state) => by_state.get(state.as_str()).map_or(0, |each| each.saturating_mul(hours)),
            None => ms.saturating_mul(gpus),
        };
        times.push((state, [ms, gpu_ms], 0.0));
    }
    let energy = Energy {
        joules: row.try_get("joules")?,
        carbon_grams: row.try_get("carbon_grams")?,
        gpu_ms: sum(row, "measured_gpu_ms")?,
    };
    let ones = |column: &str| sum(row, column).map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    let counts = Counts {
        starts: ones("starts")?,
        interruptions: ones("interruptions")?,
        tokens: row.try_get("tokens")?,
        energy,
    };
    Ok((row.try_get("run")?, Totals::from_states(times, counts), row.try_get("dollars")?))
}

#[cfg(test)]
mod tests {
    use stepwatch_detect::run::HourTotals;

    use super::super::commit::Commit;
    use super::*;

    fn hour(run: &str, hour: i64, productive: i64, interruptions: u32) -> RunHour {
        let states = [
            (TimeState::Productive, [productive, 8 * productive], 2.0),
            (TimeState::Down, [1000, 8000], 0.5),
        ];
        let energy = Energy { joules: 7.0, carbon_grams: 2.0, gpu_ms: 1000 };
        let counts = Counts { starts: 1, interruptions, tokens: 4096.0, energy };
        let totals = Totals::from_states(states, counts);
        RunHour { run: run.to_owned(), hour: HourTotals { hour, totals } }
    }

    fn at(hour: i64) -> Ts {
        Ts(hour * HOUR.0)
    }

    #[tokio::test]
    async fn hours_add_up_and_one_that_is_stored_again_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("alerter.db")).await.unwrap();
        let hours =
            vec![hour("a", 10, 5, 0), hour("b", 10, 7000, 1), hour("a", 10, 3000, 0), hour("a", 11, 1000, 2)];
        store.commit(&Commit { hours, ..Commit::default() }).await.unwrap();
        let hours = vec![hour("b", 10, 7000, 3)];
        store.commit(&Commit { hours, ..Commit::default() }).await.unwrap();
        let all = store.accounted(at(10), at(12), None).await.unwrap();
        let seen: Vec<_> = all
            .iter()
            .map(|r| {
                let Counts { starts, interruptions, .. } = *r.totals.counts();
                (&*r.run, r.totals.millis(TimeState::Productive), interruptions, starts)
            })
            .collect();
        assert_eq!(seen, [("a", 4000, 2, 2), ("b", 7000, 3, 1)]);
        let dollars = all[0].totals.dollars(TimeState::Productive).unwrap();
        assert!((dollars - 5.0 * 4000.0 / 6000.0).abs() < 1e-9, "of the whole, by GPU time: {dollars}");
        let Counts { tokens, energy, .. } = *all[0].totals.counts();
        assert_eq!(tokens, 8192.0);
        assert_eq!(all[0].totals.gpu_millis(TimeState::Productive), 8 * 4000);
        assert_eq!(energy, Energy { joules: 14.0, carbon_grams: 4.0, gpu_ms: 2000 });
        let late = store.accounted(Ts(at(10).0 + 1), at(12), Some("a")).await.unwrap();
        assert_eq!(late.len(), 1);
        assert_eq!(late[0].totals.millis(TimeState::Productive), 1000, "of hours that began later");
        assert_eq!(store.accounted(at(10), at(12), Some("c")).await.unwrap(), []);
        assert_eq!(store.accounted(at(12), at(99), None).await.unwrap(), []);
    }

    /// The number of tokens that a trainer reports is not validated.
    #[tokio::test]
    async fn absurd_numbers_break_no_report() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("alerter.db")).await.unwrap();
        let states = [(TimeState::Productive, [i64::MAX / 4, i64::MAX], 0.0)];
        let counts = Counts { tokens: 1e300, ..Counts::default() };
        let absurd = |hour| {
            let totals = Totals::from_states(states, counts);
            RunHour { run: "absurd".into(), hour: HourTotals { hour, totals } }
        };
        let hours = (10..16).map(absurd).chain([hour("sound", 10, 3000, 0)]).collect();
        store.commit(&Commit { hours, ..Commit::default() }).await.unwrap();
        let all = store.accounted(at(10), at(16), None).await.unwrap();
        assert_eq!(all.len(), 2);
        assert_eq!(all[1].totals.gpu_millis(TimeState::Productive), 8 * 3000);
    }

    #[tokio::test]
    async fn an_hour_in_which_the_gpus_became_more_keeps_the_time_of_each_state() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("alerter.db")).await.unwrap();
        let states = [
            (TimeState::Productive, [1000, 8000], 0.0),
            (TimeState::Down, [500, 8000], 0.0),
            (TimeState::Unknown, [70, 0], 0.0),
        ];
        let totals = Totals::from_states(states, Counts::default());
        let grown = RunHour { run: "a".into(), hour: HourTotals { hour: 11, totals } };
        let hours = vec![hour("a", 10, 3000, 0), grown];
        store.commit(&Commit { hours, ..Commit::default() }).await.unwrap();
        let all = store.accounted(at(10), at(12), None).await.unwrap();
        let seen = [TimeState::Productive, TimeState::Down, TimeState::Unknown]
            .map(|state| (all[0].totals.millis(state), all[0].totals.gpu_millis(state)));
        assert_eq!(seen, [(4000, 32_000), (1500, 16_000), (70, 0)]);
    }

    /// A day of this many runs in hourly steps: a month of a thousand runs must take less than 50
    /// MB.
    #[tokio::test]
    async fn an_hour_of_a_run_is_small() {
        const RUNS: i64 = 200;
        const HOURS: i64 = 24;
        const MONTH_OF_A_THOUSAND: f64 = 50e6 / (30.0 * 24.0 * 1000.0);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("alerter.db");
        let store = Store::open(&path).await.unwrap();
        let states = [
            (TimeState::Productive, [3_400_123, 3_400_123 * 512], 902.17),
            (TimeState::Slowed, [88_123, 88_123 * 512], 21.3),
            (TimeState::Saving, [111_754, 111_754 * 512], 30.9),
        ];
        let energy = Energy { joules: 1.234e9, carbon_grams: 123_456.7, gpu_ms: 3_599_871 * 512 };
        let totals = Totals::from_states(states, Counts { tokens: 3.4e9, energy, ..Counts::default() });
        for hour in 492_000..492_000 + HOURS {
            let of = |run| RunHour {
                run: format!("pretraining-{run}"),
                hour: HourTotals { hour, totals: totals.clone() },
            };
            let hours = (0..RUNS).map(of).collect();
            store.commit(&Commit { hours, ..Commit::default() }).await.unwrap();
        }
        let sql = "SELECT SUM(pgsize) FROM dbstat WHERE name = 'run_hours'";
        let bytes: i64 = query_scalar(sql).fetch_one(&*store.reader().unwrap()).await.unwrap();
        let each = bytes as f64 / (RUNS * HOURS) as f64;
        assert!(each < MONTH_OF_A_THOUSAND, "{each} bytes a run and hour");
        let all = store.accounted(Ts(0), at(500_000), None).await.unwrap();
        assert_eq!(all.len(), RUNS as usize);
        assert_eq!(all[7].totals.millis(TimeState::Saving), HOURS * 111_754);
    }
}
