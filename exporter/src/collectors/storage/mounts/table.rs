//! The mount table, from `/proc/self/mountinfo`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use crate::collector::CollectError;
use crate::roots::Roots;

/// The most bytes of the table: a container host has thousands of mounts, each on a line.
const MAX_BYTES: u64 = 8 << 20;
const MAX_MOUNTS: usize = 16_384;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    /// The id of the mount; another mount at the same place has another id.
    pub(crate) id: u64,
    /// The major and minor number of the file system, which all its mounts share.
    pub(crate) device: String,
    pub(crate) path: PathBuf,
    pub(crate) fstype: String,
    pub(crate) source: String,
    pub(crate) automount: Automount,
    /// The options of the mount in this process's namespace, and those of the file system itself.
    options: String,
    super_options: String,
}

/// Whether an automounter mounted it, and will unmount it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Automount {
    #[default]
    No,
    /// Mounts at the first access, and stays mounted.
    Stays,
    /// Unmounts after a time without use.
    Expires,
}

/// File systems that are never writable, whatever the options of their mounts.
const NEVER_WRITTEN: [&str; 5] = ["squashfs", "erofs", "iso9660", "cramfs", "romfs"];
const AUTOFS: &str = "autofs";

impl Mount {
    /// The name in labels and messages.
    pub(crate) fn name(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }

    /// Whether the file system itself is read-only. Service managers and container runtimes make
    /// mounts read-only for single processes.
    pub(crate) fn read_only(&self) -> bool {
        has(&self.super_options, "ro") || self.stopped()
    }

    /// Whether the kernel made a writable mount read-only, as it does after an error.
    pub(crate) fn fell_read_only(&self) -> bool {
        let meant = has(&self.options, "rw") && !NEVER_WRITTEN.contains(&self.fstype.as_str());
        self.stopped() || meant && has(&self.super_options, "ro")
    }

    fn stopped(&self) -> bool {
        ["emergency_ro", "shutdown"].iter().any(|option| has(&self.super_options, option))
    }

    /// Whether an automounter mounts or has mounted the path.
    pub(crate) fn automounts(&self, path: &Path) -> bool {
        self.fstype == AUTOFS && path.starts_with(&self.path)
            || self.automount > Automount::No && path == self.path
    }
}

fn has(options: &str, option: &str) -> bool {
    options.split(',').any(|o| o == option)
}

/// Every mount in the order of paths; of several at one place, only the top one.
pub(crate) fn read(roots: &Roots) -> Result<Vec<Mount>, CollectError> {
    let path = roots.proc("self/mountinfo");
    let mut bytes = Vec::new();
    std::fs::File::open(&path)
        .and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes))
        .map_err(|e| CollectError::read(&path, e))?;
    Ok(parse(&bytes))
}

/// As [`read`], but `None` if there is no such table.
pub(crate) fn probe(roots: &Roots) -> Result<Option<Vec<Mount>>, CollectError> {
    match read(roots) {
        Err(CollectError::Read { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        mounts => mounts.map(Some),
    }
}

pub(crate) fn parse(bytes: &[u8]) -> Vec<Mount> {
    let lines = bytes.split(|b| *b == b'\n').take(MAX_MOUNTS);
    let all: Vec<Mount> = lines.filter_map(line).collect();
    // The mounts of an automounter are below it, or on top of it.
    let automounters = all.iter().filter(|m| m.fstype == AUTOFS).map(|m| {
        let stays = has(&m.super_options, "timeout=0");
        (m.path.clone(), if stays { Automount::Stays } else { Automount::Expires })
    });
    let automounters: BTreeMap<PathBuf, Automount> = automounters.collect();
    let mut mounts = BTreeMap::new();
    for mut mount in all {
        let above = mount.path.ancestors().filter_map(|dir| automounters.get(dir));
        mount.automount = above.max().copied().unwrap_or_default();
        mounts.insert(mount.path.clone(), mount);
    }
    mounts.into_values().collect()
}

/// One mount for each file system: preferably one without an automounter, and then the one with the
/// shortest path. A volume that is bound into a hundred containers counts once.
pub(crate) fn file_systems<'a>(mounts: impl IntoIterator<Item = &'a Mount>) -> Vec<&'a Mount> {
    let mut found: BTreeMap<&str, &Mount> = BTreeMap::new();
    let rank = |mount: &Mount| (mount.automount, mount.path.as_os_str().len());
    for mount in mounts {
        if found.get(&*mount.device).is_none_or(|other| rank(other) > rank(mount)) {
            found.insert(&mount.device, mount);
        }
    }
    let mut found: Vec<_> = found.into_values().collect();
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// The mount that contains a path without symbolic links.
pub(crate) fn containing<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    mounts.iter().filter(|m| path.starts_with(&m.path)).max_by_key(|m| m.path.as_os_str().len())
}

/// Parses `36 35 98:0 /root /mnt rw,noatime master:1 - ext4 /dev/sda1 rw,errors=continue`.
fn line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|b| *b == b' ').filter(|f| !f.is_empty());
    let mut next = || fields.next();
    let id = text(next()?).parse().ok()?;
    next()?;
    let device = text(next()?);
    next()?;
    let path = PathBuf::from(OsString::from_vec(unescape(next()?)));
    let options = text(next()?);
    fields.find(|f| *f == b"-")?;
    let mut next = || fields.next();
    let (fstype, source) = (text(next()?), text(next()?));
    let super_options = next().map(text).unwrap_or_default();
    let automount = Automount::default();
    path.is_absolute().then_some(Mount {
        id,
        device,
        path,
        fstype,
        source,
        automount,
        options,
        super_options,
    })
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(&unescape(field)).into_owned()
}

/// Decodes a path as other files of `/proc` write it.
pub(super) fn plain(path: &str) -> String {
    text(path.as_bytes())
}

/// Decodes space, tab, newline and backslash, which are written as three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((byte, after)) = rest.split_first() {
        let code = after.get(..3).filter(|_| *byte == b'\\').and_then(|digits| {
            let digit = |b: &u8| (b'0'..=b'7').contains(b).then(|| u32::from(b - b'0'));
            let [a, b, c] = [digit(&digits[0])?, digit(&digits[1])?, digit(&digits[2])?];
            u8::try_from(a * 64 + b * 8 + c).ok()
        });
        out.push(code.unwrap_or(*byte));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p1 rw,errors=remount-ro\n\
        30 22 0:50 / /mnt/my\\040data rw,relatime shared:2 - nfs4 10.0.0.1:/vol\\134x rw,vers=4.2,hard\n\
        31 22 0:50 / /mnt/my\\040data/sub/again ro,relatime - nfs4 10.0.0.1:/vol rw,vers=4.2\n\
        32 22 259:2 / /scratch rw,relatime master:3 propagate_from:1 - xfs /dev/nvme1n1 ro,attr2\n\
        33 32 0:60 / /scratch ro - tmpfs tmpfs\n\
        35 22 0:70 / /home rw,relatime shared:9 - autofs /etc/auto.home rw,fd=6,pgrp=9,timeout=300,minproto=5,indirect\n\
        36 35 0:50 / /home/al rw,relatime - nfs4 10.0.0.1:/vol rw,vers=4.2\n\
        37 22 0:71 / /fsx rw,relatime - autofs systemd-1 rw,fd=40,pgrp=1,timeout=0,minproto=5,maxproto=5,direct\n\
        38 37 0:72 / /fsx rw,relatime - lustre 10.0.0.2@tcp:/fsx ro,flock\n\
        bad line\n34 22 0:61 / relative rw - tmpfs tmpfs rw\n";

    #[test]
    fn mounts_with_escapes_and_without_optional_fields() {
        let mounts = parse(TEXT.as_bytes());
        let seen: Vec<_> = mounts.iter().map(|m| (m.name(), m.fstype.as_str(), m.read_only())).collect();
        assert_eq!(
            seen,
            [
                ("/".to_owned(), "ext4", false),
                ("/fsx".to_owned(), "lustre", true),
                ("/home".to_owned(), "autofs", false),
                ("/home/al".to_owned(), "nfs4", false),
                ("/mnt/my data".to_owned(), "nfs4", false),
                ("/mnt/my data/sub/again".to_owned(), "nfs4", false),
                ("/scratch".to_owned(), "tmpfs", false),
            ]
        );
        assert_eq!(mounts[4].source, "10.0.0.1:/vol\\x");
        let one_each: Vec<_> = file_systems(&mounts).iter().map(|m| m.id).collect();
        assert_eq!(one_each, [22, 38, 35, 30, 33]);
        assert_eq!(containing(&mounts, Path::new("/mnt/my data/x")).unwrap().id, 30);
        assert_eq!(containing(&mounts, Path::new("/mnt/my database")).unwrap().id, 22);
    }

    #[test]
    fn what_an_automounter_mounted() {
        let mounts = parse(TEXT.as_bytes());
        let of = |path: &str| mounts.iter().find(|m| m.path == Path::new(path)).unwrap().automount;
        assert_eq!(
            ["/", "/fsx", "/home/al", "/mnt/my data"].map(of),
            [Automount::No, Automount::Stays, Automount::Expires, Automount::No]
        );
        let automounts = |path: &str| mounts.iter().any(|m| m.automounts(Path::new(path)));
        assert!(automounts("/home/not/yet") && automounts("/home/al") && automounts("/fsx"));
        assert!(!automounts("/homes") && !automounts("/scratch"));
    }

    #[test]
    fn a_file_system_that_the_kernel_made_read_only() {
        let of = |options: &str| parse(format!("1 0 8:1 / /d {options}\n").as_bytes()).remove(0);
        assert!(of("rw - ext4 /dev/sda1 ro,errors=remount-ro").fell_read_only());
        assert!(of("rw - ext4 /dev/sda1 rw,emergency_ro").fell_read_only());
        assert!(of("ro - ext4 /dev/sda1 rw,shutdown").fell_read_only());
        for meant in ["ro - ext4 /dev/sda1 ro", "rw - squashfs /dev/loop0 ro,errors=continue"] {
            assert!(of(meant).read_only() && !of(meant).fell_read_only(), "{meant}");
        }
        // The second is as a process of a hardened unit, or with a read-only volume, sees it.
        for well in
            ["rw - ext4 /dev/sda1 rw,errors=remount-ro", "ro,nosuid,relatime - ext4 /dev/sda1 rw,stripe=8"]
        {
            assert!(!of(well).read_only() && !of(well).fell_read_only(), "{well}");
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics(bytes: Vec<u8>, at in 0usize..400, with: u8) {
            let _ = parse(&bytes);
            let mut mutated = TEXT.as_bytes().to_vec();
            let at = at % mutated.len();
            mutated[at] = with;
            proptest::prop_assert!(parse(&mutated).len() >= 2);
        }

        #[test]
        fn what_is_escaped_comes_back(name in proptest::collection::vec(1u8.., 1..20)) {
            let escaped = name.iter().map(|b| format!("\\{b:03o}")).collect::<Vec<_>>().concat();
            proptest::prop_assert_eq!(unescape(escaped.as_bytes()), name);
        }
    }
}
