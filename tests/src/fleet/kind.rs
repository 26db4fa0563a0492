//! The kinds of faults of a run, their frequencies, and the culprits that a person must be shown.

use super::noise::Noise;

macro_rules! kinds {
    ($($name:ident $text:literal $family:ident $count:literal;)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Kind { $($name),* }

        impl Kind {
            pub const ALL: &[Self] = &[$(Self::$name),*];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }

            pub fn family(self) -> Family {
                match self { $(Self::$name => Family::$family),* }
            }

            /// The frequency of the kind, relative to others of its family.
            fn count(self) -> f64 {
                match self { $(Self::$name => $count),* }
            }
        }
    };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// The run stops.
    Interruption,
    /// The run continues more slowly.
    Slow,
    /// The run continues, but its training is wrong.
    Numeric,
}

// Interruptions: the 419 unexpected ones of 54 days on 16,384 GPUs, "The Llama 3 Herd of Models"
// (2024), table 5. "Host" is its power supply, chassis, I/O board, CPU and system memory; its 6
// silent data corruptions are 1.4 % of what stops a run, and stand among the numeric faults in that
// proportion. The rest has no published counts: stories of BLOOM, OPT, SmolLM3 and MegaScale.
kinds! {
    FaultyGpu "faulty GPU" Interruption 148.0;
    Hbm "GPU memory" Interruption 72.0;
    Software "software bug" Interruption 56.0;
    Network "switch or cable" Interruption 35.0;
    Maintenance "host maintenance" Interruption 32.0;
    Sram "GPU SRAM" Interruption 19.0;
    Gsp "GPU system processor" Interruption 17.0;
    Host "power, chassis, CPU, RAM" Interruption 11.0;
    Nic "NIC" Interruption 7.0;
    NcclTimeout "NCCL watchdog timeout" Interruption 7.0;
    Ssd "SSD" Interruption 3.0;
    EvalDeadlock "deadlock at evaluation" Interruption 4.0;
    LoaderDeadlock "data loader deadlock" Interruption 4.0;
    Sdc "silent data corruption" Numeric 1.0;
    DataSpike "bad data" Numeric 6.0;
    Divergence "divergence" Numeric 4.0;
    ThermalGpu "throttled GPU" Slow 6.0;
    SlowHost "slow host" Slow 4.0;
    SlowNic "slow NIC" Slow 4.0;
    FlakyLink "flapping link" Slow 4.0;
    SlowStorage "slow storage" Slow 4.0;
    LoaderWait "slow loader of a rank" Slow 4.0;
    GcDroop "garbage collector droop" Slow 3.0;
    StageImbalance "unbalanced stage" Slow 2.0;
}

impl Family {
    const SHARES: [(Self, f64); 3] = [(Self::Interruption, 0.6), (Self::Slow, 0.3), (Self::Numeric, 0.1)];
}

/// The distribution of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// The observed frequencies.
    Llama3,
    /// All kinds with equal frequency.
    Even,
    /// Only this kind.
    Only(Kind),
    /// No faults.
    Quiet,
}

impl Mix {
    pub(super) fn draw(self, noise: &mut Noise) -> Option<Kind> {
        match self {
            Self::Quiet => None,
            Self::Only(kind) => Some(kind),
            Self::Even => Some(*noise.pick(Kind::ALL)),
            Self::Llama3 => {
                let family = noise.weighted(&Family::SHARES)?;
                let of: Vec<_> =
                    Kind::ALL.iter().filter(|k| k.family() == family).map(|k| (*k, k.count())).collect();
                noise.weighted(&of)
            }
        }
    }
}
