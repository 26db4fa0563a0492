//! Reads the devices of pods from the kubelet's pod resources API over its socket.
//!
//! The query runs on the collector's own thread with a deadline, never during a scrape. A kubelet
//! that does not answer is queried at growing intervals, and its last answer stays valid for a
//! while, because it restarts more often than pods do.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use prost::Message as _;
use stepwatch_wire::words;

use super::config::KubeletConfig;
use super::devices::{Device, Known, is_pci_address};
use super::grpc::{self, CallError};
use super::proto::{ContainerResources, DynamicResource, ListResponse};

const LIST: &str = "/v1.PodResourcesLister/List";
/// The longest wait after failures. It starts at an interval and doubles.
const LONGEST_BACK_OFF: Duration = Duration::from_mins(2);
/// How long an answer is used without a new one.
const KEEP: Duration = Duration::from_mins(5);
/// The most containers with a GPU on one node.
const MAX_CONTAINERS: usize = 512;
/// The most bytes of a name in Kubernetes.
const MAX_NAME: usize = 253;

/// Containers with devices, from the last answer of the kubelet.
#[derive(Debug)]
pub(super) struct Kubelet {
    socket: PathBuf,
    deadline: Duration,
    back_off: Duration,
    resources: Vec<glob::Pattern>,
    /// The runtime, created for the first call.
    runtime: Option<tokio::runtime::Runtime>,
    answer: Option<(Instant, Vec<Container>)>,
    failing: Option<Failing>,
    pub(super) calls: Calls,
}

#[derive(Debug)]
struct Failing {
    wait: Duration,
    until: Instant,
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Calls {
    /// Failures by reason, in the order of [`REASONS`].
    pub(super) failed: [u64; REASONS.len()],
    /// The number of containers over the limit.
    pub(super) dropped: u64,
}

pub(super) const REASONS: [&str; 4] = ["connect", "deadline", "refused", "malformed"];

/// A container with devices of the watched resources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Container {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) container: String,
    /// The devices by the plugins' names for them. A device of a claim has several names.
    devices: Vec<Vec<String>>,
}

impl Kubelet {
    pub(super) fn new(config: &KubeletConfig, interval: Duration) -> Self {
        let resources = config.resources.iter().filter_map(|p| glob::Pattern::new(p).ok()).collect();
        Self {
            socket: config.socket.clone(),
            deadline: config.timeout.into(),
            back_off: interval,
            resources,
            runtime: None,
            answer: None,
            failing: None,
            calls: Calls::default(),
        }
    }

    /// Whether a kubelet exists here, or ever did.
    pub(super) fn is_here(&self) -> bool {
        self.answer.is_some() || self.failing.is_some() || self.socket.exists()
    }

    pub(super) fn is_up(&self) -> bool {
        self.failing.is_none()
    }

    /// Queries the kubelet, unless it failed a moment ago.
    pub(super) fn refresh(&mut self, now: Instant) {
        if self.failing.as_ref().is_some_and(|f| now < f.until) || !self.is_here() {
            return;
        }
        match self.list() {
            Ok(answer) => {
                if self.failing.take().is_some() {
                    tracing::info!(socket = %self.socket.display(), "the kubelet answers again");
                }
                self.answer = Some((now, self.containers(answer)));
            }
            Err(error) => self.failed(now, &error),
        }
    }

    /// The containers of the last answer; empty if it is too old.
    pub(super) fn containers_at(&self, now: Instant) -> &[Container] {
        match &self.answer {
            Some((at, containers)) if now.saturating_duration_since(*at) < KEEP => containers,
            _ => &[],
        }
    }

    fn list(&mut self) -> Result<ListResponse, CallError> {
        if self.runtime.is_none() {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            self.runtime = Some(runtime.map_err(CallError::Connect)?);
        }
        let Some(runtime) = &self.runtime else { return Err(CallError::Malformed("no runtime")) };
        let message = runtime.block_on(grpc::call(&self.socket, LIST, self.deadline))?;
        ListResponse::decode(message).map_err(|_| CallError::Malformed("another message"))
    }

    fn failed(&mut self, now: Instant, error: &CallError) {
        let wait = self.failing.as_ref().map_or(self.back_off, |f| (f.wait * 2).min(LONGEST_BACK_OFF));
        if self.failing.is_none() {
            let error = with_cause(error);
            tracing::warn!(socket = %self.socket.display(), error, "the kubelet does not report which pods hold GPUs");
        }
        self.failing = Some(Failing { wait, until: now + wait });
        if let Some(at) = REASONS.iter().position(|r| *r == error.reason()) {
            self.calls.failed[at] += 1;
        }
    }

    fn containers(&mut self, answer: ListResponse) -> Vec<Container> {
        let mut found = Vec::new();
        for pod in answer.pod_resources {
            for container in pod.containers {
                let devices = self.devices(&container);
                if devices.is_empty() {
                    continue;
                }
                if found.len() == MAX_CONTAINERS {
                    self.calls.dropped += 1;
                    continue;
                }
                found.push(Container {
                    namespace: clip(&pod.namespace),
                    pod: clip(&pod.name),
                    container: clip(&container.name),
                    devices,
                });
            }
        }
        found
    }

    fn devices(&self, container: &ContainerResources) -> Vec<Vec<String>> {
        let wanted = |name: &str| self.resources.iter().any(|p| p.matches(name));
        let plugins = container.devices.iter().filter(|d| wanted(&d.resource_name));
        let mut found: Vec<Vec<String>> = plugins
            .flat_map(|d| &d.device_ids)
            .filter(|id| !is_pci_address(id))
            .map(|id| vec![id.clone()])
            .collect();
        found.extend(container.dynamic_resources.iter().flat_map(claimed));
        found
    }
}

/// The names of a claim's devices: the driver's own, and those for the container runtime.
fn claimed(claim: &DynamicResource) -> impl Iterator<Item = Vec<String>> {
    let ours = claim.claim_resources.iter().filter(|r| {
        let runtime = || r.cdi_devices.iter().any(|d| d.name.contains("nvidia.com/"));
        r.driver_name == "gpu.nvidia.com" || (r.driver_name.is_empty() && runtime())
    });
    ours.map(|resource| {
        let mut names = vec![resource.device_name.clone()];
        for device in &resource.cdi_devices {
            // `k8s.gpu.nvidia.com/claim=<uid>-gpu-3`, `nvidia.com/gpu=GPU-…`
            let name = device.name.rsplit_once('=').map_or(device.name.as_str(), |(_, name)| name);
            names.push(name.to_owned());
            names.extend(name.rfind("-gpu-").map(|at| name[at + 1..].to_owned()));
        }
        names
    })
}

impl Container {
    /// The devices, and the number of those with an unknown name.
    pub(super) fn resolve(&self, known: &Known) -> (Vec<Device>, usize) {
        let mut found: Vec<Device> =
            self.devices.iter().filter_map(|names| names.iter().find_map(|n| known.find_named(n))).collect();
        let unknown = self.devices.len() - found.len();
        // Shares of one GPU count as one GPU.
        found.sort();
        found.dedup();
        (found, unknown)
    }
}

fn clip(name: &str) -> String {
    words::line(name).chars().take(MAX_NAME).collect()
}

fn with_cause(error: &CallError) -> String {
    use std::error::Error as _;
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

/// Decodes the bytes of an answer, for fuzzing.
#[cfg(any(test, feature = "fuzz"))]
pub(super) fn fuzz(bytes: &[u8]) {
    let mut kubelet = Kubelet::new(&KubeletConfig::default(), Duration::ZERO);
    if let Ok(answer) = ListResponse::decode(bytes) {
        let containers = kubelet.containers(answer);
        assert!(containers.len() <= MAX_CONTAINERS);
        for container in containers {
            let (found, unknown) = container.resolve(&Known::default());
            assert!(found.len() + unknown <= container.devices.len());
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
