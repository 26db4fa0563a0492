//! Endpoints that are recognised by the names of their series.

/// What is known of a framework's endpoint.
#[derive(Debug, PartialEq)]
pub(super) struct Preset {
    name: &'static str,
    /// How its names begin; all of those are taken.
    prefix: &'static str,
    /// A name that no other framework has.
    sign: &'static str,
    pub(super) run: Option<&'static str>,
    pub(super) rank: Option<&'static str>,
    /// It exposes no steps: its values are assigned to the steps of another source.
    pub(super) only_with_steps: bool,
}

const PLAIN: Preset =
    Preset { name: "", prefix: "", sign: "", run: None, rank: None, only_with_steps: false };

/// The last is anything else.
const PRESETS: &[Preset] = &[
    Preset { name: "axolotl", prefix: "axolotl_", sign: "axolotl_", ..PLAIN },
    Preset { name: "prime-rl", prefix: "trainer_", sign: "trainer_last_step_timestamp_seconds", ..PLAIN },
    Preset {
        name: "ray",
        prefix: "ray_train_",
        sign: "ray_train_",
        run: Some("ray_train_run_name"),
        rank: Some("ray_train_worker_world_rank"),
        only_with_steps: true,
    },
    Preset { name: "prometheus", ..PLAIN },
];

pub(super) fn names() -> Vec<&'static str> {
    PRESETS.iter().map(|p| p.name).collect()
}

impl Preset {
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        PRESETS.iter().find(|p| p.name == name)
    }

    /// The framework that serves a series, where the name of the series shows it.
    pub(super) fn of_series(name: &str) -> Option<&'static Self> {
        PRESETS.iter().find(|p| !p.sign.is_empty() && name.starts_with(p.sign))
    }

    pub(super) fn takes(&self, name: &str) -> bool {
        !self.prefix.is_empty() && name.starts_with(self.prefix)
    }
}
