//! What is mounted where, as `/proc/self/mountinfo` says.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use crate::collector::CollectError;
use crate::roots::Roots;

/// A container host has thousands of mounts, and each is a line.
const MAX_BYTES: u64 = 8 << 20;
const MAX_MOUNTS: usize = 16_384;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Of the mount: another one at the same place has another.
    pub(crate) id: u64,
    /// Major and minor number of the file system: the same for all its mounts.
    pub(crate) device: String,
    pub(crate) path: PathBuf,
    pub(crate) fstype: String,
    pub(crate) source: String,
    /// Of the mount, and of the file system.
    options: String,
    super_options: String,
}

impl Mount {
    /// As a label or in a message.
    pub(crate) fn name(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }

    pub(crate) fn read_only(&self) -> bool {
        has(&self.options, "ro") || self.read_only_inside()
    }

    /// The file system is read-only, whatever its mount says.
    fn read_only_inside(&self) -> bool {
        ["ro", "emergency_ro", "shutdown"].iter().any(|option| has(&self.super_options, option))
    }

    /// Read-only although it was mounted to be written: how the kernel leaves a file system after an error.
    pub(crate) fn fell_read_only(&self) -> bool {
        has(&self.options, "rw") && self.read_only_inside()
    }
}

fn has(options: &str, option: &str) -> bool {
    options.split(',').any(|o| o == option)
}

/// Every mount, the one on top where several are at one place, in the order of paths.
pub(crate) fn read(roots: &Roots) -> Result<Vec<Mount>, CollectError> {
    let path = roots.proc("self/mountinfo");
    let mut bytes = Vec::new();
    std::fs::File::open(&path)
        .and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes))
        .map_err(|e| CollectError::read(&path, e))?;
    Ok(parse(&bytes))
}

/// As [`read`], and `None` where there is no such table.
pub(crate) fn probe(roots: &Roots) -> Result<Option<Vec<Mount>>, CollectError> {
    match read(roots) {
        Err(CollectError::Read { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        mounts => mounts.map(Some),
    }
}

pub(crate) fn parse(bytes: &[u8]) -> Vec<Mount> {
    let lines = bytes.split(|b| *b == b'\n').take(MAX_MOUNTS);
    let mounts = lines.filter_map(line).map(|mount| (mount.path.clone(), mount));
    mounts.collect::<BTreeMap<_, _>>().into_values().collect()
}

/// One mount for each file system: the shortest path. A volume that is bound into a hundred containers is one.
pub(crate) fn file_systems<'a>(mounts: impl IntoIterator<Item = &'a Mount>) -> Vec<&'a Mount> {
    let mut found: BTreeMap<&str, &Mount> = BTreeMap::new();
    for mount in mounts {
        let longer = |other: &&Mount| other.path.as_os_str().len() > mount.path.as_os_str().len();
        if found.get(&*mount.device).is_none_or(longer) {
            found.insert(&mount.device, mount);
        }
    }
    let mut found: Vec<_> = found.into_values().collect();
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// The mount that a path without symbolic links lies on.
pub(crate) fn containing<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    mounts.iter().filter(|m| path.starts_with(&m.path)).max_by_key(|m| m.path.as_os_str().len())
}

/// `36 35 98:0 /root /mnt rw,noatime master:1 - ext4 /dev/sda1 rw,errors=continue`
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
    path.is_absolute().then_some(Mount { id, device, path, fstype, source, options, super_options })
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(&unescape(field)).into_owned()
}

/// A path as other files of `/proc` write it, without its escapes.
pub(super) fn plain(path: &str) -> String {
    text(path.as_bytes())
}

/// Space, tab, newline and backslash are written as three octal digits.
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
        bad line\n34 22 0:61 / relative rw - tmpfs tmpfs rw\n";

    #[test]
    fn mounts_with_escapes_and_without_optional_fields() {
        let mounts = parse(TEXT.as_bytes());
        let seen: Vec<_> = mounts.iter().map(|m| (m.name(), m.fstype.as_str(), m.read_only())).collect();
        assert_eq!(
            seen,
            [
                ("/".to_owned(), "ext4", false),
                ("/mnt/my data".to_owned(), "nfs4", false),
                ("/mnt/my data/sub/again".to_owned(), "nfs4", true),
                ("/scratch".to_owned(), "tmpfs", true),
            ]
        );
        assert_eq!(mounts[1].source, "10.0.0.1:/vol\\x");
        let one_each: Vec<_> = file_systems(&mounts).iter().map(|m| m.id).collect();
        assert_eq!(one_each, [22, 30, 33]);
        assert_eq!(containing(&mounts, Path::new("/mnt/my data/x")).unwrap().id, 30);
        assert_eq!(containing(&mounts, Path::new("/mnt/my database")).unwrap().id, 22);
    }

    #[test]
    fn a_file_system_that_the_kernel_made_read_only() {
        let of = |options: &str| parse(format!("1 0 8:1 / /d {options}\n").as_bytes()).remove(0);
        assert!(of("rw - ext4 /dev/sda1 ro,errors=remount-ro").fell_read_only());
        assert!(of("rw - ext4 /dev/sda1 rw,emergency_ro").fell_read_only());
        let meant = of("ro - ext4 /dev/sda1 ro");
        assert!(meant.read_only() && !meant.fell_read_only());
        assert!(!of("rw - ext4 /dev/sda1 rw,errors=remount-ro").read_only());
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
