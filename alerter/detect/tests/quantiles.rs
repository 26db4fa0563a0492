//! What the comments say of chance, computed once more.
//!
//! A threshold in sigmas, a bound of a CUSUM and a number of votes each have a comment that says
//! how often chance alone passes them. Every such number is in [`STATED`] with the formula that it
//! follows from. The constants are read out of the sources, so a changed constant makes its comment
//! fail here.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

use std::f64::consts::{LN_10, PI, SQRT_2};
use std::path::{Path, PathBuf};

use regex_lite::Regex;
use statrs::distribution::{Binomial, Continuous, ContinuousCDF, DiscreteCDF, Normal, Poisson};

/// File, words of one of its comments of which the last number is stated (or the name of a
/// constant), and what it is by computation.
type Stated = (&'static str, &'static str, fn(&Source) -> f64);

const STATED: &[Stated] = &[
    ("stats/block.rs", "INNER_SPREAD", |_| mean_of_order(7, 8) - mean_of_order(2, 8)),
    ("stats/drift.rs", "31,600 values of a normal distribution", |c| 1.0 / above(c.get("K"))),
    ("stats/drift.rs", "10⁸⁶ readings", |c| siegmund(c.get("K"), c.get("H"))),
    ("stats/baseline_share.rs", "9·10⁶ readings", |c| lorden(c, 0.02)),
    ("stats/baseline_share.rs", "8·10²¹ with one", |c| lorden(c, 0.01)),
    ("stats/series.rs", "of independent normal blocks in 10⁶", |c| siegmund(0.5, c.get("H"))),
    ("stats/series.rs", "8·10⁶ values", |c| 8.0 * siegmund(0.5, c.get("H"))),
    ("stats/series.rs", "0.41 of it", |_| sigma_of_median_of_8()),
    ("stats/series.rs", "0.27 % and", |c| 2.0 * above(c.get("LEAST"))),
    ("stats/series.rs", "4.6 % of a normal distribution", |c| 2.0 * above(c.get("BACK"))),
    ("stats/robust.rs", "1.2 % of a normal distribution", |c| 2.0 * above(c.get("K"))),
    ("stats/robust.rs", "0.794, so", |c| mean_clipped(c.get("K"))),
    ("stats/robust.rs", "1.009 of its standard", |c| mean_clipped(c.get("K")) / c.get("B")),
    ("stats/median.rs", "MAD_TO_SIGMA", |_| 1.0 / quantile(0.75)),
    ("stats/level.rs", "√(1.95/0.05) = 6.2", |c| inflation(c.get("MAX_PHI"))),
    ("stats/level.rs", "√(1.8/0.2) = 3", |c| inflation(c.get("FIRST_PHI"))),
    ("stats/plateau.rs", "CORRELATION", |_| inflation(0.38)),
    ("detector/shared.rs", "1.13 sigmas", |_| mean_difference()),
    ("detector/shared.rs", "14 sigmas", |c| c.get("MOVES") * mean_difference()),
    ("detectors/loss_spike.rs", "10³⁶)", |c| siegmund(c.get("DRIFT"), c.get("h"))),
    ("detectors/loss_spike.rs", "4·10⁻⁵¹", |c| above(c.get("single_z"))),
    ("detectors/loss_spike.rs", "0.6 % of a normal distribution", |c| above(c.get("DRIFT"))),
    ("detectors/loss_spike.rs", "10⁻⁹ of a normal distribution", |c| above(c.get("SPARSE_Z"))),
    ("detectors/loss_spike.rs", "3·10³⁴", |c| above(3.0).powf(-c.get("MOVED"))),
    ("detectors/loss_spike.rs", "NORMAL_TAIL", |_| quantile(0.98)),
    ("detectors/loss_spike.rs", "TAIL_DECAY", |_| 1.1_f64.powf(-0.02 / 0.98)),
    ("detectors/loss_shift.rs", "10¹⁵ blocks", |c| siegmund(c.get("DRIFT"), c.get("h"))),
    ("detectors/loss_shift.rs", "3·10⁻⁵ of a normal distribution", |c| above(c.get("sigmas"))),
    ("detectors/loss_shift.rs", "3·10⁻⁷ of a normal distribution", |c| above(c.get("SMALL_SIGMAS"))),
    ("detectors/early_divergence.rs", "1.13 sigmas", |_| mean_difference()),
    ("detectors/early_divergence.rs", "9 sigmas of a line", |c| c.get("SINGLE_MOVES") * mean_difference()),
    ("detectors/early_divergence.rs", "2.8 sigmas of a line", |c| c.get("MOVES") * mean_difference()),
    ("detectors/early_divergence.rs", "0.24 % of a normal distribution", |c| {
        above(c.get("MOVES") * mean_difference())
    }),
    ("detectors/grad_spike.rs", "3·10⁻⁷ lies", |c| above(c.get("hit_z"))),
    ("detectors/grad_spike.rs", "6·10⁻¹⁶ lies", |c| above(c.get("spike_z"))),
    ("detectors/grad_spike.rs", "2.3 % of a normal distribution", |c| above(c.get("BACK"))),
    ("detectors/grad_spike.rs", "4·10⁻¹² of the windows", |c| {
        at_least(c.get("page_hits"), c.get("WINDOW"), SPIKES)
    }),
    ("detectors/grad_spike.rs", "6·10⁻⁶ hold", |c| at_least(2.0, c.get("WINDOW"), SPIKES)),
    ("detectors/grad_spike.rs", "with a chance of 3·10⁻⁸", |c| {
        counts(fading(c, "unstable_ticket"), c.get("MEMORY") * SPIKES)
    }),
    ("detectors/grad_spike.rs", "has 4 with a chance of 0.6 %", |c| {
        counts(fading(c, "unstable_ticket"), c.get("unstable_ticket") / c.get("unstable_ratio"))
    }),
    ("detectors/grad_spike.rs", "it is 0.06 %", |c| {
        counts(fading(c, "unstable_page"), c.get("unstable_page") / c.get("unstable_ratio"))
    }),
    ("detectors/nonfinite.rs", "7·10⁻⁶ of the windows", |c| {
        at_least(c.get("grad_samples"), c.get("GRAD_WINDOW"), 1.0 / 2000.0)
    }),
    ("detectors/nonfinite.rs", "with a chance of 8·10⁻⁸", |c| {
        counts(fading(c, "halvings_ticket"), c.get("SCALE_MEMORY") / 2000.0)
    }),
    ("detectors/nonfinite.rs", "One step in 64 is 1.6 %", |c| c.get("SKIPPED_RATE")),
    ("detectors/nonfinite.rs", "so 5 % are 4", |c| (c.get("skipped_ticket") / c.get("SKIPPED_RATE")).ceil()),
    ("detectors/nonfinite.rs", "with a chance of 7·10⁻⁷", |c| {
        counts(4.0, 1.0 / c.get("SKIPPED_RATE") / 1000.0)
    }),
    ("detectors/lr_coupling.rs", "4.5 of its standard deviation", |c| {
        c.get("TREND") / kendall_sigma(c.get("BLOCKS"))
    }),
    ("detectors/lr_coupling.rs", "3·10⁻⁶ of a normal distribution", |c| {
        above(c.get("TREND") / kendall_sigma(c.get("BLOCKS")))
    }),
    ("detectors/lr_coupling.rs", "4·10⁻⁷ of independent", |_| {
        above(3.0 * quantile(0.75) / sigma_of_median_of_8())
    }),
    ("detectors/layers.rs", "6·10⁻¹⁶ lies", |c| above(c.get("SIGMAS"))),
    ("detectors/learning.rs", "0.13 % of a normal distribution", |c| above(c.get("plateau_sigmas"))),
    ("detectors/eval_gap.rs", "0.5 of that scale", |_| level_of_evaluations()),
    ("detectors/eval_gap.rs", "the lowest of hundreds lies 1.3", |_| {
        -mean_of_order(1, 200) * level_of_evaluations()
    }),
    ("detectors/eval_gap.rs", "5.7 standard deviations", |c| rise_of_evaluations(c)),
    ("detectors/eval_gap.rs", "6·10⁻⁹ of a normal distribution", |c| above(rise_of_evaluations(c))),
    ("detectors/generic.rs", "2·10⁻⁹ lies", |c| 2.0 * above(c.get("sigmas"))),
    ("detectors/data_wait.rs", "ARL₀ = 10⁶", |c| siegmund(0.5, c.get("H"))),
    ("detectors/data_wait.rs", "0.35 % of the windows", |c| at_least(c.get("SAME_RANK"), 32.0, 0.5)),
    ("detectors/data_wait.rs", "one of four in 4·10⁻⁹", |c| at_least(c.get("SAME_RANK"), 32.0, 0.25)),
    ("detectors/mfu_droop.rs", "8·10⁵ blocks", |c| siegmund(c.get("DRIFT") / 0.01, c.get("h"))),
    ("detectors/mfu_droop.rs", "0.67 of their scale", |_| sigma_of_median_of_3()),
    ("detectors/mfu_droop.rs", "5.2 and", |c| c.get("ticket_sigmas") / sigma_of_median_of_3()),
    ("detectors/mfu_droop.rs", "6.7 of its own", |c| c.get("page_sigmas") / sigma_of_median_of_3()),
    ("detectors/mfu_droop.rs", "9·10⁻⁸ and", |c| above(c.get("ticket_sigmas") / sigma_of_median_of_3())),
    ("detectors/mfu_droop.rs", "9·10⁻¹² of a normal distribution", |c| {
        above(c.get("page_sigmas") / sigma_of_median_of_3())
    }),
    ("detectors/mfu_droop.rs", "1.3 % and", |c| lasting(c, "ticket_sigmas")),
    ("detectors/mfu_droop.rs", "9·10⁻⁵", |c| lasting(c, "page_sigmas")),
    ("detectors/mfu_droop.rs", "of 8 independent normal values it is 0.41", |_| sigma_of_median_of_8()),
    ("detectors/slow_start.rs", "0.41 of them", |_| sigma_of_median_of_8()),
    ("detectors/step_time_jitter.rs", "0.12 % of the windows", |c| {
        at_least(c.get("slow_steps"), c.get("WINDOW"), 1.0 / 20.0)
    }),
    ("detectors/gc_tail.rs", "5.0 of its standard deviation", |c| {
        c.get("kendall") / kendall_sigma(c.get("RECENT"))
    }),
    ("detectors/gc_tail.rs", "3·10⁻⁷ lies above", |c| {
        above(c.get("kendall") / kendall_sigma(c.get("RECENT")))
    }),
    ("detectors/gc_tail.rs", "80 of the medians 3.6", |c| {
        c.get("kendall_medians") / kendall_sigma(c.get("MEDIANS"))
    }),
    ("detectors/gc_tail.rs", "1.6·10⁻⁴", |c| {
        above(c.get("kendall_medians") / kendall_sigma(c.get("MEDIANS")))
    }),
    ("detectors/stall.rs", "with a chance of 0.8 %", |c| {
        at_least(c.get("EQUAL") - 1.0, c.get("KEPT"), 2.0 * c.get("TOLERANCE") / LN_10)
    }),
    ("detectors/straggler/picture.rs", "36 % of the looks", |c| {
        at_least(c.get("SHORT_SLOW"), c.get("SHORT"), 0.5)
    }),
    ("detectors/straggler/picture.rs", "24 of 32 in 0.35 %", |c| {
        at_least(c.get("LONG_SLOW"), c.get("LONG"), 0.5)
    }),
    ("detectors/straggler/picture.rs", "10⁻⁹ of a normal distribution", |c| above(c.get("FAR"))),
    ("detectors/straggler/words.rs", "6·10⁻¹⁶ of a normal distribution", |c| above(c.get("APART"))),
    ("detectors/throttle.rs", "14 % of the windows", |c| at_least(c.get("WITH_REASON"), c.get("KEPT"), 0.5)),
    ("detectors/throttle.rs", "all 8 in 0.4 %", |c| at_least(c.get("WITHOUT"), c.get("KEPT"), 0.5)),
    ("detectors/ecc_trend.rs", "fewer than 7.5", |c| c.get("floor") / c.get("times")),
    ("detectors/ecc_trend.rs", "has 60 with a chance of 2·10⁻³³", |c| {
        counts(c.get("floor"), c.get("floor") / c.get("times"))
    }),
    ("run/rank_compute_time.rs", "MEDIAN_ERROR", |_| (PI / 2.0).sqrt() / 32.0_f64.sqrt()),
    ("run/rank_compute_time.rs", "10⁻⁹ lies above", |c| above(c.get("FAR"))),
    ("run/rank_compute_time.rs", "one such reading in 250,000 steps", |c| {
        1.0 / (4096.0 * above(c.get("FAR")))
    }),
    ("run/save_windows.rs", "above 2.5 in 3·10⁻⁷", |c| above(c.get("SIGMAS") * c.get("KNOWN").sqrt())),
    ("run/save_stairs.rs", "0.6 % of a normal distribution", |c| above(c.get("RISE"))),
    ("run/save_stairs.rs", "in a row in 1.5·10⁻⁹", |c| above(c.get("RISE")).powf(c.get("RISES"))),
    ("run/rank_loss.rs", "1.5·10⁻²³ beyond", |c| 2.0 * above(c.get("FAR"))),
];

/// Spikes of a step of the 16 healthy runs that `grad_spike.rs` counts.
const SPIKES: f64 = 64.0 / 290_621.0;

/// A file of the crate: its comments, each as one line, and its code.
struct Source {
    name: String,
    comments: String,
    code: String,
}

impl Source {
    fn read(name: &str) -> Self {
        let text = text(&root().join(name));
        let (mut comments, mut code, mut follows) = (String::new(), String::new(), false);
        for line in text.lines().take_while(|line| *line != "mod tests {") {
            let words = line.trim_start().strip_prefix("//").map(|rest| rest.trim_start_matches(['/', '!']));
            if let Some(words) = words {
                comments.push_str(if follows { " " } else { "\n" });
                comments.push_str(words.trim());
            } else {
                code.push_str(line);
                code.push('\n');
            }
            follows = words.is_some();
        }
        Self { name: name.to_owned(), comments, code }
    }

    /// The literal of a constant, or of a setting in its `Default`: `7.0`, or `1.0 / 7.0`.
    fn literal(&self, constant: &str) -> Option<&str> {
        if !constant.chars().all(|c| c == '_' || c.is_ascii_alphabetic()) {
            return None;
        }
        let number = r"([0-9][0-9._]*(?: / [0-9.]+)?)";
        let of = Regex::new(&format!(r"\b{constant}: (?:[a-z0-9]+ = )?{number}[;, ]")).unwrap();
        of.captures(&self.code).map(|found| found.get(1).unwrap().as_str())
    }

    fn get(&self, constant: &str) -> f64 {
        let literal = self.literal(constant).unwrap_or_else(|| panic!("{} has no {constant}", self.name));
        let mut parts = literal.split(" / ").map(|part| part.replace('_', "").parse::<f64>().unwrap());
        let first = parts.next().unwrap();
        parts.fold(first, |a, b| a / b)
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

#[expect(clippy::disallowed_methods, reason = "it reads the sources, not the engine")]
fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// A number as a comment writes it: `31,600`, `0.6 %`, `4·10⁻⁵¹`, `10³⁶`.
struct Number {
    value: f64,
    /// Digits that are stated; none of a bare power of ten.
    digits: i32,
}

const NUMBER: &str = r"(?:([0-9][0-9.,_]*[0-9]|[0-9])( %|·10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)|([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+))?)";

fn last_number(words: &str) -> Number {
    let found = Regex::new(NUMBER).unwrap().captures_iter(words).last();
    let found = found.unwrap_or_else(|| panic!("no number: {words}"));
    let plain: String = found[1].chars().filter(|c| !matches!(c, ',' | '_')).collect();
    let exponent = |i: usize| found.get(i).map(|e| exponent(e.as_str()));
    if let Some(power) = exponent(4) {
        assert_eq!(plain, "10", "{words}");
        return Number { value: 10.0_f64.powi(power), digits: 0 };
    }
    let unit = if found.get(2).is_some_and(|unit| unit.as_str() == " %") { 0.01 } else { 1.0 };
    let value = plain.parse::<f64>().unwrap() * unit * 10.0_f64.powi(exponent(3).unwrap_or(0));
    let significant = plain.replace('.', "").trim_start_matches('0').trim_end_matches('0').len();
    Number { value, digits: i32::try_from(significant).unwrap() }
}

fn exponent(raised: &str) -> i32 {
    let digit = |c: char| "⁰¹²³⁴⁵⁶⁷⁸⁹".chars().position(|d| d == c);
    let digits = raised.chars().filter_map(digit).fold(0, |n, d| 10 * n + i32::try_from(d).unwrap());
    if raised.starts_with('⁻') { -digits } else { digits }
}

impl Number {
    /// The computed value is this one, rounded to the digits that are stated.
    fn is(&self, computed: f64) -> bool {
        if self.digits == 0 {
            return (computed / self.value).log10().abs() < 0.5;
        }
        let unit = 10.0_f64.powi(self.value.log10().floor() as i32 - self.digits + 1);
        (computed - self.value).abs() <= 0.501 * unit
    }
}

#[test]
fn every_stated_chance_is_what_it_is_said_to_be() {
    let wrong = STATED.iter().filter_map(|(file, words, computed)| {
        let source = Source::read(file);
        let said = match source.literal(words) {
            Some(literal) => last_number(literal),
            None if source.comments.contains(words) => last_number(words),
            None => return Some(format!("{file} does not say: {words}")),
        };
        let computed = computed(&source);
        (!said.is(computed)).then(|| format!("{file}: {words}: it is {computed:e}"))
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A probability in a comment is written as a power of ten, or as a share of a normal distribution.
#[test]
fn no_chance_is_stated_without_its_formula() {
    let marks = Regex::new(r"10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+|normal distribution").unwrap();
    let mut names = Vec::new();
    files(&root(), "", &mut names);
    assert!(names.len() > 90, "{} files", names.len());
    let unproven = names.iter().flat_map(|name| {
        let comments = Source::read(name).comments;
        let rows = STATED.iter().filter(|(file, ..)| file == name);
        let proven: Vec<_> = rows
            .flat_map(|(_, words, _)| comments.match_indices(words).map(|(at, words)| at..at + words.len()))
            .collect();
        let near = |at: usize| proven.iter().any(|span| span.start <= at + 40 && at < span.end + 40);
        let exact = |at: usize| proven.iter().any(|span| span.contains(&at));
        let bare = marks.find_iter(&comments).filter(|mark| {
            if mark.as_str().starts_with("10") { !exact(mark.start()) } else { !near(mark.start()) }
        });
        bare.map(|mark| format!("{name}: {}", sentence(&comments, mark.start()))).collect::<Vec<_>>()
    });
    let unproven: Vec<String> = unproven.collect();
    assert!(unproven.is_empty(), "{unproven:#?}");
}

/// The words round a place.
fn sentence(comments: &str, at: usize) -> String {
    let from = comments[..at].rfind(['\n', ':']).map_or(0, |i| i + 1);
    comments[from..].chars().take(100).collect()
}

#[expect(clippy::disallowed_methods, reason = "it reads the sources, not the engine")]
fn files(dir: &Path, below: &str, out: &mut Vec<String>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("{below}{}", path.file_name().unwrap().to_str().unwrap());
        if path.is_dir() {
            files(&path, &format!("{name}/"), out);
        } else if !["tests.rs", "testing.rs"].iter().any(|tests| name.ends_with(tests)) {
            out.push(name);
        }
    }
}

/// Of a normal distribution, above so many sigmas.
fn above(sigmas: f64) -> f64 {
    Normal::standard().sf(sigmas)
}

fn quantile(share: f64) -> f64 {
    Normal::standard().inverse_cdf(share)
}

/// That of so many independent trials, or more, succeed.
fn at_least(successes: f64, trials: f64, chance: f64) -> f64 {
    Binomial::new(chance, trials as u64).unwrap().sf(successes as u64 - 1)
}

/// That there are so many, or more, where the mean is another.
fn counts(least: f64, mean: f64) -> f64 {
    Poisson::new(mean).unwrap().sf(least as u64 - 1)
}

/// Events that a memory needs to hold so many: each of them fades until the next.
fn fading(c: &Source, threshold: &str) -> f64 {
    c.get(threshold).floor() + 1.0
}

/// Samples to a false alarm of a CUSUM (Siegmund, "Sequential Analysis", 1985): the formula in
/// `stats/cusum.rs`.
fn siegmund(k: f64, h: f64) -> f64 {
    let a = 2.0 * k * (h + 1.166);
    (a.exp() - a - 1.0) / (2.0 * k * k)
}

/// The least mean time to a false alarm of the CUSUM in `stats/baseline_share.rs`, whose readings
/// have this standard deviation (Lorden 1971).
fn lorden(c: &Source, sigma: f64) -> f64 {
    let (half, cap, bound) = (c.get("HALF"), c.get("CAP"), c.get("H"));
    let score = |z: f64| ((sigma * z - half) / half).clamp(-cap, cap);
    let grows = |theta: f64| expected(|z| (theta * score(z)).exp()) > 1.0;
    let (mut low, mut high) = (1e-3, 10.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if grows(middle) { high = middle } else { low = middle }
    }
    (low * bound).exp()
}

/// Standard deviation of Kendall's S of so many values without a trend.
fn kendall_sigma(n: f64) -> f64 {
    (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt()
}

/// What a lag-1 correlation does to the standard deviation of a mean.
fn inflation(phi: f64) -> f64 {
    ((1.0 + phi) / (1.0 - phi)).sqrt()
}

/// Mean distance of two independent values, in sigmas.
fn mean_difference() -> f64 {
    2.0 / PI.sqrt()
}

/// Mean distance from the middle that is bounded.
fn mean_clipped(bound: f64) -> f64 {
    expected(|z| z.abs().min(bound))
}

const GRID: i32 = 8000;

/// Mean of a function of a normal value.
fn expected(f: impl Fn(f64) -> f64) -> f64 {
    let normal = Normal::standard();
    let width = 20.0 / f64::from(GRID);
    (0..=GRID).map(|i| f64::from(i) * width - 10.0).map(|z| f(z) * normal.pdf(z) * width).sum()
}

/// Mean of the `k`-th of `n` independent values in order.
fn mean_of_order(k: i32, n: i32) -> f64 {
    let normal = Normal::standard();
    let ways = f64::from(k) * choose(n, k);
    ways * expected(|z| z * normal.cdf(z).powi(k - 1) * normal.sf(z).powi(n - k))
}

fn choose(n: i32, k: i32) -> f64 {
    (0..k).map(|i| f64::from(n - i) / f64::from(i + 1)).product()
}

/// Standard deviation of the median of three independent values, in theirs.
fn sigma_of_median_of_3() -> f64 {
    let normal = Normal::standard();
    expected(|z| 6.0 * z * z * normal.cdf(z) * normal.sf(z)).sqrt()
}

/// The same of eight, the mean of the fourth and the fifth.
fn sigma_of_median_of_8() -> f64 {
    const CELLS: usize = 600;
    let normal = Normal::standard();
    let width = 12.0 / CELLS as f64;
    let cells: Vec<(f64, f64, f64)> = (0..CELLS)
        .map(|i| (i as f64 + 0.5) * width - 6.0)
        .map(|z| (z, normal.pdf(z) * normal.cdf(z).powi(3), normal.pdf(z) * normal.sf(z).powi(3)))
        .collect();
    let ways = 8.0 * 7.0 * choose(6, 3);
    let mut square = 0.0;
    for (i, fourth) in cells.iter().enumerate() {
        for (j, fifth) in cells.iter().enumerate().skip(i) {
            let part = if i == j { 0.5 } else { 1.0 };
            square += part * fourth.1 * fifth.2 * (0.5 * (fourth.0 + fifth.0)).powi(2);
        }
    }
    (ways * square).sqrt() * width
}

/// Of the slow-down of `mfu_droop` that has lasted.
fn lasting(c: &Source, sigmas: &str) -> f64 {
    above((c.get(sigmas) - c.get("lasting_sigmas")) / sigma_of_median_of_3())
}

/// Standard deviation of the median of three evaluations, in that of a difference of two.
fn level_of_evaluations() -> f64 {
    sigma_of_median_of_3() / SQRT_2
}

/// What `eval_gap` asks for above the mean, where the lowest level is 1.3 below it.
fn rise_of_evaluations(c: &Source) -> f64 {
    (c.get("sigmas") - 1.3) / level_of_evaluations()
}
