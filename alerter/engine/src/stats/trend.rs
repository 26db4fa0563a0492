//! Trend of a few values: is it one, and was it a step or a slope.

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

/// Whether the last values rose at once: at most one of them lies between the old level, `0`, and the new one, the highest.
pub fn is_step(rises: &[f64]) -> bool {
    let top = rises.iter().copied().fold(0.0, f64::max);
    let before = rises.iter().rev().skip_while(|r| **r > 0.85 * top);
    before.take_while(|r| **r > 0.15 * top).count() <= 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_a_step_from_a_slope() {
        let step = [0.0, 0.1, -0.2, 0.4, 0.0, 2.6, 5.0, 5.1, 4.9];
        let slope = [0.0, 0.1, 1.1, 2.0, 2.9, 4.1, 5.0, 6.1, 7.0];
        assert!(is_step(&step) && !is_step(&slope));
        assert_eq!(kendall(&slope), 36);
        assert_eq!(kendall(&[3.0, 2.0, 1.0]), -3);
    }
}
