//! Changes of links of any kind, as events of the stream.
//!
//! The terms are the same for InfiniBand, RoCE, EFA, Ethernet and PCIe. A link is `up` or `down`, a
//! long `down` is a `drop`, and many short ones are a `flap`. A link that is up may be `degraded`
//! (slower or narrower than it should be) or have `errors`. [`watch`] decides on the first four,
//! [`pace`] on the expected speed, [`rates`] on errors; none reads a clock or a file.

use stepwatch_wire::{Event, Kind, Value};

pub mod pace;
pub mod rates;
pub mod watch;

/// Seconds between repeated events of a condition that holds, for an alerter that starts late.
const AGAIN_SECONDS: f64 = 600.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    Infiniband,
    Roce,
    Efa,
    Ethernet,
    Pcie,
    Nvlink,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Up,
    Down,
    Drop,
    Flap,
    Degraded,
    Errors,
}

/// The level, from good to bad: for an annotation, a ticket or a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Info,
    Warn,
    Error,
}

/// A change of a link that has to be published.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    pub state: State,
    /// Whether the condition ended; otherwise it holds.
    pub over: bool,
    /// Whether the condition was published before and still holds.
    pub again: bool,
    pub level: Level,
    /// The text after the name of the link, such as "went down".
    pub text: String,
}

/// The link that changed.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    pub medium: Medium,
    /// The name, such as `mlx5_0/1`, `eth0` or `0000:1b:00.0`.
    pub name: &'a str,
    /// The network interface; empty if there is none or it is unknown.
    pub netdev: &'a str,
    pub pci: &'a str,
    /// The UUID of the GPU at its end.
    pub gpu: &'a str,
    /// Further information for a person: empty, or a sentence.
    pub hint: &'a str,
}

impl Medium {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Infiniband => "infiniband",
            Self::Roce => "roce",
            Self::Efa => "efa",
            Self::Ethernet => "ethernet",
            Self::Pcie => "pcie",
            Self::Nvlink => "nvlink",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Infiniband => "InfiniBand port",
            Self::Roce => "RoCE port",
            Self::Efa => "EFA device",
            Self::Ethernet => "Ethernet link",
            Self::Pcie => "PCIe link of",
            Self::Nvlink => "NVLink",
        }
    }
}

impl State {
    /// The states that are conditions, for gauges that exist from the start.
    pub const CONDITIONS: [Self; 5] = [Self::Down, Self::Drop, Self::Flap, Self::Degraded, Self::Errors];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Drop => "drop",
            Self::Flap => "flap",
            Self::Degraded => "degraded",
            Self::Errors => "errors",
        }
    }
}

impl Level {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

impl Subject<'_> {
    pub fn event(&self, now: f64, change: &Change) -> Event {
        let mut text = format!("{} {} {}", self.medium.title(), self.name, change.text);
        if !change.over && !self.hint.is_empty() {
            text = format!("{text}: {}", self.hint);
        }
        let mut event = Event {
            ts: Some(now),
            name: Some(self.name.to_owned()),
            code: Some(i64::from(change.over)),
            level: Some(change.level.as_str().into()),
            text: Some(text),
            ..Event::new(Kind::Link)
        };
        let words = [
            ("medium", self.medium.as_str()),
            ("state", change.state.as_str()),
            ("netdev", self.netdev),
            ("pci", self.pci),
            ("gpu", self.gpu),
        ];
        for (key, word) in words.into_iter().filter(|(_, word)| !word.is_empty()) {
            event.extra.insert(key.into(), Value::Text(word.into()));
        }
        if change.again {
            event.extra.insert("again".into(), Value::Bool(true));
        }
        event
    }
}

/// A condition that holds or not. It is published when that changes, when it gets worse, and
/// periodically while it holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Standing {
    published: Option<(f64, Level)>,
}

impl Standing {
    pub fn holds(&self) -> bool {
        self.published.is_some()
    }

    /// Reports the state: `is` is the level and the text; `None` if the condition does not hold.
    pub fn report(
        &mut self,
        now: f64,
        state: State,
        is: Option<(Level, String)>,
        well: &str,
    ) -> Option<Change> {
        let Some((level, text)) = is else {
            self.published.take()?;
            let text = well.to_owned();
            return Some(Change { state, over: true, again: false, level: Level::Info, text });
        };
        let again = match self.published {
            Some((at, before)) if before >= level && now - at < AGAIN_SECONDS => return None,
            Some((_, before)) => before >= level,
            None => false,
        };
        self.published = Some((now, level));
        Some(Change { state, over: false, again, level, text })
    }
}

/// Whether the `flags` of a network interface in `/sys/class/net` have `IFF_UP` set. An interface
/// without it was taken down on purpose.
pub fn is_set_up(flags: &str) -> Option<bool> {
    const IFF_UP: u32 = 1;
    let flags = u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16).ok()?;
    Some(flags & IFF_UP != 0)
}

/// A duration for people, rounded to one unit.
pub fn span(seconds: f64) -> String {
    let seconds = seconds.max(0.0);
    let (value, unit) = match seconds {
        s if s < 120.0 => (s, "s"),
        s if s < 7200.0 => (s / 60.0, "min"),
        s if s < 172_800.0 => (s / 3600.0, "h"),
        s => (s / 86_400.0, "days"),
    };
    format!("{value:.0} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_says_what_where_and_how_bad() {
        let subject = Subject {
            medium: Medium::Infiniband,
            name: "mlx5_3/1",
            netdev: "ib3",
            pci: "0000:5d:00.0",
            gpu: "",
            hint: "the port sees no signal (Polling)",
        };
        let change = Change {
            state: State::Down,
            over: false,
            again: false,
            level: Level::Warn,
            text: "went down".into(),
        };
        let event = subject.event(5.0, &change);
        assert_eq!(
            event.text.as_deref(),
            Some("InfiniBand port mlx5_3/1 went down: the port sees no signal (Polling)")
        );
        assert_eq!((event.code, event.level.as_deref(), event.ts), (Some(0), Some("warn"), Some(5.0)));
        let word = |key: &str| event.extra.get(key).and_then(Value::as_str);
        assert_eq!(
            (word("medium"), word("state"), word("netdev"), word("gpu")),
            (Some("infiniband"), Some("down"), Some("ib3"), None)
        );
    }

    #[test]
    fn a_standing_condition_is_published_when_it_begins_worsens_lasts_and_ends() {
        let mut standing = Standing::default();
        let bad = |level| Some((level, "is slow".to_owned()));
        let mut published = |now, is| {
            let change = standing.report(now, State::Degraded, is, "is well");
            change.map(|c| (c.over, c.again, c.level))
        };
        assert_eq!(published(0.0, None), None);
        assert_eq!(published(1.0, bad(Level::Warn)), Some((false, false, Level::Warn)));
        assert_eq!(published(2.0, bad(Level::Warn)), None);
        assert_eq!(published(3.0, bad(Level::Error)), Some((false, false, Level::Error)));
        assert_eq!(published(602.0, bad(Level::Warn)), None);
        assert_eq!(published(603.0, bad(Level::Error)), Some((false, true, Level::Error)));
        assert_eq!(published(604.0, None), Some((true, false, Level::Info)));
        assert_eq!(published(605.0, None), None);
    }

    #[test]
    fn flags_of_interfaces() {
        let said = ["0x1003", "0x1002\n", "1003", "", "up", "0x100000000"].map(is_set_up);
        assert_eq!(said, [Some(true), Some(false), Some(true), None, None, None]);
    }

    proptest::proptest! {
        #[test]
        fn any_flags(flags: u32, text: String) {
            proptest::prop_assert_eq!(is_set_up(&format!("{flags:#x}")), Some(flags & 1 == 1));
            let _ = is_set_up(&text);
        }
    }

    #[test]
    fn spans() {
        assert_eq!(
            [0.0, 31.4, 300.0, 43_200.0, 864_000.0].map(span),
            ["0 s", "31 s", "5 min", "12 h", "10 days"]
        );
    }
}
