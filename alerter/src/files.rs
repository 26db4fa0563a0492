//! Reads small files that the configuration names and other programs write.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

/// The bytes of a regular file, at most `max` of them. The error does not name the path.
///
/// A FIFO is refused, because opening one blocks until another process writes to it.
pub(crate) fn read_regular(path: &Path, max: usize) -> Result<Vec<u8>, String> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(|e| e.to_string())?;
    if !file.metadata().map_err(|e| e.to_string())?.is_file() {
        return Err("is not a regular file".into());
    }
    let mut bytes = Vec::new();
    let read = file.take(max as u64 + 1).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    if read > max {
        return Err(format!("has more than {max} bytes"));
    }
    Ok(bytes)
}
