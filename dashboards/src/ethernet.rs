//! Rows of the board of the fabric about Ethernet: interfaces, their transceivers, and bonds.

use crate::layout::{Chart, Row};
use crate::model::Unit;
use crate::series::of;

pub(crate) fn ethernet() -> Row {
    let each = |name| of(name).max("instance, device");
    let rate = |name| of(name).rate().max("instance, device");
    Row::folded(
        "Is the other network well?",
        vec![
            Chart::lines("Ethernet", "What goes over the other network?", Unit::BytesPerSecond)
                .from_zero()
                .show(rate("nic_receive_bytes_total"), "{{instance}} {{device}} received")
                .show(rate("nic_transmit_bytes_total"), "{{instance}} {{device}} sent"),
            Chart::lines("Ethernet packets", "Are they many small packets?", Unit::PacketsPerSecond)
                .from_zero()
                .show(rate("nic_receive_packets_total"), "{{instance}} {{device}} received")
                .show(rate("nic_transmit_packets_total"), "{{instance}} {{device}} sent"),
            Chart::lines(
                "Ethernet errors",
                "Does an interface make errors, or drop?",
                Unit::PacketsPerSecond,
            )
            .from_zero()
            .show(rate("nic_receive_errors_total"), "{{instance}} {{device}} errors received")
            .show(rate("nic_transmit_errors_total"), "{{instance}} {{device}} errors sent")
            .show(rate("nic_receive_drops_total"), "{{instance}} {{device}} drops received")
            .show(rate("nic_transmit_drops_total"), "{{instance}} {{device}} drops sent"),
            Chart::lines("Link changes", "Does an interface come and go?", Unit::Count)
                .bars()
                .from_zero()
                .show(
                    of("nic_carrier_changes_total").increase().max("instance, device"),
                    "{{instance}} {{device}}",
                ),
            Chart::states("Interfaces", "Which interface that is meant to be up is down?")
                .word(1.0, "up", "green")
                .word(0.0, "down", "red")
                .show(
                    of("nic_up")
                        .min("instance, device")
                        .only_where("instance, device", &each("nic_admin_up").equal(1.0)),
                    "{{instance}} {{device}}",
                ),
            Chart::lines("Counters of the driver", "Why does an interface drop or wait?", Unit::PerSecond)
                .from_zero()
                .show(
                    of("nic_ethtool_total").rate().max("instance, device, stat").above(0.0).top(),
                    "{{instance}} {{device}} {{stat}}",
                ),
            Chart::lines(
                "Counters left out",
                "For how many counters of the driver was there no room?",
                Unit::Count,
            )
            .from_zero()
            .show(each("nic_ethtool_left_out").above(0.0), "{{instance}} {{device}}"),
            Chart::table("Speed", "Has an interface negotiated less than it should?", Unit::BytesPerSecond)
                .width(6)
                .show(each("nic_speed_bytes_per_second").top(), "speed"),
            Chart::table("Largest packet", "Do all interfaces use jumbo frames?", Unit::Bytes)
                .width(6)
                .show(each("nic_mtu_bytes").top(), "MTU"),
        ],
    )
}

pub(crate) fn transceivers() -> Row {
    const LANE: &str = "{{instance}} {{device}} lane {{lane}}";
    Row::folded(
        "Are the transceivers well?",
        vec![
            Chart::lines("Light received", "Which cable or connector is dirty?", Unit::Watts)
                .log()
                .show(of("nic_module_receive_power_watts").min("instance, device, lane"), LANE),
            Chart::lines("Light sent", "Which laser grows weak?", Unit::Watts)
                .log()
                .show(of("nic_module_transmit_power_watts").min("instance, device, lane"), LANE),
            Chart::lines("Current of lasers", "Which laser needs more and more current?", Unit::Amperes)
                .from_zero()
                .show(of("nic_module_bias_amperes").max("instance, device, lane"), LANE),
            Chart::lines("Temperature of transceivers", "Which transceiver is too warm?", Unit::Celsius)
                .show(
                    of("nic_module_temperature_celsius").max("instance, device"),
                    "{{instance}} {{device}}",
                ),
            Chart::lines(
                "Supply of transceivers",
                "Has a transceiver the voltage that it needs?",
                Unit::Volts,
            )
            .show(of("nic_module_supply_volts").min("instance, device"), "{{instance}} {{device}}"),
            Chart::states("Limits crossed", "What does a transceiver warn of?")
                .word(1.0, "crossed", "orange")
                .show(
                    of("nic_module_flag").max("instance, device, flag, grade, lane").above(0.0),
                    "{{instance}} {{device}} {{grade}} {{flag}} {{lane}}",
                ),
            Chart::table("Transceivers", "Which transceiver is where?", Unit::Count)
                .facts(of("nic_module_info").max("instance, device, form, vendor, part, serial")),
            Chart::table(
                "Transceivers that cannot be read",
                "Of which transceiver is nothing known?",
                Unit::Count,
            )
            .facts(of("nic_module_unreadable").max("instance, device").above(0.0)),
        ],
    )
}

pub(crate) fn bonds() -> Row {
    Row::folded(
        "Do bonds have all of their links?",
        vec![
            Chart::states("Links of bonds", "Which link of a bond is down?")
                .word(1.0, "up", "green")
                .word(0.0, "down", "red")
                .show(
                    of("nic_bond_link_up").min("instance, device, link"),
                    "{{instance}} {{device}} {{link}}",
                ),
            Chart::lines("Failures of links", "Which link of a bond comes and goes?", Unit::Count)
                .bars()
                .from_zero()
                .show(
                    of("nic_bond_link_failures_total").increase().max("instance, device, link"),
                    "{{instance}} {{device}} {{link}}",
                ),
            Chart::lines("Links", "Has a bond lost a link altogether?", Unit::Count)
                .from_zero()
                .show(of("nic_bond_links").max("instance, device"), "{{instance}} {{device}}"),
            Chart::table("Bonds", "How do the bonds work?", Unit::Count)
                .facts(of("nic_bond_info").max("instance, device, mode, active")),
        ],
    )
}
