//! The messages of the kubelet's pod resources API, version v1, as far as they are read. Field
//! numbers are its compatibility promise; unlisted fields are skipped.

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(super) struct ListResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) pod_resources: Vec<PodResources>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodResources {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) namespace: String,
    #[prost(message, repeated, tag = "3")]
    pub(super) containers: Vec<ContainerResources>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerResources {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) devices: Vec<ContainerDevices>,
    /// Claims of dynamic resource allocation.
    #[prost(message, repeated, tag = "5")]
    pub(super) dynamic_resources: Vec<DynamicResource>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerDevices {
    #[prost(string, tag = "1")]
    pub(super) resource_name: String,
    #[prost(string, repeated, tag = "2")]
    pub(super) device_ids: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DynamicResource {
    #[prost(string, tag = "2")]
    pub(super) claim_name: String,
    #[prost(string, tag = "3")]
    pub(super) claim_namespace: String,
    #[prost(message, repeated, tag = "4")]
    pub(super) claim_resources: Vec<ClaimResource>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ClaimResource {
    #[prost(message, repeated, tag = "1")]
    pub(super) cdi_devices: Vec<CdiDevice>,
    #[prost(string, tag = "2")]
    pub(super) driver_name: String,
    #[prost(string, tag = "3")]
    pub(super) pool_name: String,
    #[prost(string, tag = "4")]
    pub(super) device_name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CdiDevice {
    #[prost(string, tag = "1")]
    pub(super) name: String,
}
