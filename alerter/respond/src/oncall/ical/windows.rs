//! Finds time zones by the names that calendars use: those of the IANA database, and those of
//! Windows.

use crate::oncall::Zone;

/// Windows' names with their IANA zones (Unicode CLDR, `windowsZones`, territory 001).
const NAMES: &[(&str, &str)] = &[
    ("AUS Central Standard Time", "Australia/Darwin"),
    ("AUS Eastern Standard Time", "Australia/Sydney"),
    ("Alaskan Standard Time", "America/Anchorage"),
    ("Arabian Standard Time", "Asia/Dubai"),
    ("Arabic Standard Time", "Asia/Baghdad"),
    ("Argentina Standard Time", "America/Buenos_Aires"),
    ("Atlantic Standard Time", "America/Halifax"),
    ("Cen. Australia Standard Time", "Australia/Adelaide"),
    ("Central America Standard Time", "America/Guatemala"),
    ("Central Europe Standard Time", "Europe/Budapest"),
    ("Central European Standard Time", "Europe/Warsaw"),
    ("Central Standard Time", "America/Chicago"),
    ("Central Standard Time (Mexico)", "America/Mexico_City"),
    ("China Standard Time", "Asia/Shanghai"),
    ("E. Africa Standard Time", "Africa/Nairobi"),
    ("E. Australia Standard Time", "Australia/Brisbane"),
    ("E. Europe Standard Time", "Europe/Chisinau"),
    ("E. South America Standard Time", "America/Sao_Paulo"),
    ("Eastern Standard Time", "America/New_York"),
    ("Egypt Standard Time", "Africa/Cairo"),
    ("FLE Standard Time", "Europe/Kiev"),
    ("GMT Standard Time", "Europe/London"),
    ("GTB Standard Time", "Europe/Bucharest"),
    ("Greenwich Standard Time", "Atlantic/Reykjavik"),
    ("Hawaiian Standard Time", "Pacific/Honolulu"),
    ("India Standard Time", "Asia/Calcutta"),
    ("Israel Standard Time", "Asia/Jerusalem"),
    ("Korea Standard Time", "Asia/Seoul"),
    ("Mountain Standard Time", "America/Denver"),
    ("New Zealand Standard Time", "Pacific/Auckland"),
    ("Newfoundland Standard Time", "America/St_Johns"),
    ("Pacific SA Standard Time", "America/Santiago"),
    ("Pacific Standard Time", "America/Los_Angeles"),
    ("Pakistan Standard Time", "Asia/Karachi"),
    ("Romance Standard Time", "Europe/Paris"),
    ("Russian Standard Time", "Europe/Moscow"),
    ("SA Pacific Standard Time", "America/Bogota"),
    ("SE Asia Standard Time", "Asia/Bangkok"),
    ("Singapore Standard Time", "Asia/Singapore"),
    ("South Africa Standard Time", "Africa/Johannesburg"),
    ("Taipei Standard Time", "Asia/Taipei"),
    ("Tasmania Standard Time", "Australia/Hobart"),
    ("Tokyo Standard Time", "Asia/Tokyo"),
    ("Turkey Standard Time", "Europe/Istanbul"),
    ("US Mountain Standard Time", "America/Phoenix"),
    ("UTC", "UTC"),
    ("Coordinated Universal Time", "UTC"),
    ("W. Australia Standard Time", "Australia/Perth"),
    ("W. Central Africa Standard Time", "Africa/Lagos"),
    ("W. Europe Standard Time", "Europe/Berlin"),
    ("West Asia Standard Time", "Asia/Tashkent"),
];

/// Finds a zone by its name. Some programs put a path of their own before the name:
/// `/freeassociation.sourceforge.net/Europe/Berlin`.
pub(super) fn zone(id: &str) -> Option<Zone> {
    let id = id.trim().trim_matches('"');
    if let Some((_, iana)) = NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(id)) {
        return Zone::named(iana).ok();
    }
    let tail = |parts: usize| {
        let at = id.rmatch_indices('/').nth(parts - 1)?.0;
        Some(&id[at + 1..])
    };
    [Some(id), tail(3), tail(2)].into_iter().flatten().find_map(|name| Zone::named(name).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_place() {
        for (name, iana) in NAMES {
            assert!(zone(name).is_some_and(|z| z.name() == *iana), "{name}");
        }
        assert_eq!(zone("/freeassociation.sourceforge.net/Europe/Berlin").unwrap().name(), "Europe/Berlin");
        assert_eq!(zone("/x/America/Indiana/Knox").unwrap().name(), "America/Indiana/Knox");
        assert_eq!(zone("Nowhere"), None);
    }
}
