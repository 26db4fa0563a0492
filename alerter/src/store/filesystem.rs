//! Detects filesystems on which SQLite must not run.
//!
//! The write-ahead log needs a mapped file that connections share, and POSIX locks; filesystems
//! that several machines mount support neither. Home directories of clusters are nearly always on
//! such a filesystem.

use std::io;
use std::path::Path;

/// Shared filesystems by the `f_type` of statfs(2). FUSE is not listed, although sshfs, JuiceFS and
/// s3fs use it, because the root of a rootless container (fuse-overlayfs) is FUSE too, but local.
const SHARED: &[(u32, &str)] = &[
    (0x0000_6969, "NFS"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS (Spectrum Scale)"),
    (0x1983_0326, "BeeGFS"),
    (0x00c3_6400, "CephFS"),
    (0xaad7_aaea, "PanFS"),
    (0x2003_0528, "OrangeFS"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0x0000_517b, "SMB"),
    (0xfe53_4d42, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x0102_1997, "9P"),
    (0x786f_4256, "VirtualBox shared folders"),
];

/// The name of the shared filesystem of `directory`; `None` if it is local.
pub(super) fn shared(directory: &Path) -> io::Result<Option<&'static str>> {
    let stat = rustix::fs::statfs(directory)?;
    // The kernel's magic numbers are 32 bits wide; the field is wider, and signed on some
    // architectures.
    Ok(name(stat.f_type as u32))
}

fn name(magic: u32) -> Option<&'static str> {
    SHARED.iter().find(|(known, _)| *known == magic).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_shared_from_local() {
        assert_eq!(name(0x6969), Some("NFS"));
        assert_eq!(name(0x0bd0_0bd0), Some("Lustre"));
        // ext4, xfs, btrfs, tmpfs, overlayfs, zfs.
        for local in [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630, 0x2fc1_2fc1] {
            assert_eq!(name(local), None, "{local:#x}");
        }
        // Sign extension of a signed field must not hide a filesystem.
        assert_eq!(name(i64::from(0xff53_4d42_u32 as i32) as u32), Some("CIFS"));
    }

    #[test]
    fn asks_the_kernel() {
        assert!(shared(Path::new("/proc")).unwrap().is_none());
        assert!(shared(Path::new("/no/such/directory")).is_err());
    }
}
