//! Tests with real files and links. Rights are invented, so that the result is the same for every
//! user who runs them. Tests that need root (a file or process of another user) are in
//! `discover/tests/owners.rs`.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

use super::*;
use crate::testing::is_root;

const STRANGER: u32 = 4711;

fn view_of(user: u32, groups: &[u32], place: Option<Place>) -> View {
    View { rights: Rights { user, groups: groups.to_vec(), all: false }, place }
}

fn us() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// A directory that all users may enter.
fn public() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    mode(dir.path(), 0o755);
    dir
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn file(path: &Path, bits: u32) {
    fs::write(path, "x").unwrap();
    mode(path, bits);
}

fn why(found: io::Result<Located>) -> Option<Refusal> {
    Refusal::from_error(&found.err()?)
}

#[test]
fn only_what_the_process_may_read_behind_directories_that_it_may_enter() {
    let dir = public();
    let (open, private) = (dir.path().join("open"), dir.path().join("private"));
    file(&open, 0o644);
    file(&private, 0o600);
    let stranger = view_of(us() + STRANGER, &[], None);
    assert!(stranger.find(&open).unwrap().open().is_ok());
    assert_eq!(why(stranger.find(&private)), Some(Refusal::NotReadable(us() + STRANGER)));
    assert!(view_of(us(), &[], None).find(&private).unwrap().open().is_ok());
    let link = dir.path().join("link");
    symlink(&private, &link).unwrap();
    assert_eq!(why(stranger.find(&link)), Some(Refusal::NotReadable(us() + STRANGER)));
    // A hard link is the same file.
    fs::hard_link(&private, dir.path().join("again")).unwrap();
    assert_eq!(why(stranger.find(&dir.path().join("again"))), Some(Refusal::NotReadable(us() + STRANGER)));
    for (bits, enters) in [(0o755, true), (0o700, false), (0o711, true), (0o744, false)] {
        mode(dir.path(), bits);
        let refused = (!enters).then_some(Refusal::NotEnterable(us() + STRANGER));
        assert_eq!(why(stranger.find(&open)), refused, "{bits:o}");
        // The error does not reveal whether such a file exists.
        assert_eq!(why(stranger.find(&dir.path().join("none"))), refused, "{bits:o}");
    }
    let kernel = view_of(us(), &[], None).find(Path::new("/proc/self/status")).unwrap();
    assert_eq!(Refusal::from_error(&kernel.open().unwrap_err()), Some(Refusal::OfTheKernel));
    assert!(Reach::Below("/proc/self/status".into()).open(Path::new("/proc/self/status")).is_ok());
}

#[test]
fn pipes_and_devices_are_not_opened() {
    let dir = public();
    let pipe = dir.path().join("pipe.log");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o644), 0)
        .unwrap();
    for path in [&pipe, Path::new("/dev/null")] {
        for reach in [
            Reach::Below(path.to_owned()),
            Reach::Below("/".into()),
            Reach::Of(Arc::new(view_of(us(), &[], None))),
        ] {
            let err = reach.open(path).unwrap_err();
            assert_eq!(err.kind(), io::ErrorKind::InvalidInput, "{reach:?}");
        }
    }
}

/// Only root can create links of other users. Without root, the rule itself is tested instead.
#[test]
fn links_of_others_lead_to_what_is_theirs() {
    let dir = public();
    let at = |name: &str| dir.path().join(name);
    for (name, owner) in [("ours", us()), ("theirs", STRANGER), ("another", STRANGER + 1)] {
        file(&at(name), 0o644);
        if is_root() {
            chown(at(name), Some(owner), None).unwrap();
        }
        symlink(at(name), at(&format!("to-{name}"))).unwrap();
    }
    let metadata = |name: &str| fs::symlink_metadata(at(name)).unwrap();
    if !is_root() {
        assert_eq!(owned(us(), &metadata("ours")), Ok(()));
        assert_eq!(
            owned(STRANGER, &metadata("ours")),
            Err(Refusal::ForeignLink { link: STRANGER, target: us() })
        );
        return;
    }
    let below = Reach::Below(dir.path().to_owned());
    let reader = Reach::Of(Arc::new(view_of(STRANGER + 1, &[], None)));
    for name in ["to-ours", "to-theirs", "to-another"] {
        assert!(below.open(&at(name)).is_ok(), "links of root and of who reads lead anywhere");
        std::os::unix::fs::lchown(at(name), Some(STRANGER), None).unwrap();
    }
    for reach in [&below, &reader] {
        assert!(reach.open(&at("to-theirs")).is_ok());
        let foreign = |target| Some(Refusal::ForeignLink { link: STRANGER, target });
        assert_eq!(why(reach.find(&at("to-ours"))), foreign(0));
        assert_eq!(why(reach.find(&at("to-another"))), foreign(STRANGER + 1));
    }
    // Nor through a directory: the final target counts, not the links in between.
    symlink("../..", at("up")).unwrap();
    std::os::unix::fs::lchown(at("up"), Some(STRANGER), None).unwrap();
    assert!(matches!(
        why(below.find(&at("up/etc/shadow"))),
        Some(Refusal::ForeignLink { link: STRANGER, .. })
    ));
    // From a shared directory, not even to the user's own files.
    mode(dir.path(), 0o1777);
    assert_eq!(why(below.find(&at("to-theirs"))), Some(Refusal::SharedLink(STRANGER)));
    assert_eq!(why(reader.find(&at("to-theirs"))), Some(Refusal::SharedLink(STRANGER)));
    assert!(
        Reach::Of(Arc::new(view_of(STRANGER, &[], None))).open(&at("to-theirs")).is_ok(),
        "their own link"
    );
    for name in ["to-ours", "to-theirs"] {
        assert!(Reach::Below(at(name)).open(&at(name)).is_ok(), "the operator named it");
    }
}

#[test]
fn what_the_operator_named_has_its_own_way_up() {
    let dir = public();
    fs::create_dir_all(dir.path().join("a/b")).unwrap();
    fs::create_dir_all(dir.path().join("c")).unwrap();
    file(&dir.path().join("c/x"), 0o644);
    symlink("../c/x", dir.path().join("a/near")).unwrap();
    symlink("../../c/x", dir.path().join("a/b/far")).unwrap();
    symlink(dir.path().join("c/x"), dir.path().join("a/whole")).unwrap();
    let reach = Reach::Below(dir.path().join("a"));
    for name in ["a/near", "a/b/far", "a/whole"] {
        assert!(reach.open(&dir.path().join(name)).is_ok(), "{name}");
    }
    assert!(reach.open(&dir.path().join("c/x")).is_ok(), "beside it, by the rule of links");
}

#[test]
fn a_pattern_is_the_operators_before_its_first_wildcard() {
    for (pattern, directory) in [
        ("/logs/*/train.log", "/logs/"),
        ("/logs/run-?/x", "/logs/"),
        ("/a/b/[xy].log", "/a/b/"),
        ("/*.log", "/"),
        ("/a/b", "/a/"),
    ] {
        assert_eq!(Reach::of_pattern(pattern), Reach::Below(directory.into()), "{pattern}");
    }
}

#[test]
fn loops_and_depths_end() {
    let dir = public();
    symlink("round", dir.path().join("round")).unwrap();
    let here = view_of(us(), &[], None);
    assert_eq!(why(here.find(&dir.path().join("round"))), Some(Refusal::TooFar));
    let mut deep = dir.path().to_owned();
    for _ in 0..MAX_DEPTH {
        deep.push("d");
    }
    fs::create_dir_all(&deep).unwrap();
    assert_eq!(why(here.find(&deep)), Some(Refusal::TooFar));
    fs::write(dir.path().join("f"), "").unwrap();
    let below_a_file = here.find(&dir.path().join("f/x")).unwrap_err();
    assert_eq!(below_a_file.kind(), io::ErrorKind::NotADirectory);
}

#[test]
fn a_link_of_a_container_leads_into_it() {
    let dir = public();
    let process = |name: &str| {
        fs::create_dir_all(dir.path().join(name).join("ns")).unwrap();
        symlink("mnt:[1]", dir.path().join(name).join("ns/mnt")).unwrap();
        dir.path().join(name)
    };
    let root = process("7").join("root");
    fs::create_dir_all(root.join("etc")).unwrap();
    fs::write(root.join("etc/own.yaml"), "own").unwrap();
    fs::write(dir.path().join("host.yaml"), "the host's").unwrap();
    symlink("/etc/own.yaml", root.join("in.yaml")).unwrap();
    symlink(dir.path().join("host.yaml"), root.join("out.yaml")).unwrap();
    symlink("../7/root", process("8").join("root")).unwrap();
    let view = |process: &str, mounts: &str| {
        let place = Place { mounts: mounts.into(), process: dir.path().join(process) };
        view_of(us(), &[], Some(place))
    };
    let length = |path: &str| Some(view("7", "mnt:[1]").find(Path::new(path)).ok()?.metadata.len());
    assert_eq!(length("/in.yaml"), Some(3));
    assert_eq!(length(root.join("in.yaml").to_str().unwrap()), Some(3), "as we would find it");
    assert_eq!((length("/out.yaml"), length("/../../host.yaml")), (None, None));
    assert_eq!(view("7", "mnt:[1]"), view("8", "mnt:[1]"), "two processes of a container see the same");
    let gone = view("7", "mnt:[2]").find(Path::new("/in.yaml")).unwrap_err();
    assert_eq!(gone.kind(), io::ErrorKind::NotFound, "another process has the number");
}

#[test]
fn directories_below_one_that_was_found() {
    let dir = public();
    fs::create_dir_all(dir.path().join("a/b")).unwrap();
    symlink("a", dir.path().join("link")).unwrap();
    let names = |reach: &Reach, path: &str| {
        let base = reach.find(dir.path()).unwrap();
        let found = reach.directory(&base, Path::new(path))?;
        let names = fs::read_dir(found.again())?.flatten().map(|e| e.file_name().into_string().unwrap());
        io::Result::Ok(names.count())
    };
    let stranger = Reach::Of(Arc::new(view_of(us() + STRANGER, &[], None)));
    let ours = Reach::Below(dir.path().to_owned());
    for reach in [&ours, &stranger] {
        assert_eq!(names(reach, "").unwrap(), 2);
        assert_eq!(names(reach, "a").unwrap(), 1);
        assert_eq!(names(reach, "a/b").unwrap(), 0);
        assert!(names(reach, "link/b").is_err(), "by no link");
    }
    mode(&dir.path().join("a"), 0o711);
    assert!(names(&stranger, "a").is_err() && names(&stranger, "a/b").is_ok());
    mode(&dir.path().join("a"), 0o700);
    assert!(names(&stranger, "a/b").is_err() && names(&ours, "a/b").is_ok());
}
