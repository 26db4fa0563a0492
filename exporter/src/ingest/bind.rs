//! Creates the two sockets and replaces files that an earlier process left behind.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Both sockets, bound. Their files are removed when this is dropped.
#[derive(Debug)]
pub struct Sockets {
    pub(super) seqpacket: OwnedFd,
    pub(super) datagram: OwnedFd,
    files: Files,
}

/// The socket files of this process, which are removed on drop.
#[derive(Debug)]
pub struct Files(Vec<PathBuf>);

/// The name of the datagram socket in the directory of the packet socket.
const DATAGRAM: &str = "ingest.dgram";
/// Connections that may wait to be accepted: all ranks of a node start at once.
const BACKLOG: i32 = 1024;

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error(
        "cannot make the directory {path} for the ingest socket; set ingest.socket or STEPWATCH_SOCKET to a place where this user may write"
    )]
    Directory { path: PathBuf, source: io::Error },
    #[error(
        "cannot bind the ingest socket {path}; set ingest.socket or STEPWATCH_SOCKET to a place where this user may write"
    )]
    Bind { path: PathBuf, source: io::Error },
    #[error("{path} exists and is not a socket")]
    NotASocket { path: PathBuf },
    #[error("another exporter listens at {path}")]
    Taken { path: PathBuf },
}

impl Sockets {
    /// Binds both sockets. No other program may use `path`; its directory is created if missing.
    pub fn bind(path: &Path) -> Result<Self, BindError> {
        let dir = path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(dir)
            .map_err(|source| BindError::Directory { path: dir.into(), source })?;
        let mut files = Files(Vec::new());
        let seqpacket = bind_one(path, SocketType::SEQPACKET, &mut files)?;
        if let Err(error) = stepwatch_sys::credentials::refuse_descriptors(&seqpacket) {
            tracing::warn!(%error, "the kernel does not refuse descriptors at the ingest socket");
        }
        rustix::net::listen(&seqpacket, BACKLOG)
            .map_err(|e| BindError::Bind { path: path.into(), source: e.into() })?;
        let datagram = bind_one(&dir.join(DATAGRAM), SocketType::DGRAM, &mut files)?;
        Ok(Self { seqpacket, datagram, files })
    }

    /// Separates the descriptors, which are served elsewhere, from the files, which stay until
    /// dropped.
    pub fn into_parts(self) -> (Self, Files) {
        let Self { seqpacket, datagram, files } = self;
        (Self { seqpacket, datagram, files: Files(Vec::new()) }, files)
    }
}

fn bind_one(path: &Path, kind: SocketType, files: &mut Files) -> Result<OwnedFd, BindError> {
    let fail = |e: rustix::io::Errno| BindError::Bind { path: path.into(), source: e.into() };
    let open = || {
        rustix::net::socket_with(
            AddressFamily::UNIX,
            kind,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
    };
    let address = SocketAddrUnix::new(path).map_err(fail)?;
    if let Ok(meta) = std::fs::symlink_metadata(path) {
        if !meta.file_type().is_socket() {
            return Err(BindError::NotASocket { path: path.into() });
        }
        // A connection is accepted only if a process serves the socket.
        if rustix::net::connect(&open().map_err(fail)?, &address).is_ok() {
            return Err(BindError::Taken { path: path.into() });
        }
        std::fs::remove_file(path).map_err(|source| BindError::Bind { path: path.into(), source })?;
    }
    let socket = open().map_err(fail)?;
    rustix::net::bind(&socket, &address).map_err(fail)?;
    files.0.push(path.into());
    // Trainers run as any user, so any user may send.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))
        .map_err(|source| BindError::Bind { path: path.into(), source })?;
    Ok(socket)
}

impl Drop for Files {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn makes_its_directory_and_lets_everyone_in() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/ingest.sock");
        let sockets = Sockets::bind(&path).unwrap();
        for file in [path.clone(), path.with_file_name(DATAGRAM)] {
            assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o666);
        }
        assert!(matches!(Sockets::bind(&path), Err(BindError::Taken { .. })));
        drop(sockets);
        assert!(!path.exists());
    }

    #[test]
    fn replaces_what_a_crash_left_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ingest.sock");
        let (sockets, files) = Sockets::bind(&path).unwrap().into_parts();
        drop(sockets);
        core::mem::forget(files);
        assert!(path.exists());
        drop(Sockets::bind(&path).unwrap());
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(Sockets::bind(&path), Err(BindError::NotASocket { .. })));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }
}
