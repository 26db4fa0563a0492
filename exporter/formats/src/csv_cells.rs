//! Rows of comma-separated values.

/// The cells of a row, as Python's `csv` writes them: in quotes where one holds a comma or a quote.
pub(crate) fn cells(row: &str) -> impl Iterator<Item = String> {
    let mut rest = Some(row);
    core::iter::from_fn(move || {
        let text = rest?;
        let Some(mut quoted) = text.strip_prefix('"') else {
            let (cell, after) = text.split_once(',').map_or((text, None), |(c, a)| (c, Some(a)));
            rest = after;
            return Some(cell.to_owned());
        };
        let mut cell = String::new();
        loop {
            let (part, after) = quoted.split_once('"').unwrap_or((quoted, ""));
            cell.push_str(part);
            let Some(more) = after.strip_prefix('"') else {
                rest = after.strip_prefix(',');
                return Some(cell);
            };
            cell.push('"');
            quoted = more;
        }
    })
}
