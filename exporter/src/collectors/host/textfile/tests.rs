use super::*;
use crate::roots::Roots;
use crate::testing;

struct Place {
    dir: tempfile::TempDir,
    bench: testing::Bench,
    reader: TextfileReader,
}

impl Place {
    fn new(max_series: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { directories: vec![dir.path().into()], max_series, ..Config::default() };
        let (bench, reader) = (testing::Bench::new(Roots::default()), TextfileReader::new(&config));
        Self { dir, bench, reader }
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.dir.path().join(name), text).unwrap();
    }

    fn file(&self, name: &str) -> String {
        self.dir.path().join(name).to_string_lossy().into_owned()
    }

    fn page(&mut self) -> Samples {
        self.bench.collect(&mut self.reader)
    }
}

/// The series that are not the collector's own, in text form.
fn series(page: &Samples) -> Vec<String> {
    let shown = page.iter().filter(|s| !s.family.name.starts_with("stepwatch_exporter_")).map(|s| {
        let labels =
            s.family.labels.iter().zip(s.labels.iter()).map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>();
        let value = match &s.value {
            crate::samples::Value::Number(v) => v.to_string(),
            crate::samples::Value::Histogram(h) => format!("{} {} {:?}", h.sum, h.count, h.buckets),
        };
        format!("{:?} {}{{{}}} {value}", s.family.kind, s.family.name, labels.join(","))
    });
    shown.collect()
}

#[test]
fn files_come_and_go() {
    let mut place = Place::new(100);
    place.write(
        "ipmi.prom",
        "# HELP ipmi_fan_rpm Speed of \"fans\".\n# TYPE ipmi_fan_rpm gauge\nipmi_fan_rpm{fan=\"1\"} 4000\nipmi_fan_rpm{fan=\"2\",zone=\"a\"} 4100\n\
         # TYPE reboots_total counter\nreboots_total 3\n# TYPE odd counter\nodd 1\nuntyped{x=\"\"} 2.5\n\
         # TYPE took_seconds histogram\ntook_seconds_bucket{le=\"1\"} 2\ntook_seconds_bucket{le=\"+Inf\"} 5\ntook_seconds_sum 12.5\ntook_seconds_count 5\n\
         # TYPE size summary\nsize{quantile=\"0.5\"} 7\nsize_sum 70\nsize_count 10\n",
    );
    place.write("not_this.prom.tmp", "half a fi");
    let page = place.page();
    assert_eq!(
        series(&page),
        [
            "Gauge ipmi_fan_rpm{fan=1,zone=} 4000",
            "Gauge ipmi_fan_rpm{fan=2,zone=a} 4100",
            "Unknown odd{} 1",
            "Counter reboots_total{} 3",
            "Unknown size{quantile=0.5} 7",
            "Unknown size_count{} 10",
            "Unknown size_sum{} 70",
            "Histogram took_seconds{} 12.5 5 [(1.0, 2), (inf, 3)]",
            "Unknown untyped{x=} 2.5",
        ]
    );
    let help = page.iter().find(|s| s.family.name == "ipmi_fan_rpm").unwrap().family.help;
    assert_eq!(help, "Speed of 'fans'");
    let file = place.file("ipmi.prom");
    assert_eq!(page.get(&ERROR, &[&file]), Some(0.0));
    assert!(page.get(&MTIME, &[&file]).unwrap() > 1.7e9);
    std::fs::remove_file(&file).unwrap();
    let page = place.page();
    assert!(series(&page).is_empty() && page.get(&MTIME, &[&file]).is_none());
}

#[test]
fn a_file_with_anything_wrong_is_refused_as_a_whole() {
    let mut place = Place::new(100);
    let bad = [
        ("line", "good 1\nbad line here\n"),
        ("time", "good 1 1700000000000\n"),
        ("name", "{\"with.dots\"} 1\n"),
        ("label", "good{\"with.dots\"=\"x\"} 1\n"),
        ("twice", "good{a=\"1\",a=\"2\"} 1\n"),
    ];
    for (name, text) in bad {
        place.write(&format!("{name}.prom"), text);
    }
    std::fs::write(place.dir.path().join("latin.prom"), b"good{a=\"\xe9\"} 1\n").unwrap();
    std::fs::create_dir(place.dir.path().join("dir.prom")).unwrap();
    place.write("well.prom", "fine 1\n");
    let page = place.page();
    assert_eq!(series(&page), ["Unknown fine{} 1"]);
    for name in bad.iter().map(|(name, _)| *name).chain(["latin", "dir"]) {
        assert_eq!(page.get(&ERROR, &[&place.file(&format!("{name}.prom"))]), Some(1.0), "{name}");
    }
}

#[test]
fn a_link_of_a_user_to_a_file_of_another_is_refused() {
    use std::os::unix::fs::{lchown, symlink};
    let mut place = Place::new(100);
    let private = place.dir.path().join("private");
    std::fs::write(&private, "secret 7\n").unwrap();
    symlink(&private, place.file("link.prom")).unwrap();
    assert_eq!(series(&place.page()), ["Unknown secret{} 7"], "our own link leads anywhere");
    if rustix::process::geteuid().is_root() {
        lchown(place.file("link.prom"), Some(65_534), None).unwrap();
        let page = place.page();
        assert!(series(&page).is_empty());
        assert_eq!(page.get(&ERROR, &[&place.file("link.prom")]), Some(1.0));
    }
}

#[test]
fn a_pipe_is_not_waited_for() {
    use rustix::fs::{CWD, FileType, Mode};
    let mut place = Place::new(100);
    rustix::fs::mknodat(CWD, place.file("pipe.prom"), FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
    assert_eq!(place.page().get(&ERROR, &[&place.file("pipe.prom")]), Some(1.0));
}

#[test]
fn what_is_ours_or_duplicate_or_too_much_is_left_out_and_counted() {
    let mut place = Place::new(6);
    place.write("a.prom", "train_loss{run=\"x\"} 1\ntrain_step_duration_seconds_count 2\nshared 1\nnan NaN\n# TYPE g gauge\ng 1\n");
    place.write("b.prom", "shared 2\nshared{x=\"1\"} 3\n# TYPE g counter\ng_total 1\nsame 1\nsame 2\n");
    place.write(
        "c.prom",
        "# TYPE h histogram\nh_bucket{le=\"1\"} 9\nh_sum 1\nh_count 2\nm1 1\nm2 2\nm3 3\nm4 4\n",
    );
    let page = place.page();
    let shown = series(&page);
    assert_eq!(
        shown,
        [
            "Gauge g{} 1",
            "Unknown m1{} 1",
            "Unknown m2{} 2",
            "Unknown m3{} 3",
            "Unknown shared{x=} 1",
            "Unknown shared{x=1} 3"
        ]
    );
    for (reason, want) in [
        ("own_name", 2.0),
        ("duplicate", 2.0),
        ("other_type", 1.0),
        ("not_finite", 1.0),
        ("malformed", 1.0),
        ("limit", 1.0),
    ] {
        assert_eq!(page.get(&REFUSED, &[reason]), Some(want), "{reason}");
    }
}

#[test]
fn a_file_whose_series_lose_against_another_file_is_marked() {
    let mut place = Place::new(100);
    place.write("a.prom", "# TYPE queue gauge\nqueue 1\nodd NaN\n");
    place.write("b.prom", "# TYPE queue_total counter\nqueue_total 7\nother 2\n");
    let error = |page: &Samples, place: &Place, file: &str| page.get(&ERROR, &[&place.file(file)]);
    let page = place.page();
    assert_eq!(series(&page), ["Unknown other{} 2", "Gauge queue{} 1"]);
    assert_eq!(error(&page, &place, "b.prom"), Some(1.0), "it lost its counter");
    assert_eq!(error(&page, &place, "a.prom"), Some(0.0), "no value is no mistake");
    place.write("a.prom", "# TYPE depth gauge\ndepth 1\n");
    let page = place.page();
    assert_eq!(error(&page, &place, "b.prom"), Some(0.0));
    assert!(series(&page).iter().any(|line| line.starts_with("Counter queue")), "{:?}", series(&page));
}

#[test]
fn no_directory_is_unsupported() {
    let mut reader =
        TextfileReader::new(&Config { directories: vec!["/not/there".into()], ..Config::default() });
    let bench = testing::Bench::new(Roots::default());
    assert_eq!(
        reader.probe(&bench.context()).unwrap(),
        Support::Unsupported("there is no /not/there".into())
    );
}

proptest::proptest! {
    #[test]
    fn never_panics(text in "(?s).{0,300}", at in 0usize..200, with in 0u8..128) {
        let _ = families::blocks(&text);
        let good = "# HELP a Text\n# TYPE a histogram\na_bucket{le=\"1\",x=\"y\"} 1\na_sum{x=\"y\"} 1\na_count{x=\"y\"} 2\nb_total 1\n";
        let mut bytes = good.repeat(2).into_bytes();
        let at = at % bytes.len();
        bytes[at] = with;
        let blocks = families::blocks(&String::from_utf8(bytes).unwrap());
        proptest::prop_assert!(blocks.values().all(|b| !b.help.contains('\n')));
    }
}
