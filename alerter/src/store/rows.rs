//! Many rows in few statements, which are always the same few: one that is known is not prepared
//! again.

use sqlx::{Encode, QueryBuilder, Sqlite, Type};

/// Rows of one statement, the most first. Far below SQLite's limit of bound values.
const SIZES: [usize; 8] = [128, 64, 32, 16, 8, 4, 2, 1];

/// All of `rows`, in their order, in pieces of [`SIZES`].
pub(super) fn portions<T>(mut rows: &[T]) -> impl Iterator<Item = &[T]> {
    core::iter::from_fn(move || {
        let size = SIZES.into_iter().find(|size| *size <= rows.len())?;
        let (portion, rest) = rows.split_at(size);
        rows = rest;
        Some(portion)
    })
}

/// Writes `($1, $2, ...)`.
pub(super) fn list<'a, T>(query: &mut QueryBuilder<Sqlite>, values: &'a [T])
where
    &'a T: Encode<'a, Sqlite> + Type<Sqlite>,
{
    query.push("(");
    let mut list = query.separated(", ");
    for value in values {
        list.push_bind(value);
    }
    query.push(")");
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
