//! What incidents have come to know since their stored form was settled: stored after it, so that
//! what was stored before still reads.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::book::Incident;
use super::{End, Named, Subject};
use crate::time::Ts;
use crate::verdict::Kind;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Later {
    end: Option<End>,
    named: Option<Named>,
    silent: BTreeMap<(Subject, Kind), Ts>,
    alerts: BTreeSet<u64>,
    outlived_its_run: bool,
}

impl Later {
    pub(crate) fn of(i: &Incident) -> Self {
        Self {
            end: i.record.end.clone(),
            named: i.record.named.clone(),
            silent: i.silent.clone(),
            alerts: i.alerts.clone(),
            outlived_its_run: i.outlived_its_run,
        }
    }

    pub(crate) fn give_to(self, i: &mut Incident) {
        (i.record.end, i.record.named) = (self.end, self.named);
        (i.silent, i.alerts, i.outlived_its_run) = (self.silent, self.alerts, self.outlived_its_run);
    }
}

/// Of a record as people and the store see it, which is JSON. In the engine's own form it stands in
/// [`Later`].
pub(super) mod in_json {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[expect(clippy::ref_option, reason = "serde hands over a reference to the field")]
    pub(crate) fn serialize<T: Serialize, S: Serializer>(value: &Option<T>, s: S) -> Result<S::Ok, S::Error> {
        // A unit has no bytes.
        if s.is_human_readable() { value.serialize(s) } else { s.serialize_unit() }
    }

    pub(crate) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        d: D,
    ) -> Result<Option<T>, D::Error> {
        if d.is_human_readable() { Option::deserialize(d) } else { Ok(None) }
    }
}
