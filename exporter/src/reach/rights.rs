//! Decides like the kernel whether a user may read a file or enter a directory: by owner, mode and
//! access list.

use std::fs::{File, Metadata};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;

use rustix::io::Errno;

/// Rights as bits of a mode.
pub(super) const READS: u32 = 0o4;
pub(super) const ENTERS: u32 = 0o1;

/// `CAP_DAC_OVERRIDE` and `CAP_DAC_READ_SEARCH`: with either, all files can be read.
const READS_ALL: u64 = 1 << 1 | 1 << 2;
/// The extended attribute with the access list.
const ACL: &str = "system.posix_acl_access";
/// The most bytes of an access list: 511 entries.
const MAX_ACL_BYTES: usize = 4096;
const ACL_VERSION: u32 = 2;

/// The note of the kernel that the caller lacked some of the program's rights.
const AT_SECURE: u64 = 23;

/// The rights of a process from `/proc`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Rights {
    pub(super) user: u32,
    pub(super) groups: Vec<u32>,
    /// Whether the process is root with the capability to read all files.
    pub(super) all: bool,
}

impl Rights {
    /// Parses `/proc/PID/status`. `None` if the program runs with other rights than those of the
    /// user who started it: the paths in its environment or name come from one user, and the rights
    /// to read them are another's.
    pub(super) fn parse(status: &str) -> Option<Self> {
        let line = |key: &str| status.lines().find_map(|line| line.strip_prefix(key));
        let numbers = |key: &str| {
            let words = line(key)?.split_whitespace();
            Some(words.filter_map(|word| word.parse().ok()).collect::<Vec<u32>>())
        };
        let one = |ids: &[u32]| ids.first().copied().filter(|first| ids.iter().all(|id| id == first));
        let user = one(&numbers("Uid:")?)?;
        let mut groups = numbers("Groups:").unwrap_or_default();
        groups.extend(numbers("Gid:").and_then(|ids| one(&ids)));
        let capabilities = line("CapEff:").and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
        // Capabilities of another user may be limited to its namespace, or come from a program.
        let all = user == 0 && capabilities.is_some_and(|set| set & READS_ALL != 0);
        Some(Self { user, groups, all })
    }

    /// Whether `/proc/PID/auxv` shows that the process's paths come from a user with fewer rights:
    /// a setuid program of root that has fully become root still has the environment of the user
    /// who started it.
    pub(super) fn are_borrowed(&self, notes: &[u8]) -> bool {
        let secure = |note: &[u8]| {
            let (key, value) = note.split_at(8);
            key == AT_SECURE.to_ne_bytes() && value != [0; 8]
        };
        self.user == 0 && notes.chunks_exact(16).any(secure)
    }

    pub(super) fn may(&self, what: u32, file: &File, metadata: &Metadata) -> bool {
        if self.all {
            return true;
        }
        let (mode, owner) = (metadata.mode(), metadata.uid());
        if self.user == owner {
            return mode & (what << 6) != 0;
        }
        match access_list(file) {
            Ok(Some(list)) => self.listed(what, &list, metadata.gid()),
            Ok(None) if self.groups.contains(&metadata.gid()) => mode & (what << 3) != 0,
            Ok(None) => mode & what != 0,
            Err(_) => false,
        }
    }

    /// Whether an access list allows it to a user who is not the owner, in the order of the
    /// kernel's `posix_acl_permission`.
    fn listed(&self, what: u32, list: &[u8], group: u32) -> bool {
        let Some((version, entries)) = list.split_first_chunk() else { return false };
        if u32::from_le_bytes(*version) != ACL_VERSION {
            return false;
        }
        let entries: Vec<Entry> = entries.chunks_exact(8).filter_map(Entry::parse).collect();
        let mask = entries.iter().find(|e| e.tag == Tag::Mask).map_or(0o7, |e| e.allows);
        let allows = |entry: &Entry, mask: u32| u32::from(entry.allows) & mask & what != 0;
        if let Some(own) = entries.iter().find(|e| e.tag == Tag::User && e.id == self.user) {
            return allows(own, mask.into());
        }
        let theirs = |e: &&Entry| match e.tag {
            Tag::OwningGroup => self.groups.contains(&group),
            Tag::Group => self.groups.contains(&e.id),
            _ => false,
        };
        let mut groups = entries.iter().filter(theirs).peekable();
        if groups.peek().is_some() {
            return groups.any(|e| allows(e, mask.into()));
        }
        entries.iter().any(|e| e.tag == Tag::Others && allows(e, 0o7))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tag {
    User,
    OwningGroup,
    Group,
    Mask,
    Others,
}

/// An entry of an access list.
struct Entry {
    tag: Tag,
    allows: u16,
    id: u32,
}

impl Entry {
    /// Parses an entry. The owner's is in the mode as well, and is skipped.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let (tag, rest) = bytes.split_first_chunk()?;
        let (allows, rest) = rest.split_first_chunk()?;
        let tag = match u16::from_le_bytes(*tag) {
            0x02 => Tag::User,
            0x04 => Tag::OwningGroup,
            0x08 => Tag::Group,
            0x10 => Tag::Mask,
            0x20 => Tag::Others,
            _ => return None,
        };
        Some(Self { tag, allows: u16::from_le_bytes(*allows), id: u32::from_le_bytes(*rest.first_chunk()?) })
    }
}

/// The access list of a located file; `None` if it has only a mode.
fn access_list(found: &File) -> Result<Option<Vec<u8>>, Errno> {
    let mut list = [0; MAX_ACL_BYTES];
    match rustix::fs::getxattr(super::again(found.as_raw_fd()), ACL, &mut list[..]) {
        Ok(length) => Ok(list.get(..length).map(<[u8]>::to_vec)),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(err) => Err(err),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn whose_rights_a_process_has() {
        let status = |uid: &str, gid: &str, capabilities: &str| {
            Rights::parse(&format!("Name:\tx\nUid:\t{uid}\nGid:\t{gid}\nGroups:\t20 30 \n{capabilities}"))
        };
        let own = Some(Rights { user: 1000, groups: vec![20, 30, 5], all: false });
        assert_eq!(status("1000 1000 1000 1000", "5 5 5 5", ""), own);
        assert_eq!(status("1000 1000 1000 1000", "5 5 5 5", "CapEff:\t000001ffffffffff\n"), own);
        assert_eq!(status("1000 0 0 0", "5 5 5 5", "CapEff:\t000001ffffffffff\n"), None, "a setuid program");
        let lent = Some(Rights { user: 1000, groups: vec![20, 30], all: false });
        assert_eq!(status("1000 1000 1000 1000", "5 6 6 6", ""), lent, "a setgid program");
        for (capabilities, all) in [
            ("CapEff:\t000001ffffffffff\n", true),
            ("CapEff:\t0000000000000004\n", true),
            ("CapEff:\t0\n", false),
            ("", false),
        ] {
            assert_eq!(
                status("0 0 0 0", "0 0 0 0", capabilities).map(|r| r.all),
                Some(all),
                "{capabilities}"
            );
        }
        assert_eq!(Rights::parse("Name:\tpython\n"), None);
    }

    #[test]
    fn a_setuid_program_that_became_root() {
        let notes = |secure: u64| [6, 4096, AT_SECURE, secure, 0, 0].map(u64::to_ne_bytes).concat();
        let of = |user| Rights { user, groups: Vec::new(), all: false };
        assert!(of(0).are_borrowed(&notes(1)) && !of(0).are_borrowed(&notes(0)) && !of(0).are_borrowed(&[]));
        assert!(
            !of(1000).are_borrowed(&notes(1)),
            "a program with capabilities of its own reads as its user"
        );
        let own = fs::read("/proc/self/auxv").unwrap();
        assert!(!of(0).are_borrowed(&own));
    }

    #[test]
    fn modes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, "x").unwrap();
        let owner = fs::metadata(&path).unwrap();
        let may = |user: u32, groups: &[u32], mode: u32| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let file = rustix::fs::open(&path, super::super::LOOK, rustix::fs::Mode::empty()).unwrap().into();
            let rights = Rights { user, groups: groups.to_vec(), all: false };
            rights.may(READS, &file, &fs::metadata(&path).unwrap())
        };
        let stranger = owner.uid() + 4711;
        let other = owner.gid() + 4711;
        assert!(may(stranger, &[other], 0o644) && !may(stranger, &[other], 0o640));
        assert!(may(stranger, &[owner.gid()], 0o640) && !may(stranger, &[owner.gid()], 0o604));
        assert!(may(owner.uid(), &[], 0o400) && !may(owner.uid(), &[], 0o044));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let file = File::open(&path).unwrap();
        let root = Rights { user: stranger, groups: Vec::new(), all: true };
        assert!(root.may(READS, &file, &file.metadata().unwrap()));
    }

    fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut bytes = ACL_VERSION.to_le_bytes().to_vec();
        for (tag, allows, id) in entries {
            bytes.extend([&tag.to_le_bytes()[..], &allows.to_le_bytes(), &id.to_le_bytes()].concat());
        }
        bytes
    }

    #[test]
    fn access_lists() {
        const ALL: u32 = u32::MAX;
        let rights = Rights { user: 1000, groups: vec![20], all: false };
        let may = |entries: &[(u16, u16, u32)]| rights.listed(READS, &list(entries), 7);
        let base = [(0x01, 6, ALL), (0x04, 0, ALL)];
        let with = |more: &[(u16, u16, u32)]| [&base[..], more].concat();
        assert!(may(&with(&[(0x02, 4, 1000), (0x10, 4, ALL), (0x20, 0, ALL)])), "named");
        assert!(!may(&with(&[(0x02, 4, 1000), (0x10, 0, ALL), (0x20, 0, ALL)])), "masked");
        assert!(!may(&with(&[(0x02, 0, 1000), (0x10, 4, ALL), (0x20, 4, ALL)])), "named and denied");
        assert!(may(&with(&[(0x08, 4, 20), (0x10, 4, ALL), (0x20, 0, ALL)])), "by group");
        assert!(!may(&with(&[(0x08, 0, 20), (0x10, 4, ALL), (0x20, 4, ALL)])), "a group that is denied");
        assert!(
            may(&with(&[(0x02, 0, 1001), (0x10, 0, ALL), (0x20, 4, ALL)])),
            "others, whom no mask is for"
        );
        assert!(
            !may(&with(&[(0x02, 4, 1001), (0x08, 4, 21), (0x10, 4, ALL), (0x20, 0, ALL)])),
            "not for them"
        );
        // The group bits of the mode are then the mask, and do not apply to the group.
        let owning = Rights { user: 1000, groups: vec![7], all: false };
        let masked = list(&with(&[(0x02, 4, 1001), (0x10, 4, ALL), (0x20, 0, ALL)]));
        assert!(!owning.listed(READS, &masked, 7));
        assert!(!rights.listed(READS, &[], 7) && !rights.listed(READS, &[9, 0, 0, 0], 7));
    }

    #[test]
    fn the_access_list_of_a_file_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, "x").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        let stranger = Rights { user: metadata.uid() + 4711, groups: Vec::new(), all: false };
        let may = || stranger.may(READS, &File::open(&path).unwrap(), &fs::metadata(&path).unwrap());
        assert!(!may());
        let entries =
            [(0x01, 6, u32::MAX), (0x02, 4, stranger.user), (0x04, 0, u32::MAX), (0x10, 4, u32::MAX)];
        let named = list(&[&entries[..], &[(0x20, 0, u32::MAX)]].concat());
        match rustix::fs::setxattr(&path, ACL, &named, rustix::fs::XattrFlags::empty()) {
            Ok(()) => assert!(may()),
            // A file system without access lists has only modes.
            Err(err) => assert_eq!((err, may()), (Errno::OPNOTSUPP, false)),
        }
    }

    proptest::proptest! {
        #[test]
        fn any_status_and_any_list(text: String, bytes: Vec<u8>) {
            let _ = Rights::parse(&text);
            let _ = Rights::default().listed(READS, &bytes, 0);
        }
    }
}
