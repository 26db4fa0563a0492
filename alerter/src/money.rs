//! Formats amounts of money.

/// Formats dollars, with cents for small amounts: `$4.20`, `$1,240`.
pub(crate) fn money(dollars: f64) -> String {
    if dollars < 100.0 {
        return format!("${dollars:.2}");
    }
    let digits = format!("{dollars:.0}");
    let mut out = String::from("$");
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_is_read_at_a_glance() {
        for (dollars, text) in [
            (0.0, "$0.00"),
            (4.2, "$4.20"),
            (99.994, "$99.99"),
            (1240.4, "$1,240"),
            (999.6, "$1,000"),
            (1_234_567.0, "$1,234,567"),
        ] {
            assert_eq!(money(dollars), text);
        }
    }
}
