//! The types made from the list of detectors: their modules, settings and state.

/// One line a detector: its module under `detectors/` holds `Config`, and the detector itself; both
/// with serde and `Default`. Settings are the engine's, state is the run's: what a thousand runs
/// share is neither kept nor stored a thousand times.
macro_rules! detectors {
    (
        step { $($field:ident: $module:ident::$ty:ident,)* }
        clock { $($cfield:ident: $cmodule:ident::$cty:ident,)* }
        node { $($nfield:ident: $nmodule:ident::$nty:ident,)* }
    ) => {
        $(pub mod $module;)*
        $(pub mod $cmodule;)*
        $(pub mod $nmodule;)*

        /// Settings of every detector; every key has a default.
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct DetectorsConfig {
            $(pub $field: self::$module::Config,)*
            $(pub $cfield: self::$cmodule::Config,)*
            $(pub $nfield: self::$nmodule::Config,)*
            /// Dollars. Findings give the loss of a run in dollars where this is set. It is a
            /// setting of the whole alerter, not of its detectors.
            #[serde(skip)]
            pub cost_per_gpu_hour: Option<f64>,
            /// The same.
            #[serde(skip)]
            pub energy: EnergyConfig,
        }

        /// The state of every detector of one run.
        #[derive(Debug, Clone, Default, Serialize, Deserialize)]
        pub struct Detectors {
            #[serde(skip)]
            config: Arc<DetectorsConfig>,
            shared: Shared,
            $($field: self::$module::$ty,)*
            $($cfield: self::$cmodule::$cty,)*
        }

        impl Detectors {
            pub fn new(config: &Arc<DetectorsConfig>) -> Self {
                Self { config: Arc::clone(config), ..Self::default() }
            }

            /// Bytes that each keeps of a run, apart from what it keeps only now and then on the
            /// heap.
            pub fn sizes() -> Vec<(&'static str, usize)> {
                vec![
                    ("shared", size_of::<Shared>()),
                    $((stringify!($field), size_of::<self::$module::$ty>()),)*
                    $((stringify!($cfield), size_of::<self::$cmodule::$cty>()),)*
                ]
            }

            /// Takes over changed settings without forgetting what was learned.
            pub fn configure(&mut self, config: &Arc<DetectorsConfig>) {
                self.config = Arc::clone(config);
                $(self.$field.configured(&config.$field);)*
            }

            pub fn step(&mut self, s: &StepSample, out: &mut Vec<Finding>) {
                self.shared.observe(s);
                let mut step = JudgedStep { sample: s, out };
                $(self.$field.step(&self.config.$field, &mut step, &mut self.shared);)*
            }

            pub fn extra(&mut self, e: &Extra<'_>, out: &mut Vec<Finding>) {
                $(self.$field.extra(&self.config.$field, e, &self.shared, out);)*
            }

            /// Sets the price of the run by its number of GPUs, for findings in dollars. A run of
            /// unknown size has no price.
            pub fn price(&mut self, gpus: Option<u32>) {
                let price = self.config.cost_per_gpu_hour.zip(gpus);
                self.shared.speed.dollars_per_hour =
                    price.map_or(0.0, |(rate, gpus)| rate * f64::from(gpus));
            }

            pub fn dollars_per_gpu_hour(&self) -> Option<f64> {
                self.config.cost_per_gpu_hour
            }

            pub fn speed(&self) -> &Speed {
                &self.shared.speed
            }

            pub fn speed_mut(&mut self) -> &mut Speed {
                &mut self.shared.speed
            }

            pub fn look(&mut self, now: Ts, run: &RunState, out: &mut Vec<Finding>) {
                let view = RunAt { now, run };
                $(self.$cfield.look(&self.config.$cfield, view, out);)*
            }

            pub fn deadline(&self, run: &RunState) -> Option<Ts> {
                let mut first: Option<Ts> = None;
                $(
                    if let Some(at) = self.$cfield.deadline(&self.config.$cfield, run) {
                        first = Some(first.map_or(at, |had| had.min(at)));
                    }
                )*
                first
            }
        }

        /// The state of every detector of one node.
        #[derive(Debug, Clone, Default, Serialize, Deserialize)]
        pub struct NodeDetectors {
            #[serde(skip)]
            config: Arc<DetectorsConfig>,
            $($nfield: self::$nmodule::$nty,)*
        }

        impl NodeDetectors {
            pub fn new(config: &Arc<DetectorsConfig>) -> Self {
                Self { config: Arc::clone(config), ..Self::default() }
            }

            pub fn configure(&mut self, config: &Arc<DetectorsConfig>) {
                self.config = Arc::clone(config);
            }

            pub fn dollars_per_gpu_hour(&self) -> Option<f64> {
                self.config.cost_per_gpu_hour
            }

            pub fn look(&mut self, view: NodeAt<'_>, out: &mut Vec<Finding>) {
                $(self.$nfield.look(&self.config.$nfield, view, out);)*
            }

            pub fn deadline(&self, node: &NodeState) -> Option<Ts> {
                [$(self.$nfield.deadline(&self.config.$nfield, node)),*].into_iter().flatten().min()
            }
        }
    };
}

pub(crate) use detectors;
