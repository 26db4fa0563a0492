//! What other users can change: root neither writes where another user can put a link, nor runs
//! what another user can replace.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::process::geteuid;

/// Refuses a path without links that another user can change, or can put another one in the place
/// of.
pub(super) fn guarded(path: &Path) -> Result<(), String> {
    let own = geteuid().as_raw();
    for at in path.ancestors() {
        let meta = fs::symlink_metadata(at).map_err(|error| error.to_string())?;
        let open = meta.mode() & 0o022 != 0;
        // In a sticky directory nobody moves what belongs to others.
        let kept = at != path && meta.mode() & 0o1000 != 0;
        if ![own, 0].contains(&meta.uid()) || (open && !kept) {
            return Err(format!("another user can change what is in {}", at.display()));
        }
    }
    Ok(())
}
