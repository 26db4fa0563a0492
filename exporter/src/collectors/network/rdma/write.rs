//! The RDMA families and their values; those of counters are declared in [`counters`].

use super::expect::Known;
use super::{Look, RdmaReader, Role, counters};
use crate::family::Family;
use crate::link::State;
use crate::samples::Samples;

const PORT: &[&str] = &["device", "port"];

pub static INFO: Family = Family::gauge(
    "rdma_info",
    "",
    &["device", "firmware", "board_id", "hca_type", "netdev", "pci", "numa_node", "link_layer", "driver"],
    "RDMA device with what it is and where it sits, network interface and link layer being of its first port; always 1",
);
pub static PORT_INFO: Family = Family::gauge(
    "rdma_port_info",
    "",
    &["device", "port", "link_layer", "netdev", "role"],
    "Port with its role: only those of the fabric are judged; management carries the default route, unprovisioned has never been up, auxiliary is no physical function; always 1",
);
pub static STATE: Family = Family::gauge(
    "rdma_port_state",
    "",
    PORT,
    "Logical state of the port: 1 down, 2 initialising (no subnet manager yet), 3 armed, 4 active",
);
pub static PHYSICAL_STATE: Family = Family::gauge(
    "rdma_port_physical_state",
    "",
    PORT,
    "Physical state of the port: 1 sleep, 2 polling (no signal), 3 disabled, 4 training, 5 link up, 6 recovering from errors",
);
pub static UP: Family = Family::gauge(
    "rdma_port_up",
    "",
    PORT,
    "Whether the port can pass traffic (its logical state is active)",
);
pub static RATE: Family = Family::gauge(
    "rdma_port_rate_bytes_per_second",
    "",
    PORT,
    "Rate that the port has negotiated; absent while it is not active, when the driver reports no valid rate",
);
pub static EXPECTED_RATE: Family = Family::gauge(
    "rdma_port_expected_rate_bytes_per_second",
    "",
    PORT,
    "Rate that a port of the fabric should negotiate: the configured one, or the fastest that it was",
);
pub static CONDITION: Family = Family::gauge(
    "rdma_port_condition",
    "",
    &["device", "port", "condition"],
    "What is wrong with a port of the fabric: 1 for what holds, and on request 0 for the others",
)
.unless_zero();
pub static PORTS_EXPECTED: Family = Family::gauge(
    "rdma_ports_expected",
    "",
    &[],
    "Ports of the fabric that should be up: as configured, or those that were up before",
);
pub static PORTS_UP: Family = Family::gauge("rdma_ports_up", "", &[], "Ports of the fabric that are up");
pub static QUARANTINED: Family = Family::gauge(
    "rdma_device_quarantined",
    "",
    &["device"],
    "Whether parts of the device are left alone because reading them gets no answer; they are looked at again after a minute, two, four, up to an hour. Of a driver without such counters, as of RoCE of Broadcom, that is no fault",
).unless_zero();

pub static FAMILIES: &[&Family] = &[
    &INFO,
    &PORT_INFO,
    &STATE,
    &PHYSICAL_STATE,
    &UP,
    &RATE,
    &EXPECTED_RATE,
    &CONDITION,
    &PORTS_EXPECTED,
    &PORTS_UP,
    &QUARANTINED,
    &counters::RECEIVE_BYTES,
    &counters::TRANSMIT_BYTES,
    &counters::RECEIVE_PACKETS,
    &counters::TRANSMIT_PACKETS,
    &counters::RECEIVE_UNICAST,
    &counters::TRANSMIT_UNICAST,
    &counters::RECEIVE_MULTICAST,
    &counters::TRANSMIT_MULTICAST,
    &counters::LINK_DOWNED,
    &counters::TRANSMIT_WAIT,
    &counters::ERRORS,
    &counters::HARDWARE,
    &counters::RESOURCES,
    &counters::SATURATED,
];

impl RdmaReader {
    pub(super) fn write(&self, known: &Known, looks: &[Look], out: &mut Samples) {
        for device in &self.devices {
            let (netdev, layer) = device.ports.first().map_or(("", ""), |p| (&p.netdev, &p.link_layer));
            let labels = &[
                &*device.name,
                &device.firmware,
                &device.board,
                &device.hca_type,
                netdev,
                &device.pci,
                &device.numa_node,
                layer,
                &device.driver,
            ];
            out.set(&INFO, labels, 1u64);
            out.set(&QUARANTINED, &[&device.name], self.quarantine.holds(&device.name));
        }
        for look in looks {
            let (device, port) = self.at(look);
            let labels: &[&str] = &[&device.name, &port.number];
            out.set(
                &PORT_INFO,
                &[&device.name, &port.number, &port.link_layer, &port.netdev, look.role.as_str()],
                1u64,
            );
            out.maybe(&STATE, labels, look.state.state.as_ref().map(|(id, _)| *id));
            out.maybe(&PHYSICAL_STATE, labels, look.state.physical.as_ref().map(|(id, _)| *id));
            out.maybe(&UP, labels, look.state.up());
            out.maybe(&RATE, labels, look.state.rate.filter(|_| look.state.up() == Some(true)));
        }
        self.write_expected(known, looks, out);
        out.extend(&self.counted.samples);
    }

    fn write_expected(&self, known: &Known, looks: &[Look], out: &mut Samples) {
        for expected in known.0.values() {
            let labels: &[&str] = &[&expected.device, &expected.port];
            out.maybe(&EXPECTED_RATE, labels, Some(self.expected_rate(expected)).filter(|rate| *rate > 0.0));
            for state in State::CONDITIONS {
                let holds = match state {
                    State::Degraded => expected.degraded.holds(),
                    State::Errors => expected.errors.holds(),
                    state => expected.watch.open() == Some(state),
                };
                out.set(&CONDITION, &[&expected.device, &expected.port, state.as_str()], holds);
            }
        }
        let count = self.config.expected.ports.unwrap_or(known.0.len());
        if count > 0 {
            out.set(&PORTS_EXPECTED, &[], count);
            out.set(&PORTS_UP, &[], self.ports_up(looks));
        }
    }

    /// The number of the fabric's ports that are up, among the devices that the expected number
    /// applies to.
    pub(super) fn ports_up(&self, looks: &[Look]) -> usize {
        let counted =
            |l: &&Look| self.config.expected.ports.is_none() || self.expected.allow(&self.at(l).0.name);
        looks.iter().filter(|l| l.role == Role::Fabric && l.state.up() == Some(true)).filter(counted).count()
    }
}
