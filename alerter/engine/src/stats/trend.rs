//! Trend of a few values: is it one, how steep, and was it a step or a slope.

/// Kendall's S against time: pairs that rise minus pairs that fall (Mann 1945, Kendall 1975). `n(n−1)/2` when every value is
/// above all before it.
pub fn kendall(values: &[f64]) -> i32 {
    let mut s = 0;
    for (i, a) in values.iter().enumerate() {
        for b in &values[i + 1..] {
            s += i32::from(b > a) - i32::from(b < a);
        }
    }
    s
}

/// True when one jump explains the values much better than a straight line does: the best split into two constant parts leaves less
/// than 0.6 of the line's squared error.
pub fn is_step(values: &[f64]) -> bool {
    values.len() >= 4 && split_error(values) < 0.6 * line_error(values)
}

fn squared_error(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    values.iter().map(|v| (v - mean) * (v - mean)).sum()
}

fn split_error(values: &[f64]) -> f64 {
    (1..values.len())
        .map(|at| squared_error(&values[..at]) + squared_error(&values[at..]))
        .fold(f64::INFINITY, f64::min)
}

fn line_error(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let mid = (n - 1.0) / 2.0;
    let mean = values.iter().sum::<f64>() / n;
    let (mut xy, mut xx) = (0.0, 0.0);
    for (i, v) in values.iter().enumerate() {
        xy += (i as f64 - mid) * (v - mean);
        xx += (i as f64 - mid) * (i as f64 - mid);
    }
    (squared_error(values) - xy * xy / xx).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_a_step_from_a_slope() {
        let step = [0.0, 0.1, 0.0, 0.1, 5.0, 5.1, 5.0, 5.1];
        let slope = [0.0, 1.1, 2.0, 2.9, 4.1, 5.0, 6.1, 7.0];
        assert!(is_step(&step) && !is_step(&slope));
        assert_eq!(kendall(&slope), 28);
        assert_eq!(kendall(&[3.0, 2.0, 1.0]), -3);
    }
}
