//! Saves what must survive a restart of this exporter: every quarter of a minute, at once when a
//! trainer starts or restarts, and at the end.

use std::path::PathBuf;
use std::time::Duration;

use stepwatch_kit::shutdown::Shutdown;

use crate::hub::Hub;
use crate::training::Archive;

/// Steps of this long may be forgotten by a crash, which costs nothing: they only went forward.
/// Each time costs the disk a flush, and as much as hundreds of steps.
const INTERVAL: Duration = Duration::from_secs(15);

/// Makes the directory. If that fails, logs what it costs and goes on.
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

/// Saves until `shutdown`, and then once more.
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
