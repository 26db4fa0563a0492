//! Tests of the collector with given answers of the NVML thread.

use super::*;

fn reader_of(config: &Config) -> GpuReader {
    GpuReader::new(config, &kernel::Config::default())
}

/// A node without NVML whose kernel driver lists these GPUs.
fn listed(gpus: &[(&str, &str)]) -> (tempfile::TempDir, testing::Bench) {
    let dir = tempfile::tempdir().unwrap();
    for (i, (pci, uuid)) in gpus.iter().enumerate() {
        let path = dir.path().join("driver/nvidia/gpus").join(pci);
        std::fs::create_dir_all(&path).unwrap();
        let text = format!(
            "Model: \t NVIDIA H200\nGPU UUID: \t {uuid}\nBus Location: \t {pci}\nDevice Minor: \t {i}\n"
        );
        std::fs::write(path.join("information"), text).unwrap();
    }
    let library = Path::new("/nonexistent/libnvidia-ml.so.1").into();
    let roots = Roots { procfs: dir.path().into(), nvml_library: Some(library), ..Roots::default() };
    (dir, testing::Bench::new(roots))
}

#[test]
fn without_nvml_the_kernel_driver_still_lists_the_gpus() {
    let (_dir, bench) = listed(&[("0000:1b:00.0", "GPU-a"), ("0000:43:00.0", "GPU-????????")]);
    let mut reader = reader_of(&Config::default());
    let Ok(Support::Supported(found)) = reader.probe(&bench.context()) else { panic!() };
    assert!(found.starts_with("2 x NVIDIA H200; the inventory alone: cannot load NVML"), "{found}");
    let mut out = Samples::default();
    let error = reader.collect(&bench.context(), &mut out).unwrap_err();
    assert!(matches!(&error, CollectError::Other(why) if why.contains("/nonexistent")), "{error}");
    assert_eq!(out.get(&INFO, &["GPU-a", "", "0000:1b:00.0", "NVIDIA H200", "", "", "", "", "0"]), Some(1.0));
    assert_eq!((out.get(&EXPECTED, &[]), out.get(&COUNT, &[])), (Some(2.0), None), "absent is not zero");
    assert!(bench.published().is_empty(), "it is unknown whether the second one works");
}

#[test]
fn a_driver_of_another_version_than_its_library_is_as_good_as_none() {
    let (dir, bench) = listed(&[("0000:1b:00.0", "GPU-a"), ("0000:43:00.0", "GPU-b")]);
    std::fs::write(
        dir.path().join("driver/nvidia/version"),
        "NVRM version: NVIDIA UNIX Kernel Module  550.90.07\n",
    )
    .unwrap();
    let mut reader = reader_of(&Config::default());
    reader.probe(&bench.context()).unwrap();
    let error = stepwatch_sys::nvml::Error::Mismatch { library: "550.144.03".into() };
    reader.take(Err(error.into()), &bench.context());
    let mut out = Samples::default();
    reader.write(&mut out);
    assert_eq!((out.get(&COUNT, &[]), out.get(&EXPECTED, &[])), (Some(0.0), Some(2.0)));
    reader.watch.useless(&bench.context(), reader.useless(), 2);
    assert!(bench.published().is_empty(), "it may be exchanged just now");
    reader.watch.age(LONG * 3);
    reader.watch.useless(&bench.context(), reader.useless(), 2);
    let events = bench.published();
    assert_eq!(described(&events), [("gpu_lost", Some(1), Some("warn"))]);
    insta::assert_snapshot!(events[0].text.as_deref().unwrap(), @"None of 2 GPUs can be used by what is started now: the driver that is loaded is of another version than its library, 550.144.03 (loaded is 550.90.07); reboot the node, or load the module anew");
}

#[test]
fn a_node_without_a_gpu_is_healthy_unless_it_should_have_some() {
    let (_dir, bench) = listed(&[]);
    let mut reader = reader_of(&Config::default());
    let support = reader.probe(&bench.context()).unwrap();
    assert_eq!(support, Support::Unsupported("no NVIDIA kernel driver with a GPU".into()));
    let mut reader = reader_of(&Config { expected: Some(8), ..Config::default() });
    assert!(matches!(reader.probe(&bench.context()), Ok(Support::Supported(_))));
    let mut out = Samples::default();
    assert!(reader.collect(&bench.context(), &mut out).is_err());
    assert_eq!(out.get(&EXPECTED, &[]), Some(8.0));
}

#[test]
fn released_is_neither_failed_nor_stuck() {
    let (_dir, bench) = listed(&[("0000:1b:00.0", "GPU-a")]);
    let mut reader = reader_of(&Config::default());
    reader.probe(&bench.context()).unwrap();
    assert!(bench.nvml.release(crate::nvml::RELEASE, LONG));
    let out = bench.collect(&mut reader);
    assert_eq!(out.get(&RELEASED, &[]), Some(1.0));
    assert!(out.get(&RELEASED_UNTIL, &[]).is_some_and(|until| until > unix_now()));
    assert!(out.iter().any(|s| s.family.name == INFO.name));
    assert!(bench.nvml.acquire());
    let mut out = Samples::default();
    assert!(reader.collect(&bench.context(), &mut out).is_err(), "back to what it was");
    assert_eq!(out.get(&RELEASED, &[]), Some(0.0));
    let events = bench.published();
    assert_eq!(
        described(&events),
        [("nvml_released", Some(1), Some("info")), ("nvml_released", Some(0), Some("info"))]
    );
}

#[test]
fn a_call_that_does_not_return_is_stuck_and_the_inventory_stays() {
    let (_dir, bench) = listed(&[("0000:1b:00.0", "GPU-a")]);
    let config = Config { stuck_after: Period::millis(10), ..Config::default() };
    let mut reader = reader_of(&config);
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let beat = bench.nvml.clone();
    let ticket = bench
        .nvml
        .submit(None, move |_| beat.pretend("nvmlDeviceGetTemperature", Some(3), || wait.recv().is_ok()));
    let deadline = Instant::now() + LONG;
    while bench.nvml.stuck(Duration::from_millis(10)).is_none() {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    let mut out = Samples::default();
    let error = reader.collect(&bench.context(), &mut out).unwrap_err();
    assert!(
        matches!(&error, CollectError::Stuck { what, over } if what.contains("nvmlDeviceGetTemperature of GPU 3") && *over > Duration::ZERO),
        "{error:?}"
    );
    assert!(out.iter().any(|s| s.family.name == INFO.name));
    go.send(()).unwrap();
    ticket.unwrap().wait(LONG).unwrap();
    assert!(
        matches!(reader.collect(&bench.context(), &mut out), Err(CollectError::Other(_))),
        "no longer stuck"
    );
    let events = bench.published();
    assert_eq!(
        described(&events),
        [("nvml_stuck", Some(1), Some("error")), ("nvml_stuck", Some(0), Some("info"))]
    );
    assert_eq!(events[0].extra["function"], Value::Text("nvmlDeviceGetTemperature".into()));
}

#[test]
fn gpus_on_the_bus_without_a_driver_are_missed() {
    let dir = tempfile::tempdir().unwrap();
    let write = |address: &str, class: &str, vendor: &str| {
        let device = dir.path().join("bus/pci/devices").join(address);
        std::fs::create_dir_all(&device).unwrap();
        std::fs::write(device.join("class"), format!("{class}\n")).unwrap();
        std::fs::write(device.join("vendor"), format!("{vendor}\n")).unwrap();
        device
    };
    write("0000:1b:00.0", "0x030200", "0x10de");
    write("0000:43:00.0", "0x030200", "0x10de");
    let given_away = write("0000:52:00.0", "0x030200", "0x10de").join("driver");
    std::os::unix::fs::symlink("../../../bus/pci/drivers/vfio-pci", given_away).unwrap();
    write("0000:02:00.0", "0x030000", "0x1a03");
    let library = Path::new("/nonexistent/libnvidia-ml.so.1").into();
    let roots = Roots {
        sysfs: dir.path().into(),
        procfs: dir.path().join("proc"),
        nvml_library: Some(library),
        ..Roots::default()
    };
    let bench = testing::Bench::new(roots);
    let mut reader = reader_of(&Config::default());
    let Ok(Support::Supported(found)) = reader.probe(&bench.context()) else { panic!() };
    assert!(found.starts_with("none of 2 GPUs: cannot load NVML"), "{found}");
    for _ in 0..2 {
        let mut out = Samples::default();
        assert!(reader.collect(&bench.context(), &mut out).is_err());
        assert_eq!((out.get(&COUNT, &[]), out.get(&EXPECTED, &[])), (Some(0.0), Some(2.0)));
    }
    assert!(bench.published().is_empty(), "it may still be loading");
    reader.watch.age(LONG * 3);
    assert!(reader.collect(&bench.context(), &mut Samples::default()).is_err());
    let events = bench.published();
    assert_eq!(described(&events), [("gpu_lost", Some(1), Some("error"))]);
    assert_eq!(events[0].text.as_deref(), Some("No NVIDIA driver is loaded: none of 2 GPUs can be used"));
    let config = Config { expected: Some(0), ..Config::default() };
    let mut content = reader_of(&config);
    assert!(content.probe(&bench.context()).is_ok());
    let mut out = Samples::default();
    let _ = content.collect(&bench.context(), &mut out);
    assert_eq!(out.get(&COUNT, &[]), None, "none is missed where none is expected");
}

#[test]
fn a_slow_gpu_is_one_condition_from_the_call_to_the_pass_that_was_quick() {
    let bench = testing::Bench::new(Roots::default());
    let mut watcher = Watcher::default();
    let seen: BTreeMap<_, _> = [gpu_of(0), gpu_of(2)].map(|id| (id.uuid.clone(), Arc::new(id))).into();
    let call = |gpu| {
        let (function, since) = ("nvmlDeviceGetTemperature", Instant::now());
        Some(Call { function, gpu, since })
    };
    let aside = unresponsive::hanging(call(Some(2)).unwrap());
    let slow = || reading(vec![read(0), GpuReading { aside: Some(aside.clone()), ..read(2) }]);
    let mut look = |call, quick, now: Option<&Reading>| {
        watcher.unresponsive(&bench.context(), Driver { call, quick }, now, &seen);
        bench.published()
    };
    let events = look(call(Some(2)), true, None);
    assert_eq!(described(&events), [("nvml_stuck", Some(1), Some("error"))]);
    assert_eq!(events[0].extra["gpu"], Value::Text("GPU-2".into()));
    let text = events[0].text.as_deref().unwrap();
    assert!(
        text.starts_with("GPU 2 (") && text.contains("nvmlDeviceGetTemperature has not returned"),
        "{text}"
    );
    assert!(look(None, true, None).is_empty(), "that it returned is not the end");
    assert!(look(None, true, Some(&slow())).is_empty(), "it is set aside");
    assert!(look(call(Some(2)), true, Some(&slow())).is_empty(), "asked for a sign of life");
    let events = look(None, true, Some(&reading(vec![read(0), read(2)])));
    assert_eq!(described(&events), [("nvml_stuck", Some(0), Some("info"))]);
    let events = look(None, true, Some(&slow()));
    assert!(
        events[0]
            .text
            .as_deref()
            .unwrap()
            .contains("GPU 2 (NVIDIA H100 80GB HBM3, 0000:2b:00.0) answers too slowly")
    );
    assert_eq!(look(None, true, Some(&reading(vec![read(0)]))).len(), 1, "it is not there any more");
    // The GPU has no handle, is tried again, and hangs.
    let others = reading(vec![read(0)]);
    assert_eq!(
        described(&look(call(Some(2)), true, Some(&others))),
        [("nvml_stuck", Some(1), Some("error"))]
    );
    assert!(look(call(Some(2)), true, Some(&others)).is_empty(), "it hangs still");
    assert_eq!(described(&look(None, true, Some(&others))), [("nvml_stuck", Some(0), Some("info"))]);
    // A call about the driver as a whole.
    assert_eq!(look(call(None), false, None).len(), 1);
    assert!(look(None, false, Some(&reading(vec![read(0)]))).is_empty(), "the answer came late");
    assert_eq!(described(&look(None, true, None)), [("nvml_stuck", Some(0), Some("info"))]);
}

#[test]
fn one_gpu_that_hangs_leaves_the_page_alone_and_the_others_when_they_are_too_old() {
    let (_dir, bench) = listed(&[("0000:1b:00.0", "GPU-a")]);
    let mut reader = reader_of(&Config::default());
    let powered = |index: u32| {
        let mut gpu = read(index);
        gpu.fast.set(&POWER, &[&gpu.id.uuid], 500.0);
        gpu
    };
    let long_ago = Instant::now().checked_sub(STALE * 2).unwrap();
    let old = GpuReading { at: long_ago, ..powered(1) };
    reader.take(Ok(reading(vec![powered(0), old, powered(2)])), &bench.context());
    reader.expire();
    let call = Call { function: "nvmlDeviceGetName", gpu: Some(2), since: Instant::now() };
    reader.hangs(call);
    let mut out = Samples::default();
    reader.write(&mut out);
    let power = ["GPU-0", "GPU-1", "GPU-2"].map(|gpu| out.get(&POWER, &[gpu]));
    assert_eq!(power, [Some(500.0), None, None]);
    assert_eq!(out.get(&UNRESPONSIVE, &["GPU-2"]), Some(1.0));
    assert_eq!((out.get(&COUNT, &[]), out.get(&LOST, &["GPU-2"])), (Some(2.0), Some(0.0)));
    for gpu in &mut reader.reading.as_mut().unwrap().gpus {
        gpu.at = long_ago;
    }
    reader.expire();
    assert!(reader.reading.is_none());
    let mut out = Samples::default();
    reader.write(&mut out);
    assert_eq!((out.get(&UNRESPONSIVE, &["GPU-2"]), out.get(&COUNT, &[])), (Some(1.0), None));
}

#[test]
fn a_gpu_that_answers_nothing_but_errors_is_reported_with_the_error() {
    let mut stage = Stage::new();
    let error = Some("nvmlDeviceGetTemperature: unknown error of the driver".to_owned());
    let lost = GpuReading { lost: true, lost_with: error, ..read(1) };
    let events = stage.look(&reading(vec![read(0), lost]), &[], &[]);
    assert_eq!(described(&events), [("gpu_lost", Some(1), Some("error"))]);
    insta::assert_snapshot!(events[0].text.as_deref().unwrap(), @"GPU 1 (NVIDIA H100 80GB HBM3, 0000:1b:00.0) does not answer any more: it answers nothing but errors (nvmlDeviceGetTemperature: unknown error of the driver)");
    let back = GpuReading { lost: true, needs_reset: true, ..read(1) };
    let events = stage.look(&reading(vec![read(0), back]), &[], &[]);
    assert_eq!(described(&events), [("gpu_recovery_action", Some(1), Some("error"))]);
}

#[test]
fn nvml_reports_xids_where_the_log_is_not_read() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let roots = Roots { kmsg: log.path().into(), ..Roots::default() };
    let bench = testing::Bench::new(roots);
    for (enabled, read) in [(true, true), (false, false)] {
        let kernel = kernel::Config { enabled, ..kernel::Config::default() };
        let mut reader = GpuReader::new(&Config::default(), &kernel);
        reader.list(&bench.context());
        assert_eq!(reader.listed.log, read);
    }
}
