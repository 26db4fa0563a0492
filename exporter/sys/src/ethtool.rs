//! Statistics that drivers of network devices keep, by the `SIOCETHTOOL` call.
