//! An operator removes the database of the running alerter.

use crate::attack::{Attack, Target};

/// The additional page is the alerter's own.
pub(crate) const ATTACK: Attack =
    Attack { neighbour: false, pages: 1, unrecorded: true, ..Attack::new("store-removed", act) };

fn act(target: &Target) -> anyhow::Result<()> {
    for suffix in ["", "-wal", "-shm"] {
        let mut path = target.database.clone().into_os_string();
        path.push(suffix);
        std::fs::remove_file(path)?;
    }
    Ok(())
}
