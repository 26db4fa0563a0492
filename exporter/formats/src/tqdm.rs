//! Progress bars: ` 2%|▏         | 10/500 [00:10<08:10,  1.00s/it]`.

/// One drawing of a bar whose total is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Bar<'a> {
    /// The text before the percentage: `Loading checkpoint shards`, `Epoch 0`; empty of a bare bar.
    pub(crate) description: &'a str,
    pub(crate) n: i64,
    pub(crate) total: i64,
    /// Time since the bar began, in seconds.
    pub(crate) elapsed: i64,
    /// What the trainer put behind the rate: `loss=2.34, v_num=0`.
    pub(crate) postfix: &'a str,
    /// What follows the bar on the same line.
    pub(crate) rest: &'a str,
}

pub(crate) fn bar(text: &str) -> Option<Bar<'_>> {
    let (head, tail) = text.split_once("%|")?;
    let percent = head.bytes().rev().take_while(u8::is_ascii_digit).count();
    if percent == 0 || percent > 3 {
        return None;
    }
    let description = head[..head.len() - percent].trim().trim_end_matches(':');
    let (_, counts) = tail.split_once('|')?;
    let (n, rest) = count(counts)?;
    let (total, rest) = count(rest.strip_prefix('/')?)?;
    let (timing, rest) = rest.trim_start().strip_prefix('[')?.split_once(']')?;
    let elapsed = timing.split(['<', ',']).next().and_then(clock)?;
    let bar = Bar { description, n, total, elapsed, postfix: postfix(timing), rest: rest.trim() };
    // Downloads are drawn so, too: only a trainer has values.
    let drawn = counts.split('[').next().unwrap_or_default();
    let is_scaled = drawn.contains(|c| c == '.' || SCALES.contains(c));
    (!is_scaled || bar.postfix.contains('=')).then_some(bar)
}

/// By what `unit_scale=True` shortens counts, each a thousand times the one before.
const SCALES: &str = "kMGTP";

/// `500`, or shortened: `5.00`, `76.5k`, `1.50M`.
fn count(text: &str) -> Option<(i64, &str)> {
    let text = text.trim_start();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (shown, rest) = text.split_at(end);
    let power = rest.chars().next().and_then(|c| SCALES.find(c));
    if power.is_none() && !shown.contains('.') {
        return crate::number::integer(text);
    }
    let factor = power.map_or(1.0, |power| 1000_f64.powi(power as i32 + 1));
    let n = shown.parse::<f64>().ok()? * factor;
    Some((n.round() as i64, &rest[usize::from(power.is_some())..]))
}

/// One drawing of a bar without a total: `train: 12it [00:10,  1.15it/s, loss=2.34]`. Its total is
/// 0.
pub(crate) fn endless(text: &str) -> Option<Bar<'_>> {
    let (head, rest) = text.split_once("it [")?;
    let digits = head.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (description, n) = head.split_at(head.len() - digits);
    let (n, "") = crate::number::integer(n)? else { return None };
    let description = description.trim();
    if !(description.is_empty() || description.ends_with(':')) {
        return None;
    }
    let (timing, rest) = rest.split_once(']')?;
    let elapsed = timing.split(',').next().and_then(clock)?;
    let postfix = postfix(timing);
    Some(Bar {
        description: description.trim_end_matches(':'),
        n,
        total: 0,
        elapsed,
        postfix,
        rest: rest.trim(),
    })
}

/// What follows the rate, which is the first part with a `/` in it: `00:03<00:25, 3.50it/s,
/// loss=2.34`. NeMo's bar has none; there the postfix begins with the first part that has a name:
/// `00:30<10:00, v_num=5, reduced_train_loss=2.9`.
fn postfix(timing: &str) -> &str {
    let mut parts = timing.match_indices([',', '<']).map(|(i, _)| i + 1);
    let part = |at: usize| timing[at..].split(',').next().unwrap_or_default();
    match parts.find(|at| part(*at).contains(['/', '='])) {
        Some(at) if part(at).contains('=') => timing[at..].trim(),
        Some(at) => timing[at..].split_once(',').map_or("", |(_, postfix)| postfix.trim()),
        None => "",
    }
}

/// `08:10`, `1:02:03`, `2 days, 1:02:03` (only the clock of the last).
pub(crate) fn clock(text: &str) -> Option<i64> {
    text.trim().split(':').try_fold(0i64, |sum, part| {
        let part: i64 = part.parse().ok()?;
        sum.checked_mul(60)?.checked_add(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_bars_without_an_end() {
        let b = endless("train: 12it [00:10,  1.15it/s, loss=nan, lr=1e-5]").unwrap();
        assert_eq!(
            (b.n, b.total, b.description, b.postfix, b.elapsed),
            (12, 0, "train", "loss=nan, lr=1e-5", 10)
        );
        assert_eq!(endless("7it [00:03,  2.00it/s]").map(|b| (b.n, b.postfix)), Some((7, "")));
        for text in ["", "it [", "wait [00:10, x]", "do 12it [00:10]", "12it [x, 1it/s]"] {
            assert_eq!(endless(text), None, "{text}");
        }
    }

    #[test]
    fn reads_bars() {
        let b = bar("  2%|▏         | 10/500 [00:10<08:10,  1.00s/it]{'loss': 1}").unwrap();
        assert_eq!((b.n, b.total, b.elapsed, b.description, b.rest), (10, 500, 10, "", "{'loss': 1}"));
        let b = bar("Loading checkpoint shards: 100%|██████████| 4/4 [1:00:03<00:00,  1.2it/s]").unwrap();
        assert_eq!((b.n, b.elapsed, b.description), (4, 3603, "Loading checkpoint shards"));
        let b = bar("  0%|          | 0/94 [00:00<?, ?it/s]").unwrap();
        assert_eq!((b.n, b.total, b.postfix), (0, 94, ""));
        let b = bar("Epoch 0:  12%|█▏        | 12/100 [00:03<00:25, 3.50it/s, v_num=0, loss=2.34]").unwrap();
        assert_eq!((b.description, b.n, b.postfix), ("Epoch 0", 12, "v_num=0, loss=2.34"));
        let b = bar("Epoch 0:   1%|  | 5/1000 [00:30<10:00, v_num=5, reduced_train_loss=2.9]").unwrap();
        assert_eq!((b.n, b.postfix), (5, "v_num=5, reduced_train_loss=2.9"));
        for text in [
            "",
            "%|",
            "50%|",
            "50%||",
            "50%|#| 1/2",
            "50%|#| 1k/2k [00:01<00:01, 1.0kB/s]",
            "12it [00:10, 1.1it/s]",
        ] {
            assert_eq!(bar(text), None, "{text}");
        }
    }

    #[test]
    fn reads_counts_that_are_shortened() {
        let read = |counts: &str| {
            bar(&format!("Training:  51%|█| {counts} [00:10<00:10, 7.6kit/s, loss=nan]"))
                .map(|b| (b.n, b.total))
        };
        assert_eq!(read("76.5k/100k"), Some((76_500, 100_000)));
        assert_eq!(read("1.50M/100M"), Some((1_500_000, 100_000_000)));
        assert_eq!(read("5.00/10.0"), Some((5, 10)));
        assert_eq!(read("500/1.00k"), Some((500, 1000)));
        assert_eq!(read("500x/1.00k"), None);
    }

    proptest::proptest! {
        #[test]
        fn never_panics(a in "\\PC{0,20}", b in "[0-9/|%\\[\\]<:,é ]{0,30}") {
            let _ = (endless(&a), endless(&format!("{b}it [{a}]")), bar(&a), bar(&format!("{a}%|{b}")), bar(&format!("5%|x| {b}")));
        }
    }
}
