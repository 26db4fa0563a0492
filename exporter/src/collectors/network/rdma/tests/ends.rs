//! Tests of saturated counters, and of links without a carrier.

use super::*;

/// The value and the saturation of a counter of the second port.
fn exported(node: &Node, counter: &str) -> (Option<f64>, Option<f64>) {
    let labels = ["mlx5_1", "1", counter];
    (node.value(&ERRORS, &labels), node.value(&SATURATED, &labels))
}

#[test]
fn a_counter_at_its_end_is_no_number_and_what_was_wrong_is_not_over() {
    let mut node = Node::of_eight(Config::default());
    node.count(1, "symbol_error", 65_000);
    node.look(START);
    assert_eq!(exported(&node, "symbol_error"), (Some(65_000.0), None));
    node.count(1, "symbol_error", 65_535);
    assert_eq!(node.look(START + 10.0), ["mlx5_1/1 errors 0"], "what it counted before its end is real");
    assert_eq!(exported(&node, "symbol_error"), (None, Some(1.0)));
    let events = node.events(START + 8000.0);
    let published = events.iter().find(|e| e.kind == Kind::Link).unwrap();
    assert_eq!(
        published.text.as_deref(),
        Some(
            "InfiniBand port mlx5_1/1 had errors, and cannot report whether it still has: symbol_error stands at the highest value that it can hold; clear it (on InfiniBand `perfquery -R`)"
        )
    );
    assert_eq!((short(published).as_str(), published.level.as_deref()), ("mlx5_1/1 errors 0", Some("warn")));
    let health = events.iter().find(|e| e.kind == Kind::Health && word(e, "device") == "mlx5_1").unwrap();
    assert_eq!((health.m.get("symbol_errors"), health.m.get("errors")), (None, Some(65_535.0)), "no fall");
    // A second saturated counter is not published.
    node.count(1, "port_rcv_switch_relay_errors", 65_535);
    node.count(1, "symbol_error", 3);
    assert_eq!(node.look(START + 8010.0), ["mlx5_1/1 errors 1"]);
    assert_eq!(exported(&node, "symbol_error"), (Some(3.0), None));
}

#[test]
fn a_counter_at_its_end_is_not_an_error_of_a_port_without_errors() {
    let mut node = Node::of_eight(Config::default());
    node.count(1, "local_link_integrity_errors", 15);
    node.count(2, "local_link_integrity_errors", 16);
    assert!(node.look(START).is_empty() && node.look(START + 4000.0).is_empty());
    assert_eq!(exported(&node, "local_link_integrity_errors"), (None, Some(1.0)));
    assert_eq!(
        node.value(&ERRORS, &["mlx5_2", "1", "local_link_integrity_errors"]),
        Some(16.0),
        "it is wider"
    );
}

#[test]
fn outages_are_seen_by_the_state_where_their_counter_is_at_its_end() {
    let mut node = Node::of_eight(Config::default());
    let mut now = START;
    node.count(0, "link_downed", 253);
    node.look(now);
    // The count until saturation is used.
    node.count(0, "link_downed", 255);
    node.look(now + 10.0);
    assert_eq!(node.look(now + 20.0), ["mlx5_0/1 down 0", "mlx5_0/1 up 1"]);
    assert_eq!(node.value(&LINK_DOWNED, &["mlx5_0", "1"]), None);
    assert_eq!(node.value(&SATURATED, &["mlx5_0", "1", "link_downed"]), Some(1.0));
    now += 60_000.0;
    for n in 1..=3 {
        node.state(0, "1: DOWN", "2: Polling");
        assert_eq!(node.look(now), ["mlx5_0/1 down 0"]);
        node.state(0, "4: ACTIVE", "5: LinkUp");
        assert_eq!(node.look(now + 1.0).len(), if n == 3 { 2 } else { 1 }, "up, and the third a flap");
        now += 100.0;
    }
    now += 60_000.0;
    // The counter was cleared, so it counts outages again that were not seen otherwise.
    for (downs, published) in [(0, 1), (0, 0), (1, 0), (1, 2)] {
        node.count(0, "link_downed", downs);
        assert_eq!(node.look(now).len(), published, "{downs}");
        now += 10.0;
    }
}

#[test]
fn a_roce_port_without_carrier_is_not_disabled_unless_it_was_set_down() {
    let mut node = Node::new(Config::default());
    (0..4).for_each(|i| node.port(i, if i == 3 { "InfiniBand" } else { "Ethernet" }, &format!("rail{i}")));
    for (i, flags) in [(0, "0x1003"), (1, "0x1002")] {
        std::fs::write(node.device(i).join(format!("net/rail{i}/flags")), format!("{flags}\n")).unwrap();
    }
    node.look(START);
    (0..4).for_each(|i| node.state(i, "1: DOWN", "3: Disabled"));
    let published = node.events(START + 1.0);
    let texts: Vec<_> =
        published.iter().filter(|e| e.kind == Kind::Link).filter_map(|e| e.text.as_deref()).collect();
    assert_eq!(
        texts,
        [
            "RoCE port mlx5_0/1 went down: rail0 has no carrier; look at the cable, the transceiver and the switch port",
            "RoCE port mlx5_1/1 went down: rail1 was set down by an administrator; `ip link set rail1 up` if that was not meant",
            "RoCE port mlx5_2/1 went down: no carrier, or set down by an administrator; look at the cable, the transceiver and the switch port",
            "InfiniBand port mlx5_3/1 went down: the port is disabled (Disabled)",
        ]
    );
}
