//! What a line says of tokens.

use super::auto;

/// The tokens, and the samples, of each line.
fn tokens(lines: &[String]) -> Vec<(Option<f64>, Option<f64>)> {
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    auto(&lines).iter().map(|e| (e.m.get("tokens"), e.m.get("samples"))).collect()
}

#[test]
fn a_counter_of_all_tokens_gives_those_of_a_step() {
    for line in ["step=§ loss=2.5 tokens=¤ lr=1e-4", "step § | loss 2.5 | total tokens: ¤ | lr 0.1"] {
        let at = |step: i64| line.replace('§', &step.to_string()).replace('¤', &(step * 65536).to_string());
        let seen = tokens(&(1..=5).map(at).collect::<Vec<_>>());
        assert_eq!((seen[0], seen[4]), ((None, None), (Some(65536.0), None)), "{line}");
        let same = |step: i64| line.replace('§', &step.to_string()).replace('¤', "65536");
        let seen = tokens(&(1..=5).map(same).collect::<Vec<_>>());
        assert_eq!((seen[0].0, seen[1].0, seen[4].0), (None, Some(65536.0), Some(65536.0)), "{line}");
    }
    let named = (1..=3).map(|s| format!("step={s} loss=2.5 tokens_per_step=65536")).collect::<Vec<_>>();
    assert_eq!(tokens(&named)[0].0, Some(65536.0), "the name says what they are");
}

#[test]
fn the_batch_of_picotron_is_counted_in_tokens() {
    let line = |s: i64, batch: &str| {
        let all = s as f64 * 1.05;
        format!(
            "[rank 0] Step: {s:<5} | Loss: 9.1234 | Global batch size: {batch:>7} | Tokens/s:  45.12K | Tokens/s/GPU:   5.64K | Tokens: {all:6.2}M | MFU: 38.12% | Memory usage:  45.12GB"
        )
    };
    let seen = tokens(&(1..=4).map(|s| line(s, "1.05M")).collect::<Vec<_>>());
    assert_eq!(seen, [(Some(1.05e6), None); 4]);
    let seen = tokens(&(1..=4).map(|s| line(s, "512")).collect::<Vec<_>>());
    assert_eq!((seen[3].0.map(f64::round), seen[3].1), (Some(1.05e6), Some(512.0)), "of samples");
}

#[test]
fn the_words_per_second_of_fairseq_are_those_of_the_job() {
    let rates = |line: &str| {
        let e = super::read(&[line]).pop().unwrap();
        (e.m.get("tokens_per_second"), e.m.get("tokens_per_second_per_gpu"))
    };
    let head = "| epoch 001:    100 / 5000 loss=9.125, ppl=558.3, wps=12345";
    for rest in [", ups=1.2, wpb=10000", ", ups=1.2", ", wpb=10000"] {
        let line = format!("{head}{rest}, num_updates=100, lr=1e-05");
        assert_eq!(rates(&line), (Some(12345.0), None), "{line}");
    }
    assert_eq!(rates(&format!("{head}, num_updates=100")), (None, Some(12345.0)));
    let json = "2026-05-29 03:52:45 | INFO | train_inner | {\"epoch\": 1, \"loss\": \"2.5\", \"wps\": \"35012.2\", \"ups\": \"1.9\", \"num_updates\": \"200\", \"lr\": \"1e-05\"}";
    assert_eq!(auto(&[json])[0].m.get("tokens_per_second"), Some(35012.2));
    assert_eq!(rates("step: 5 loss: 2.5 tps: 700 ups: 1.2"), (None, Some(700.0)), "of another name");
}
