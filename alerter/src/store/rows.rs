//! Values of columns, and inserts of many rows in few statements. The set of statements is fixed,
//! so that each is prepared once.

use stepwatch_model::time::Ts;

use super::error::{Result, StoreError};
use super::sql::{Connection, QueryBuilder, Value, query};

/// The numbers of rows per statement, largest first. They are far below SQLite's limit of bound
/// values.
const SIZES: [usize; 8] = [128, 64, 32, 16, 8, 4, 2, 1];

/// All of `rows` in order, in portions of [`SIZES`].
pub(super) fn portions<T>(mut rows: &[T]) -> impl Iterator<Item = &[T]> {
    core::iter::from_fn(move || {
        let size = SIZES.into_iter().find(|size| *size <= rows.len())?;
        let (portion, rest) = rows.split_at(size);
        rows = rest;
        Some(portion)
    })
}

/// Appends a list such as `($1, $2, ...)`.
pub(super) fn list<'a, T>(query: &mut QueryBuilder<'a>, values: &'a [T])
where
    &'a T: Into<Value<'a>>,
{
    query.push("(");
    let mut list = query.separated(", ");
    for value in values {
        list.push_bind(value);
    }
    query.push(")");
}

pub(super) fn json(what: &str, value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|source| StoreError::Damaged { what: what.to_owned(), source })
}

/// Parses a column that holds the serde name of a unit variant.
pub(super) fn word<T: serde::de::DeserializeOwned>(what: &'static str, text: &str) -> Result<T> {
    serde_json::from_value(serde_json::Value::String(text.to_owned()))
        .map_err(|_| StoreError::Unknown { what, found: text.to_owned() })
}

/// Stores the latest time so far. The next process does not begin before it.
pub(super) async fn put_alive(connection: &mut Connection, at: Ts) -> Result<()> {
    let sql = "INSERT INTO meta (key, value) VALUES ('alive_at', $1) \
               ON CONFLICT (key) DO UPDATE SET value = excluded.value";
    query(sql).bind(text_of(at)).execute(connection).await?;
    Ok(())
}

/// RFC 3339 in UTC with milliseconds: readable, and sorted like the time.
pub(super) fn text_of(ts: Ts) -> String {
    match jiff::Timestamp::from_millisecond(ts.0) {
        Ok(t) => t.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string(),
        Err(_) => ts.to_string(),
    }
}

/// The serde name of a unit variant, as the column contains it.
pub(super) fn name_of(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        other => unreachable_name(&format!("{other:?}")),
    }
}

/// For values other than unit variants, which do not occur; a wrong name in a column is better than
/// a lost page.
fn unreachable_name(got: &str) -> String {
    debug_assert!(false, "not a unit variant: {got}");
    got.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_once_in_order_and_in_few_sizes() {
        for n in [0, 1, 7, 8, 64, 127, 128, 300] {
            let rows: Vec<usize> = (0..n).collect();
            let portions: Vec<&[usize]> = portions(&rows).collect();
            assert_eq!(portions.concat(), rows);
            assert!(portions.iter().all(|p| SIZES.contains(&p.len())));
        }
    }
}
