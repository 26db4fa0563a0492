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
        let (attempts, columns) =
            (ATTEMPTS.into_iter(), COUNTS.into_iter().map(str::to_owned).chain(times()));
        let attempts = attempts.map(|(name, value)| (name.to_owned(), value.to_owned()));
        for (name, value) in attempts.chain(columns.map(|column| (column.clone(), column))) {
            // A sum of floating point numbers cannot overflow, so that one row with an absurd
            // number does not break all reports.
            query.push(format_args!(", SUM(CAST({value} AS DOUBLE PRECISION)) AS {name}"));
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

/// The column of the time in a state, except of productive time: that is what the others leave of
/// the hour.
fn column_of(state: TimeState) -> String {
    format!("{}_ms", state.as_str())
}

/// The columns of times.
fn times() -> impl Iterator<Item = String> {
    ["unaccounted_ms".to_owned()].into_iter().chain(others().map(column_of))
}

/// All states but the productive one.
fn others() -> impl Iterator<Item = TimeState> {
    TimeState::ALL.into_iter().filter(|state| *state != TimeState::Productive)
}

/// The id of the first row of the first hour that begins at `at` or later.
fn first_id(at: Ts) -> i64 {
    let hour = at.0.saturating_add(HOUR.0 - 1).div_euclid(HOUR.0);
    hour.clamp(0, i64::MAX / MAX_RUNS) * MAX_RUNS
}

/// What the column `attempts` has of [`Counts`], and the most of each.
const ATTEMPTS: [(&str, &str); 2] = [("starts", "(attempts & 65535)"), ("interruptions", "(attempts >> 16)")];
const MAX_ATTEMPTS: u32 = 65_535;

/// The unit of tokens and joules: a GPU uses a million joules in an hour.
const TEN_THOUSAND: f64 = 1e4;

/// The columns of the other counts and of the cost, in units of which few bytes are enough.
const COUNTS: [&str; 5] = ["tokens_e4", "joules_e4", "unmeasured_gpu_s", "carbon_grams", "cents"];

/// All columns of a row except the id, in the order of the values of [`bind`].
fn columns() -> impl Iterator<Item = String> {
    let counts = ["attempts"].into_iter().chain(COUNTS).chain(["gpus", "gpu_ms"]).map(str::to_owned);
    counts.chain(times())
}

/// Binds the values of a row. A zero takes no space beside its type, and a small number less than
/// a large one: hence what is missing of the hour and of the measured time, which is mostly little.
fn bind(row: &mut Separated<'_, '_>, id: i64, totals: &Totals) {
    let Counts { starts, interruptions, tokens, energy } = *totals.counts();
    let attempts = starts.min(MAX_ATTEMPTS) | (interruptions.min(MAX_ATTEMPTS) << 16);
    let dollars: f64 = TimeState::ALL.into_iter().filter_map(|state| totals.dollars(state)).sum();
    let (mut all_ms, mut all_gpu_ms) = (0_i64, 0_i64);
    for state in TimeState::ALL {
        all_ms = all_ms.saturating_add(totals.millis(state));
        all_gpu_ms = all_gpu_ms.saturating_add(totals.gpu_millis(state));
    }
    let unmeasured = all_gpu_ms.saturating_sub(energy.gpu_ms);
    row.push_bind(id)
        .push_bind(attempts)
        .push_bind(whole(tokens / TEN_THOUSAND))
        .push_bind(whole(energy.joules / TEN_THOUSAND));
    row.push_bind(whole(unmeasured as f64 / 1e3)).push_bind(whole(energy.carbon_grams));
    row.push_bind(whole(dollars * 100.0)).push_bind(totals.gpus().unwrap_or_default());
    row.push_bind(gpu_times(totals)).push_bind(HOUR.0.saturating_sub(all_ms));
    for state in others() {
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
    let times = TimeState::ALL.into_iter().map(|state| (state.as_str(), totals.gpu_millis(state)));
    let by_state = || times.filter(|(_, ms)| *ms != 0).collect::<BTreeMap<_, _>>();
    totals.gpus().is_none().then(|| serde_json::json!(by_state()).to_string())
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
    let mut productive = hours.saturating_mul(HOUR.0).saturating_sub(sum(row, "unaccounted_ms")?);
    let mut millis = Vec::with_capacity(TimeState::ALL.len());
    for state in others() {
        let ms = sum(row, &column_of(state))?;
        productive = productive.saturating_sub(ms);
        millis.push((state, ms));
    }
    millis.push((TimeState::Productive, productive.max(0)));
    let gpu_millis = |state: TimeState, ms: i64| match &by_state {
        Some(by_state) => by_state.get(state.as_str()).map_or(0, |each| each.saturating_mul(hours)),
        None => ms.saturating_mul(gpus),
    };
    let times: Vec<_> =
        millis.into_iter().map(|(state, ms)| (state, [ms, gpu_millis(state, ms)], 0.0)).collect();
    let all = times.iter().fold(0_i64, |all, (_, [_, gpu_ms], _)| all.saturating_add(*gpu_ms));
    let real = |column: &str| row.try_get::<f64, _>(column);
    let energy = Energy {
        joules: real("joules_e4")? * TEN_THOUSAND,
        carbon_grams: real("carbon_grams")?,
        gpu_ms: all.saturating_sub(whole(real("unmeasured_gpu_s")? * 1e3)).max(0),
    };
    let ones = |column: &str| sum(row, column).map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    let counts = Counts {
        starts: ones("starts")?,
        interruptions: ones("interruptions")?,
        tokens: real("tokens_e4")? * TEN_THOUSAND,
        energy,
    };
    Ok((row.try_get("run")?, Totals::from_states(times, counts), real("cents")? / 100.0))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use stepwatch_detect::run::HourTotals;

    use super::super::commit::Commit;
    use super::*;

    fn hour(run: &str, hour: i64, productive: i64, interruptions: u32) -> RunHour {
        let states = [
            (TimeState::Productive, [productive, 8 * productive], 2.0),
            (TimeState::Down, [1000, 8000], 0.5),
        ];
        let energy = Energy { joules: 7e4, carbon_grams: 2.0, gpu_ms: 1000 };
        let counts = Counts { starts: 1, interruptions, tokens: 4e4, energy };
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
        assert_eq!(tokens, 8e4);
        assert_eq!(all[0].totals.gpu_millis(TimeState::Productive), 8 * 4000);
        assert_eq!(energy, Energy { joules: 14e4, carbon_grams: 4.0, gpu_ms: 2000 });
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

    /// The time that an hour has is not all accounted, or more is than an hour has.
    #[tokio::test]
    async fn the_states_of_an_hour_need_not_add_up_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("alerter.db")).await.unwrap();
        let of = |hour, productive: i64, unknown: i64| {
            let states = [
                (TimeState::Productive, [productive, 8 * productive], 0.0),
                (TimeState::Unknown, [unknown, 8 * unknown], 0.0),
            ];
            let energy = Energy { gpu_ms: 8 * productive, ..Energy::default() };
            let counts = Counts { interruptions: 70_000, energy, ..Counts::default() };
            let totals = Totals::from_states(states, counts);
            RunHour { run: "a".into(), hour: HourTotals { hour, totals } }
        };
        let hours = vec![of(10, 17, 0), of(11, 3_600_000, 0), of(12, 3_000_001, 9_000_000)];
        store.commit(&Commit { hours, ..Commit::default() }).await.unwrap();
        let seen = async |from, to| {
            let all = store.accounted(at(from), at(to), None).await.unwrap();
            let totals = &all[0].totals;
            (
                totals.millis(TimeState::Productive),
                totals.millis(TimeState::Unknown),
                totals.counts().interruptions,
            )
        };
        assert_eq!(seen(10, 11).await, (17, 0, 65_535));
        assert_eq!(seen(11, 12).await, (3_600_000, 0, 65_535));
        assert_eq!(seen(12, 13).await, (3_000_001, 9_000_000, 65_535));
        assert_eq!(seen(10, 13).await, (6_600_018, 9_000_000, 3 * 65_535));
        let all = store.accounted(at(11), at(13), None).await.unwrap();
        let measured = all[0].totals.counts().energy.gpu_ms;
        assert!((measured - 8 * 6_600_001).abs() <= 1000, "to the second: {measured}");
    }

    /// A day of this many runs, each in six states, on as many GPUs as a large run has. The hours
    /// of a few runs arrive at a time, in mixed order: the pages are less full than they could be.
    #[tokio::test]
    async fn a_month_of_a_thousand_runs_takes_less_than_50_mb() {
        const RUNS: i64 = 200;
        const HOURS: i64 = 24;
        const TOGETHER: usize = 25;
        const GPUS: i64 = 16_384;
        const MONTH_OF_A_THOUSAND: i64 = 30 * 24 * 1000;
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("alerter.db")).await.unwrap();
        let of = |run: i64, hour: i64| {
            let others = [
                (TimeState::Slowed, 88_123 + run),
                (TimeState::Saving, 111_754 + hour % 24),
                (TimeState::Starting, 41_000 + run),
                (TimeState::Recomputing, 45_000 + run),
                (TimeState::Down, 61_234 + run),
            ];
            let rest = HOUR.0 - others.iter().map(|(_, ms)| ms).sum::<i64>();
            let states = others.into_iter().chain([(TimeState::Productive, rest)]);
            let priced = states.map(|(state, ms)| (state, [ms, ms * GPUS], 2.0 * (ms * GPUS) as f64 / 3.6e6));
            let energy =
                Energy { joules: 4.1e10, carbon_grams: 4_534_567.8, gpu_ms: GPUS * (HOUR.0 - 129 - run) };
            let totals = Totals::from_states(priced, Counts { tokens: 2.4e10, energy, ..Counts::default() });
            RunHour { run: format!("pretraining-{run}"), hour: HourTotals { hour, totals } }
        };
        for hour in 492_000..492_000 + HOURS {
            // 77 and the number of runs have no common divisor, so that each run is there once.
            let runs: Vec<i64> = (0..RUNS).map(|n| (n * 77 + hour) % RUNS).collect();
            for runs in runs.chunks(TOGETHER) {
                let hours = runs.iter().map(|run| of(*run, hour)).collect();
                store.commit(&Commit { hours, ..Commit::default() }).await.unwrap();
            }
        }
        let sql = "SELECT SUM(pgsize) FROM dbstat WHERE name = 'run_hours'";
        let bytes: i64 = query_scalar(sql).fetch_one(&*store.reader().unwrap()).await.unwrap();
        let month = bytes as f64 * (MONTH_OF_A_THOUSAND as f64 / (RUNS * HOURS) as f64) / 1e6;
        let _ = writeln!(
            std::io::stderr(),
            "figure: a month of 1,000 runs, {GPUS} GPUs, six states: {month:.1} MB"
        );
        assert!(month < 50.0, "{month} MB");
        let all = store.accounted(Ts(0), at(500_000), None).await.unwrap();
        assert_eq!(all.len(), RUNS as usize);
        let seventh = all.iter().find(|r| r.run == "pretraining-7").unwrap();
        assert_eq!(seventh.totals.millis(TimeState::Slowed), HOURS * 88_130);
        assert_eq!(seventh.totals.total(), (HOURS * 3600) as f64);
    }
}
