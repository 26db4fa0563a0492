//! XIDs in series that Prometheus scraped.

use super::*;

const UUID: &str = "GPU-2f3c9a51";
const READ: &str = r#"kernel_log_records_total{instance="node001:9765"}"#;
const GONE: f64 = f64::from_bits(STALE);

fn counter(gpu: &str, code: u32) -> String {
    format!(r#"gpu_xid_errors_total{{gpu="{gpu}",xid="{code}",instance="node001:9765"}}"#)
}

fn harmless(code: u32) -> String {
    format!(r#"gpu_xid_nonfatal_errors_total{{gpu="{UUID}",xid="{code}",instance="node001:9765"}}"#)
}

impl Door {
    /// The XIDs that a scrape reports.
    fn xids(&mut self, second: i64, values: &[(&str, f64)]) -> Vec<Event> {
        let mut found = events(self.scrape(second, values));
        found.extend(events(self.tick(second + 3)));
        found.retain(|event| event.kind == Kind::Xid);
        found
    }

    /// The codes and levels of the XIDs that a scrape reports.
    fn codes(&mut self, second: i64, values: &[(&str, f64)]) -> Vec<(i64, String)> {
        let of = self.xids(second, values).into_iter();
        of.map(|event| (event.code.unwrap(), event.level.unwrap())).collect()
    }
}

fn error(code: i64) -> Vec<(i64, String)> {
    vec![(code, "error".to_owned())]
}

const NONE: Vec<(i64, String)> = Vec::new();

#[test]
fn a_counter_that_rises_is_the_event_of_the_exporter() {
    let mut door = Door::new(Config::default());
    let fell_off = counter(UUID, 79);
    assert_eq!(door.codes(0, &[(&fell_off, 2.0)]), NONE, "it was before this was first scraped");
    assert_eq!(door.codes(15, &[(&fell_off, 2.0)]), NONE);
    let found = door.xids(30, &[(&fell_off, 5.0)]);
    let [xid] = &found[..] else { panic!("{found:?}") };
    assert_eq!((xid.node.as_deref(), xid.ts), (Some("node001"), Some((NOW.0 + 30_000) as f64 / 1e3)));
    assert_eq!((xid.name.as_deref(), xid.code, xid.level.as_deref()), (Some("xid"), Some(79), Some("error")));
    let hint = "Drain the node, power-cycle it; if it returns, reseat or replace the board and look at power \
                and PCIe";
    let text = format!("XID 79 (GPU has fallen off the bus) of {UUID}: {hint}");
    assert_eq!(xid.text.as_ref(), Some(&text));
    let extra = [
        ("action", "reboot_node"),
        ("gpu", UUID),
        ("hint", hint),
        ("known_as", "GPU has fallen off the bus"),
    ];
    let words: Vec<_> = xid.extra.iter().map(|(key, word)| (key.as_str(), word.as_str().unwrap())).collect();
    assert_eq!(words, extra);
    assert_eq!(door.codes(45, &[(&fell_off, 5.0)]), NONE, "said once");
}

#[test]
fn a_code_that_is_in_no_table_is_a_ticket_and_other_is_no_code() {
    let mut door = Door::new(Config::default());
    let (unknown, other) = (counter(UUID, 4711), counter(UUID, 0).replace("\"0\"", "\"other\""));
    door.xids(0, &[(&unknown, 0.0), (&other, 0.0)]);
    assert_eq!(door.codes(15, &[(&unknown, 1.0), (&other, 1.0)]), [(4711, "warn".to_owned())]);
}

#[test]
fn a_counter_that_appears_is_new_where_an_earlier_page_was_without_it() {
    let mut door = Door::new(Config::default());
    let (first, second) = (counter(UUID, 48), counter(UUID, 79));
    assert_eq!(door.codes(0, &[(&first, 1.0), (READ, 900.0)]), NONE, "since the boot");
    assert_eq!(door.codes(15, &[(&first, 1.0), (READ, 900.0), (&second, 1.0)]), error(79));
    // A page from before the exporter read the log lacks the XIDs of that log.
    let mut door = Door::new(Config::default());
    door.scrape(0, &[(UP, 1.0), (STEP, 1.0)]);
    assert_eq!(door.codes(15, &[(&first, 1.0), (STEP, 2.0), (READ, 900.0)]), NONE);
    // Samples of one Prometheus of a pair arrive before older ones of the other.
    let mut door = Door::new(Config::default());
    door.scrape(0, &[(READ, 900.0)]);
    assert_eq!(door.codes(2, &[(&first, 1.0)]), NONE);
}

#[test]
fn a_counter_that_fell_was_started_anew() {
    let mut door = Door::new(Config::default());
    let fell_off = counter(UUID, 79);
    door.xids(0, &[(&fell_off, 3.0)]);
    assert_eq!(door.codes(15, &[(&fell_off, 1.0)]), error(79));
    assert_eq!(door.codes(30, &[(&fell_off, 0.0)]), NONE);
    assert_eq!(door.codes(45, &[(&fell_off, 1.0)]), error(79));
}

#[test]
fn a_scrape_that_failed_is_no_reboot() {
    let mut door = Door::new(Config::default());
    let fell_off = counter(UUID, 79);
    door.xids(0, &[(READ, 900.0), (&fell_off, 1.0)]);
    door.xids(15, &[(READ, GONE), (&fell_off, GONE), (UP, 0.0)]);
    assert_eq!(door.codes(30, &[(READ, 901.0), (&fell_off, 1.0), (UP, 1.0)]), NONE);
    // The counter does not begin at zero either if a page was made before the log was read.
    door.xids(45, &[(READ, GONE), (&fell_off, GONE), (STEP, 1.0)]);
    assert_eq!(door.codes(60, &[(READ, 950.0), (&fell_off, 1.0), (STEP, 1.0)]), NONE);
    // After a reboot the page lacks the XID until a new one occurs.
    door.xids(75, &[(READ, GONE), (&fell_off, GONE), (UP, 0.0)]);
    for second in [300, 315] {
        assert_eq!(door.codes(second, &[(READ, 500.0), (UP, 1.0)]), NONE);
    }
    assert_eq!(door.codes(330, &[(READ, 501.0), (&fell_off, 1.0), (UP, 1.0)]), error(79));
}

#[test]
fn an_error_of_nvlink_that_does_no_harm_is_a_ticket() {
    let mut door = Door::new(Config::default());
    let (all, mild) = (counter(UUID, 145), harmless(145));
    door.xids(0, &[(READ, 900.0)]);
    // The two counters may arrive in different requests.
    assert_eq!(door.scrape(15, &[(&all, 1.0), (READ, 901.0)]).len(), 1, "the instance is up");
    let found = door.xids(15, &[(&mild, 1.0)]);
    let rated: Vec<_> = found.iter().map(|e| (e.code, e.level.as_deref(), &e.extra["action"])).collect();
    assert_eq!(rated, [(Some(145), Some("warn"), &Value::Text("none".into()))]);
    assert_eq!(door.codes(30, &[(&all, 3.0), (&mild, 2.0)]), error(145), "the worse of the two");
    assert_eq!(door.codes(45, &[(&all, 4.0), (&mild, 2.0)]), error(145));
}

#[test]
fn what_was_counted_by_an_address_is_the_gpus_once_its_uuid_is_known() {
    let mut door = Door::new(Config::default());
    let (address, uuid) = (counter("0000:3b:00.0", 79), counter(UUID, 79));
    door.xids(0, &[(READ, 900.0)]);
    let found = door.xids(15, &[(READ, 901.0), (&address, 1.0)]);
    assert_eq!(found[0].extra["pci"], Value::Text("0000:3b:00.0".into()));
    assert!(!found[0].extra.contains_key("gpu"), "{found:?}");
    assert!(found[0].text.as_ref().unwrap().contains("of GPU 0000:3b:00.0: "), "{found:?}");
    assert_eq!(door.codes(30, &[(READ, 902.0), (&uuid, 1.0), (&address, GONE)]), NONE);
    assert_eq!(door.codes(45, &[(READ, 903.0), (&uuid, 2.0)]), error(79));
}

#[test]
fn dcgm_keeps_the_last_code_and_only_another_one_is_new() {
    let mut door = Door::new(Config::default());
    let last =
        format!(r#"DCGM_FI_DEV_XID_ERRORS{{gpu="0",UUID="{UUID}",Hostname="node001",instance="d:9400"}}"#);
    assert_eq!(door.codes(0, &[(&last, 31.0)]), NONE, "it was before this was first scraped");
    assert_eq!(door.codes(15, &[(&last, 31.0)]), NONE);
    let found = door.xids(30, &[(&last, 79.0)]);
    assert_eq!((found[0].code, found[0].node.as_deref()), (Some(79), Some("node001")));
    assert_eq!(found[0].extra["gpu"], Value::Text(UUID.into()));
    assert_eq!(door.codes(45, &[(&last, 79.0)]), NONE, "a second one looks like the first");
    assert_eq!(door.codes(60, &[(&last, 0.0)]), NONE);
    assert_eq!(door.codes(75, &[(&last, 79.0)]), error(79));
    assert_eq!(door.codes(90, &[(&last, 9_223_372_036_854_775_794.0)]), NONE, "DCGM does not know");
    assert_eq!(door.codes(105, &[(&last, 79.0)]), NONE);
}

#[test]
fn a_code_of_dcgm_that_is_a_label_too_makes_another_series() {
    let mut door = Door::new(Config::default());
    let last = |code: u32| {
        format!(r#"DCGM_FI_DEV_XID_ERRORS{{UUID="{UUID}",err_code="{code}",instance="node001:9400"}}"#)
    };
    door.xids(0, &[(&last(0), 0.0)]);
    assert_eq!(door.codes(15, &[(&last(0), GONE), (&last(48), 48.0)]), error(48));
    assert_eq!(door.codes(30, &[(&last(48), GONE), (&last(95), 95.0)]), error(95));
    // Partitions of a GPU with different codes are not new XIDs in every scrape.
    let of =
        |part: u32| format!(r#"DCGM_FI_DEV_XID_ERRORS{{UUID="{UUID}",GPU_I_ID="{part}",instance="a:9400"}}"#);
    for second in [0, 15, 30] {
        assert_eq!(door.codes(60 + second, &[(&of(1), 0.0), (&of(2), 48.0)]), NONE, "{second}");
    }
}

#[test]
fn what_is_too_old_is_only_compared_with() {
    let mut door = Door::new(Config::default());
    let fell_off = counter(UUID, 79);
    let at = |second: i64| NOW.0 + 1000 * second;
    let log: Vec<_> = (-40..=0).map(|n| (at(15 * n), 900.0)).collect();
    let xids: Vec<_> = (-25..=0).map(|n| (at(15 * n), 1.0)).collect();
    let batch = door.write(vec![series(READ, &log), series(&fell_off, &xids)]);
    let mut found = events(reports(batch));
    found.extend(events(door.tick(3)));
    assert_eq!(found, [], "a backlog tells of one that is six minutes old");
    assert_eq!(door.codes(15, &[(&fell_off, 2.0)]), error(79));
}

#[test]
fn a_series_that_found_no_room_did_not_appear() {
    let (fell_off, generic) = (counter(UUID, 79), |max_watched| Config { max_watched, ..Config::default() });
    let mut door = Door::new(generic(1));
    door.xids(0, &[(READ, 900.0), (&fell_off, 1.0)]);
    assert_eq!(door.registry.counts.over_watched, 1);
    // The rules change, and there is room.
    door.registry.configure(generic(9));
    assert_eq!(door.codes(15, &[(READ, 900.0), (&fell_off, 1.0)]), NONE);
    assert_eq!(door.codes(30, &[(READ, 900.0), (&fell_off, 2.0)]), error(79), "a rise is one all the same");
    let another = counter(UUID, 48);
    for second in (45..330).step_by(15) {
        door.scrape(second, &[(READ, 900.0), (&fell_off, 2.0)]);
    }
    assert_eq!(door.codes(330, &[(READ, 900.0), (&another, 1.0)]), error(48));
}
