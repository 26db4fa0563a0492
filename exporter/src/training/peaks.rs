//! Peak FLOP/s of accelerators, as data. All figures are dense, each with its source. A device that
//! is not in the table has no peak and no MFU: with a guessed denominator, a healthy H200 gets
//! reported at 140 %.

use std::sync::LazyLock;

const TABLE: &str = include_str!("peaks.csv");

/// Some devices that have a peak, for messages.
const EXAMPLES: &str = "H100, H200, B200, GB200, A100, L40S, MI300X, TPU v5p";

/// The number format of the matrix products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    Bf16,
    Fp16,
    Fp8,
    Tf32,
    /// FP32 without tensor cores. The table has no peak for it, and that of TF32 is eight times too
    /// high.
    Fp32,
}

impl Dtype {
    /// The spellings that [`Self::parse`] accepts, for messages.
    const SPELLINGS: &str = "bf16, bfloat16, fp16, float16, fp8, float8, tf32, fp32, float32";

    /// Reads the spellings of frameworks: `torch.bfloat16`, `bf16-mixed`, `fp8_e4m3`, `float16`.
    pub fn parse(text: &str) -> Option<Self> {
        let t = text.to_ascii_lowercase();
        let any = |names: &[&str]| names.iter().any(|n| t.contains(n));
        if any(&["fp8", "float8", "e4m3", "e5m2"]) {
            Some(Self::Fp8)
        } else if any(&["bf16", "bfloat16"]) {
            Some(Self::Bf16)
        } else if any(&["fp16", "float16", "half"]) || matches!(t.as_str(), "16-mixed" | "16-true") {
            Some(Self::Fp16)
        } else if any(&["tf32", "tensorfloat32"]) {
            Some(Self::Tf32)
        } else if any(&["fp32", "float32"]) || t == "32-true" {
            Some(Self::Fp32)
        } else {
            None
        }
    }
}

#[derive(Debug)]
struct Row {
    words: Vec<&'static str>,
    not: Vec<&'static str>,
    /// TFLOP/s, indexed by [`Dtype`].
    peaks: [Option<f64>; 4],
}

static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let lines = TABLE.lines().filter(|l| !l.starts_with('#')).skip(1);
    lines.filter_map(parse_row).collect()
});

fn parse_row(line: &'static str) -> Option<Row> {
    let mut cells = line.splitn(7, ',');
    let words = |cell: &'static str| cell.split_whitespace().collect::<Vec<_>>();
    let (matches, not) = (words(cells.next()?), words(cells.next()?));
    let mut peaks = [None; 4];
    for peak in &mut peaks {
        *peak = cells.next()?.parse().ok();
    }
    cells.next().map(|_source| Row { words: matches, not, peaks })
}

/// Dense peak in FLOP/s of the device called `name` (as NVML, JAX or the trainer spells it) in
/// `dtype`.
pub fn peak(name: &str, dtype: Dtype) -> Option<f64> {
    row(name)?.peaks.get(dtype as usize).copied().flatten().map(|tera| tera * 1e12)
}

fn row(name: &str) -> Option<&'static Row> {
    let upper = name.to_ascii_uppercase();
    let words: Vec<&str> =
        upper.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty()).collect();
    // A MIG slice has only a part of the GPU's peak, and the name does not give which.
    if words.contains(&"MIG") {
        return None;
    }
    let has = |word: &&str| words.contains(word);
    ROWS.iter().find(|r| r.words.iter().all(has) && !r.not.iter().any(has))
}

/// Checks a configured number format; `Some` is the error. The format matters only for MFU.
pub fn check_dtype(text: &str) -> Option<String> {
    let unknown = Dtype::parse(text).is_none();
    unknown.then(|| format!("unknown number format {text:?}; known are {}", Dtype::SPELLINGS))
}

/// Checks a configured device; `Some` is the error.
pub fn check_name(name: &str) -> Option<String> {
    let unknown = row(name).is_none();
    unknown.then(|| {
        format!("no peak is known of {name:?}, so there would be no MFU; known are {EXAMPLES} and others of their kind")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_whole() {
        let lines = TABLE.lines().filter(|l| !l.starts_with('#')).skip(1);
        for line in lines.clone() {
            let row = parse_row(line).unwrap_or_else(|| panic!("{line}"));
            assert!(!row.words.is_empty() && row.peaks.iter().any(Option::is_some), "{line}");
            let source = line.splitn(7, ',').nth(6).unwrap();
            assert!(source.len() > 8, "a source for {line}");
            assert!(row.words.iter().all(|w| *w == w.to_ascii_uppercase()), "{line}");
        }
        assert_eq!(ROWS.len(), lines.count());
    }

    #[test]
    fn names_as_drivers_and_frameworks_spell_them() {
        let tera = |name| peak(name, Dtype::Bf16).map(|p| p / 1e12);
        for (name, want) in [
            ("NVIDIA H100 80GB HBM3", Some(989.4)),
            ("H100", Some(989.4)),
            ("NVIDIA H100 NVL", Some(835.5)),
            ("NVIDIA H100 PCIe", Some(756.0)),
            ("NVIDIA H200", Some(989.4)),
            ("NVIDIA H20", Some(148.0)),
            ("NVIDIA GH200 480GB", Some(989.4)),
            ("NVIDIA B200", Some(2250.0)),
            ("NVIDIA GB200", Some(2500.0)),
            ("NVIDIA A100-SXM4-80GB", Some(312.0)),
            ("NVIDIA A10G", Some(125.0)),
            ("NVIDIA L40S", Some(362.0)),
            ("NVIDIA L4", Some(121.0)),
            ("NVIDIA GeForce RTX 4090", Some(165.2)),
            ("AMD Instinct MI300X", Some(1307.4)),
            ("TPU v5 lite", Some(197.0)),
            // JAX names v5p like this, and v7 without a space; a v7 chip is two devices.
            ("TPU v5", Some(459.0)),
            ("TPU7x", Some(1153.5)),
            ("TPU v4 lite", None),
            // There is no guess for a laptop part, a slice, a part without the format or an unknown
            // part.
            ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
            ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
            ("Tesla V100-SXM2-32GB", None),
            ("NVIDIA L40", None),
            ("NVIDIA H1000", None),
            ("", None),
        ] {
            assert_eq!(tera(name), want, "{name}");
        }
        assert_eq!(peak("Tesla V100-SXM2-32GB", Dtype::Fp16), Some(125e12));
        assert_eq!(peak("H100", Dtype::Tf32), Some(494.7e12));
        assert_eq!(peak("H100", Dtype::Fp32), None, "no tensor core does it");
    }

    #[test]
    fn dtypes() {
        for (text, want) in [
            ("torch.bfloat16", Some(Dtype::Bf16)),
            ("bf16-mixed", Some(Dtype::Bf16)),
            ("fp8", Some(Dtype::Fp8)),
            ("float16", Some(Dtype::Fp16)),
            ("float32", Some(Dtype::Fp32)),
            ("torch.tf32", Some(Dtype::Tf32)),
            ("16-true", Some(Dtype::Fp16)),
            ("32-true", Some(Dtype::Fp32)),
            ("int8", None),
            ("bf17", None),
        ] {
            assert_eq!(Dtype::parse(text), want, "{text}");
        }
    }

    #[test]
    fn messages_name_what_is_known() {
        assert!(Dtype::SPELLINGS.split(", ").all(|text| check_dtype(text).is_none()));
        assert!(EXAMPLES.split(", ").all(|name| check_name(name).is_none()));
        assert!(check_dtype("bf17").is_some_and(|e| e.contains("bfloat16")));
        assert!(check_name("H1000").is_some_and(|e| e.contains("H100,")));
    }
}
