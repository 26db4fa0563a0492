//! Reads single values from a metrics page, as far as tests need the text format.

use std::collections::BTreeSet;

/// The value of the first sample of `name` with all these labels.
pub fn value(page: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    page.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let (series, value) = match line.rsplit_once("} ") {
            Some(parts) => parts,
            None => line.split_once(' ')?,
        };
        let (found, pairs) = series.split_once('{').unwrap_or((series, ""));
        let has = |(k, v): &(&str, &str)| format!(",{pairs},").contains(&format!(",{k}=\"{v}\","));
        let wanted = found == name && labels.iter().all(has);
        wanted.then(|| value.split(' ').next()?.parse().ok())?
    })
}

/// The names of all families of a page.
pub fn families(page: &str) -> BTreeSet<String> {
    page.lines().filter_map(|l| l.strip_prefix("# TYPE ")?.split(' ').next()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_sample_by_name_and_labels() {
        let page = "# TYPE a gauge\na{run=\"x\",rank=\"0\"} 1\na{run=\"y\",rank=\"0\"} NaN\nab 3 17\n# TYPE ab counter\n";
        assert_eq!(value(page, "a", &[("run", "x")]), Some(1.0));
        assert!(value(page, "a", &[("rank", "0"), ("run", "y")]).is_some_and(f64::is_nan));
        assert_eq!(value(page, "ab", &[]), Some(3.0));
        assert_eq!(value(page, "a", &[("run", "z")]), None);
        assert_eq!(families(page), ["a", "ab"].map(str::to_owned).into());
    }
}
