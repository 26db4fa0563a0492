//! Logs of the Trainer, and how it writes a step.

use crate::line_formats::huggingface::HuggingFace;
use crate::line_formats::samples::{PLAIN, Sampled, Written};

impl Sampled for HuggingFace {
    const LOGS: &'static [&'static str] = &[
        include_str!("../../../../tests/data/hf_msswift.log"),
        "{'loss': '2.346', 'grad_norm': '1.203', 'learning_rate': '4.9e-05', 'epoch': '0.02'}\n{'eval_loss': '2.1', 'eval_runtime': '6.1', 'epoch': '0.02'}\n",
    ];
    const WRITTEN: &'static [Written] = &[
        Written {
            line: "{⟨'loss': ¤, ⟩'grad_norm': 1.25, 'learning_rate': 4.9e-05, 'epoch': 0.02}",
            ..PLAIN
        },
        Written {
            line: "{⟨'loss': ¤, ⟩'grad_norm': 1.25, 'learning_rate': 4.9e-05, 'num_tokens': §000, 'epoch': 0.02, 'global_step/max_steps': '§/500'}",
            ..PLAIN
        },
    ];
    const OWN: &'static [Written] =
        &[Written { line: "{'loss': 2.5, 'learning_rate': 4.9e-05, 'reward': ¤, 'epoch': 0.02}", ..PLAIN }];
}
