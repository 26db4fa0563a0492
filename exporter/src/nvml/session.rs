//! An open NVML: its GPUs, and the refusals of each.
//!
//! The thread of [`super`] owns it. Opening may fail for temporary reasons (a driver that is being
//! installed, a GPU that is being reset), so it is retried at a low rate.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use stepwatch_sys::nvml::{Error, Nvml as Library, Watch};

use super::gpu::Gpu;
use super::heartbeat::Heartbeat;
use super::numbering::Numbering;
use super::xid_events::{Heard, XidListener};

/// The most GPUs of a node.
const MAX_GPUS: u32 = 64;
/// The wait between attempts to open NVML, which may take a while and disturb a driver that is
/// starting.
const RETRY: Duration = Duration::from_secs(10);
/// The time of a pass that one GPU may take, unless configured.
const PATIENCE: Duration = Duration::from_secs(5);
/// A GPU that took long to report that it cannot be used is not retried for this many times that
/// duration.
const LET_BE: u32 = 6;
/// The longest such wait.
const MAX_LET_BE: Duration = Duration::from_mins(10);

/// NVML, which is opened when needed.
#[derive(Debug)]
pub struct Session {
    library: Option<PathBuf>,
    beat: Arc<Heartbeat>,
    quarantine: Duration,
    /// Whether a collector makes passes over the GPUs.
    passes: bool,
    live: Option<Live>,
    failed: Option<(Instant, OpenError)>,
}

/// The processes that compute on the GPUs.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Computing {
    pub pids: BTreeSet<u32>,
    /// Minor numbers of the GPUs that cannot be read; `None` stands for unknown numbers.
    pub silent: BTreeSet<Option<u32>>,
}

/// The reason why NVML is not open.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error("{0}")]
    NoLibrary(String),
    #[error("{0}")]
    NoDriver(String),
    /// The driver and its library have different versions.
    #[error("{0}")]
    Mismatch(String),
    #[error("{0}")]
    Other(String),
}

/// The open NVML.
#[derive(Debug)]
pub struct Live {
    pub driver: String,
    /// The CUDA version, such as `12.4`.
    pub cuda: String,
    pub gpus: Vec<Gpu>,
    /// GPUs that NVML counts but gives no handle for: index and error.
    pub unusable: Vec<(u32, Error)>,
    numbering: Numbering,
    /// Receives XID errors of the GPUs. It starts at the first request.
    xid_listener: XidListener,
    /// GPUs that took long to report that they cannot be used, by index, and when they are retried.
    let_be: BTreeMap<u32, Instant>,
    beat: Arc<Heartbeat>,
    library: Library,
}

impl Session {
    pub(super) fn new(library: Option<PathBuf>, beat: Arc<Heartbeat>) -> Self {
        Self { library, beat, quarantine: PATIENCE, passes: false, live: None, failed: None }
    }

    /// Begins a pass, in which one GPU may take at most `quarantine`.
    pub fn begin(&mut self, quarantine: Duration) {
        (self.quarantine, self.passes) = (quarantine, true);
        self.beat.count_anew(None);
        for gpu in self.live.iter_mut().flat_map(|live| &mut live.gpus) {
            gpu.quarantine.limit(quarantine);
        }
    }

    /// Whether calls about the driver as a whole were quick since the pass began.
    pub fn is_quick(&self) -> bool {
        self.beat.spent(None).longest <= self.quarantine
    }

    pub fn is_open(&self) -> bool {
        self.live.is_some()
    }

    pub fn close(&mut self) {
        self.live = None;
        self.failed = None;
    }

    /// The open NVML; opens it if necessary.
    pub fn live(&mut self) -> Result<&mut Live, OpenError> {
        if self.live.as_ref().is_some_and(Live::is_down) {
            tracing::warn!("the NVIDIA driver went away; looking for it again");
            self.close();
        }
        if let Some((at, error)) = &self.failed
            && at.elapsed() < RETRY
        {
            return Err(error.clone());
        }
        if self.live.is_none() {
            match Live::open(self.library.as_deref(), &self.beat, self.quarantine) {
                Ok(live) => {
                    self.failed = None;
                    self.live = Some(live);
                }
                Err(error) => {
                    let error = OpenError::from(error);
                    self.failed = Some((Instant::now(), error.clone()));
                    return Err(error);
                }
            }
        }
        self.live.as_mut().ok_or_else(|| OpenError::Other("NVML is closed".into()))
    }

    /// Processes that compute on any GPU. If no collector makes passes, this is one, because
    /// otherwise a quarantined or lost GPU would never return.
    pub fn computing(&mut self) -> Result<Computing, OpenError> {
        let alone = !self.passes;
        let live = self.live()?;
        // A GPU of another container does not count.
        let ours = live.unusable.iter().filter(|(_, error)| !error.not_ours());
        let mut found = Computing { silent: ours.map(|_| None).collect(), ..Computing::default() };
        for gpu in &mut live.gpus {
            if alone {
                gpu.begin(Instant::now());
                gpu.sign_of_life();
                gpu.ask_again(Instant::now());
            } else {
                gpu.count_anew();
            }
            if gpu.instances.is_empty() {
                gpu.find_instances();
            }
            // A GPU that fell off the bus must not hide the others.
            match gpu.processes() {
                Some(pids) => found.pids.extend(pids),
                None => _ = found.silent.insert(gpu.id.minor.parse().ok()),
            }
            if alone {
                gpu.end();
            }
        }
        Ok(found)
    }
}

impl From<Error> for OpenError {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::Load(_) => Self::NoLibrary(text),
            Error::Mismatch { .. } => Self::Mismatch(text),
            error if error.driver_not_loaded() => Self::NoDriver(text),
            _ => Self::Other(text),
        }
    }
}

impl Live {
    fn open(library: Option<&Path>, beat: &Arc<Heartbeat>, quarantine: Duration) -> Result<Self, Error> {
        let library = Library::open(library, Arc::clone(beat) as Arc<dyn Watch>)?;
        let driver = library.driver_version().unwrap_or_default();
        let cuda = library.cuda_version().map(|v| format!("{}.{}", v / 1000, v % 1000 / 10));
        let numbering = Numbering::for_driver(&driver);
        let cuda = cuda.unwrap_or_default();
        let indices = 0..library.device_count()?.min(MAX_GPUS);
        let mut live = Self {
            driver,
            cuda,
            gpus: Vec::new(),
            unusable: Vec::new(),
            numbering,
            xid_listener: XidListener::default(),
            let_be: BTreeMap::new(),
            beat: Arc::clone(beat),
            library,
        };
        indices.for_each(|index| live.take_in(index, quarantine));
        let (gpus, unusable) = (live.gpus.len(), live.unusable.len());
        tracing::info!(driver = live.driver, cuda = live.cuda, gpus, unusable, "NVML is open");
        Ok(live)
    }

    /// The present number of GPUs of the driver, which may have changed since it was opened.
    pub fn count(&mut self) -> Option<u32> {
        let count = self.library.device_count();
        if count.as_ref().is_err_and(Error::down) {
            self.gpus.iter_mut().for_each(|gpu| gpu.down = true);
        }
        count.ok()
    }

    /// Retries the GPUs that could not be used. Each may take at most `quarantine`.
    pub fn retry_unusable(&mut self, quarantine: Duration) {
        let now = Instant::now();
        for (index, why) in std::mem::take(&mut self.unusable) {
            if self.let_be.get(&index).is_some_and(|until| now < *until) {
                self.unusable.push((index, why));
            } else {
                self.take_in(index, quarantine);
            }
        }
        self.gpus.sort_by_key(|gpu| gpu.id.index);
    }

    fn take_in(&mut self, index: u32, quarantine: Duration) {
        self.beat.count_anew(Some(index));
        let (began, beat) = (Instant::now(), &self.beat);
        let device = self.library.device(index);
        match device.and_then(|device| Gpu::new(device, self.numbering, beat, quarantine)) {
            Ok(gpu) => self.gpus.push(gpu),
            Err(error) => {
                self.unusable.push((index, error));
                let took = began.elapsed();
                if took > quarantine {
                    let rest = took.saturating_mul(LET_BE).min(MAX_LET_BE);
                    self.let_be.insert(index, Instant::now() + rest);
                }
            }
        }
    }

    fn is_down(&self) -> bool {
        self.gpus.iter().any(|gpu| gpu.down)
    }

    /// XID errors since the last request; the first one begins to listen. For nodes where the
    /// kernel's log is not read.
    pub fn xids(&mut self) -> Heard {
        self.xid_listener.hear(&self.library, &mut self.gpus)
    }
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_it_does_not_open() {
        let open = |error: Error| OpenError::from(error);
        assert!(matches!(
            open(Error::Load("libnvidia-ml.so.1: no such file".into())),
            OpenError::NoLibrary(_)
        ));
        assert!(matches!(open(Error::Code { function: "nvmlInit_v2", code: 9 }), OpenError::NoDriver(_)));
        assert!(matches!(open(Error::Mismatch { library: "550.1".into() }), OpenError::Mismatch(_)));
        assert!(matches!(open(Error::Code { function: "nvmlInit_v2", code: 999 }), OpenError::Other(_)));
    }
}
