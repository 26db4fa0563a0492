//! Time stamps at the start of lines. Reading a clock is not done here: a stamp is text until it is
//! read.

/// A date and time as it was printed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Stamp {
    /// With its zone: Unix seconds.
    Exact(f64),
    /// Local time of a machine whose zone the text does not contain, as if it were UTC.
    Local(f64),
}

impl Stamp {
    pub(crate) fn unix(self, utc_offset: f64) -> f64 {
        match self {
            Self::Exact(s) => s,
            Self::Local(s) => s - utc_offset,
        }
    }
}

/// Reads `2026-05-29 03:52:45.118201`, `2021-05-27 19:49:22,947`, `2026-04-01T16:06:12.572Z`,
/// `…+02:00` at the start of `text`, and returns what follows.
pub(crate) fn lead(text: &str) -> Option<(Stamp, &str)> {
    let b = text.as_bytes();
    let number = |from: usize, len: usize| -> Option<i64> {
        let part = b.get(from..from + len)?;
        part.iter().try_fold(0, |n, c| c.is_ascii_digit().then(|| n * 10 + i64::from(c - b'0')))
    };
    let is = |at: usize, any: &[u8]| b.get(at).is_some_and(|c| any.contains(c));
    let (year, month, day) = (number(0, 4)?, number(5, 2)?, number(8, 2)?);
    let (hour, minute, second) = (number(11, 2)?, number(14, 2)?, number(17, 2)?);
    let separated = is(4, b"-/") && is(7, b"-/") && is(10, b"T ") && is(13, b":") && is(16, b":");
    let sensible = (1970..3000).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    if !separated || !sensible {
        return None;
    }
    let mut at = 19;
    let mut seconds =
        (days_from_civil(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second) as f64;
    if is(at, b".,") {
        let len = b[at + 1..].iter().take_while(|c| c.is_ascii_digit()).count();
        if len > 0 {
            seconds += format!("0.{}", &text[at + 1..at + 1 + len]).parse().unwrap_or(0.0);
            at += 1 + len;
        }
    }
    if is(at, b"Z") {
        return Some((Stamp::Exact(seconds), &text[at + 1..]));
    }
    if is(at, b"+-") {
        let colon = usize::from(is(at + 3, b":"));
        if let (Some(h), Some(m)) = (number(at + 1, 2), number(at + 3 + colon, 2)) {
            let ahead = (h * 3600 + m * 60) as f64 * if b[at] == b'-' { -1.0 } else { 1.0 };
            return Some((Stamp::Exact(seconds - ahead), &text[at + 5 + colon..]));
        }
    }
    Some((Stamp::Local(seconds), &text[at..]))
}

/// Reads `10/17/2025 16:31:56`, month first, as some loggers are configured to print it.
pub(crate) fn american(text: &str) -> Option<Stamp> {
    let (date, clock) = text.get(..10).zip(text.get(11..19))?;
    let iso = format!("{}-{}-{} {clock}", &date.get(6..)?, &date.get(..2)?, &date.get(3..5)?);
    let separated = date.bytes().filter(|b| *b == b'/').count() == 2;
    lead(&iso).map(|(stamp, _)| stamp).filter(|_| separated)
}

/// Unix seconds; milli-, micro- and nanoseconds are recognised by their size.
pub(crate) fn epoch(n: f64) -> Option<f64> {
    let n = [1.0, 1e3, 1e6, 1e9].iter().map(|d| n / d).find(|s| *s < 1e11)?;
    (n > 1e8).then_some(n)
}

/// Days since 1970-01-01 in the Gregorian calendar (the era arithmetic counts years from March, so
/// that the leap day is the last of its year).
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let y = if month <= 2 { year - 1 } else { year };
    let era = y.div_euclid(400);
    let of_era = y.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_stamps_of_loggers() {
        for (text, want) in [
            ("1970-01-01 00:00:00 x", (Stamp::Local(0.0), " x")),
            ("2021-05-27 19:49:22,947] [INFO]", (Stamp::Local(1622144962.947), "] [INFO]")),
            ("2026-05-29 03:52:45.118201] i", (Stamp::Local(1780026765.118201), "] i")),
            ("2026-04-01T16:06:12.572Z", (Stamp::Exact(1775059572.572), "")),
            ("2026-04-01T18:06:12+02:00 stdout", (Stamp::Exact(1775059572.0), " stdout")),
            ("2026-04-01T11:36:12-0430 x", (Stamp::Exact(1775059572.0), " x")),
            ("2024-02-29 12:00:00", (Stamp::Local(1709208000.0), "")),
            ("2026/04/01 16:06:12, x", (Stamp::Local(1775059572.0), ", x")),
        ] {
            assert_eq!(lead(text), Some(want), "{text}");
        }
        for text in
            ["", "2026-13-01 00:00:00", "2026-05-29", "iteration", "20260529 03:52:45", "é026-05-29 03:52:45"]
        {
            assert_eq!(lead(text), None, "{text}");
        }
        assert_eq!(Stamp::Local(7200.0).unix(3600.0), 3600.0);
        assert_eq!(american("10/17/2025 16:31:56 x"), Some(Stamp::Local(1760718716.0)));
        for text in ["10-17-2025 16:31:56", "17/10/2025 16:31:56", "10/17 16:31:56", "é/17/2025 16:31:56", ""]
        {
            assert_eq!(american(text), None, "{text}");
        }
    }

    #[test]
    fn units_of_the_epoch() {
        for (n, want) in [
            (1780026765.5, Some(1780026765.5)),
            (1780026765500.0, Some(1780026765.5)),
            (1780026765500000.0, Some(1780026765.5)),
            (1780026765500000000.0, Some(1780026765.5)),
            (12.0, None),
            (f64::NAN, None),
            (-1780026765.5, None),
        ] {
            assert_eq!(epoch(n), want, "{n}");
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text in "[0-9TZ:.,+ \\-é]{0,40}") {
            let _ = (lead(&text), american(&text));
            let _ = lead(&format!("2026-05-29 03:52:45{text}"));
        }
    }
}
