//! Saves the state that must survive a restart of this exporter: every 15 seconds, at once when a
//! trainer starts or restarts, and at the end.

use std::path::PathBuf;
use std::time::Duration;

use stepwatch_kit::shutdown::Shutdown;

use crate::hub::Hub;
use crate::training::Archive;

/// A crash may lose this much of the state, which costs nothing because steps only went forward.
/// Each save costs a flush of the disk, and as much as hundreds of steps.
const INTERVAL: Duration = Duration::from_secs(15);

/// Creates the directory. If that fails, it logs the consequences and continues.
pub fn prepare(dir: &std::path::Path) -> bool {
    match std::fs::create_dir_all(dir) {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(
                state_dir = %dir.display(),
                %error,
                "cannot make the state directory: attempts and file positions will be forgotten on a restart"
            );
            false
        }
    }
}

/// Saves periodically until `shutdown`, and then once more.
pub async fn keep(hub: Hub, dir: PathBuf, shutdown: Shutdown) {
    let mut saved = Archive::default();
    let mut failing = false;
    loop {
        tokio::select! {
            () = shutdown.wait() => {}
            () = hub.urgent() => {}
            () = tokio::time::sleep(INTERVAL) => {}
        }
        let archive = hub.archive();
        if archive != saved {
            let (copy, to) = (archive.clone(), dir.clone());
            let result = tokio::task::spawn_blocking(move || copy.save(&to)).await;
            match result.map_err(std::io::Error::other).flatten() {
                Ok(()) => {
                    saved = archive;
                    failing = false;
                }
                Err(error) => {
                    hub.state_not_saved();
                    if !std::mem::replace(&mut failing, true) {
                        tracing::error!(dir = %dir.display(), %error, "cannot save the state; trying again");
                    }
                }
            }
        }
        if shutdown.is_set() {
            return;
        }
    }
}
