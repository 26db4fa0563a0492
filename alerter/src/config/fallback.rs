//! Warnings about routes, teams and `fallback` that are allowed but probably unintended.

use std::collections::BTreeSet;

use stepwatch_model::{Kind, Severity};
use stepwatch_respond::config::ResponderConfig;
use stepwatch_respond::matcher::Labels;
use stepwatch_respond::oncall::{SCHEDULE, USER};
use stepwatch_respond::route::{Router, Way, WayName};

use super::file::File;
use super::teams::levels_of;

pub(super) fn warnings(file: &File, warnings: &mut Vec<String>) {
    let engine = file.responder();
    let Ok(router) = Router::new(&file.routes, &file.teams) else { return };
    let ours = labels(&[("kind", Kind::AlerterFault.as_str()), ("severity", "page"), ("cause", "alerting")]);
    let way = router.ways(&engine, &ours).into_iter().next().map(|way| way.name);
    if way == Some(WayName::OneReceiver) {
        warnings.push(
            "fallback: is empty, and every receiver that wakes belongs to a team: one of them is notified of what is wrong with the alerter \
             itself. Name whom to notify"
                .into(),
        );
    }
    for (i, team) in file.teams.iter().enumerate() {
        let ways = router.ways(&engine, &labels(&[("team", &team.name), ("severity", "page")]));
        let is_nobody = |way: &Way| way.levels.is_empty() && is_of_team(&way.name, &team.name);
        if ways.iter().all(is_nobody) {
            warnings.push(format!(
                "teams[{i}]: has neither notify, policy nor fallback, and there is no `fallback`: a page that no route takes notifies \
                 nobody, and is a fault of the alerter"
            ));
        }
    }
    wake_nobody(&engine, &router, warnings);
    // The routes of alerts without a team, and of each team, that no route matches.
    let mut ways = router.ways(&engine, &labels(&[("severity", "ticket")]));
    for (i, team) in router.team_names().into_iter().enumerate() {
        let of_team = router.ways(&engine, &labels(&[("team", team), ("severity", "ticket")]));
        ways.extend(of_team.into_iter().map(|way| {
            let is_own = way.name == WayName::Team(team.to_owned());
            // The position in the configuration.
            Way { name: if is_own { WayName::Route(format!("teams[{i}]")) } else { way.name }, ..way }
        }));
    }
    let mut seen = BTreeSet::new();
    for way in ways.iter().filter(|way| seen.insert(&way.name)) {
        warnings.extend(waits(way));
        let items = levels_of(way, Severity::Ticket).into_iter().flat_map(|level| &level.notify);
        let pagers: BTreeSet<&str> =
            items.map(String::as_str).filter(|item| engine.wakes_as_planned(item)).collect();
        if !pagers.is_empty() {
            let pagers = pagers.into_iter().collect::<Vec<_>>().join(" and ");
            warnings.push(format!(
                "{}: leads to {pagers} with tickets too, which wakes somebody unless urgency there follows severity",
                way.name
            ));
        }
    }
}

/// Whether the receivers come from the team and not from a route.
fn is_of_team(name: &WayName, team: &str) -> bool {
    matches!(name, WayName::Team(of) | WayName::FallbackOfTeam(of) | WayName::NobodyOfTeam(of) if of == team)
}

fn labels(of: &[(&str, &str)]) -> Labels {
    of.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// Warns about routes on which a page wakes nobody although some receivers wake. A level for
/// tickets is not used by a page.
fn wake_nobody(engine: &ResponderConfig, router: &Router, warnings: &mut Vec<String>) {
    if engine.waking.is_empty() {
        return;
    }
    let mut seen = BTreeSet::new();
    for way in ways_of_pages(engine, router) {
        let mut items = levels_of(&way, Severity::Page).into_iter().flat_map(|l| &l.notify).peekable();
        if items.peek().is_none()
            || items.any(|item| engine.wakes_as_planned(item))
            || !seen.insert(way.name.clone())
        {
            continue;
        }
        let pagers = engine.waking.join(" and ");
        warnings
            .push(format!("{}: a page that goes there wakes nobody; who wakes somebody: {pagers}", way.name));
    }
}

/// The ways that a page may take, of no team and of each.
fn ways_of_pages(engine: &ResponderConfig, router: &Router) -> Vec<Way> {
    let teams = router.team_names().into_iter().map(|team| vec![("severity", "page"), ("team", team)]);
    let all = core::iter::once(vec![("severity", "page")]).chain(teams);
    all.flat_map(|of| router.possible(engine, &labels(&of), &["severity", "team"])).map(|p| p.way).collect()
}

/// The way of a page that leads to a schedule whose people are woken, although nothing wakes
/// `user`; `None` if a page may ring this user, or none leads there.
pub(crate) fn wakes_not(
    engine: &ResponderConfig,
    router: &Router,
    schedule: &str,
    user: &str,
) -> Option<WayName> {
    let (item, person) = (format!("{SCHEDULE}{schedule}"), format!("{USER}{user}"));
    if !engine.wakes_as_planned(&item) || engine.wakes(&person) {
        return None;
    }
    let leads = |way: &Way| levels_of(way, Severity::Page).iter().any(|level| level.notify.contains(&item));
    ways_of_pages(engine, router).into_iter().find(leads).map(|way| way.name)
}

/// A warning about a way that no route, policy or team names and that has only receivers that wake.
fn waits(way: &Way) -> Option<String> {
    let tickets_wait = way.policy.is_none() && levels_of(way, Severity::Ticket).is_empty();
    let pagers: Vec<&str> = way.levels.iter().flat_map(|level| &level.notify).map(String::as_str).collect();
    if !tickets_wait || pagers.is_empty() {
        return None;
    }
    Some(format!(
        "{}: is {}, which may wake somebody, so that a ticket that no route matches notifies nobody and waits in the list of incidents. \
         Add a receiver that wakes nobody (slack, email, webhook), or a route for what has severity=\"ticket\"",
        way.name,
        pagers.join(" and ")
    ))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::Config;

    /// A pager gets only pages. If no other receiver is left, a ticket waits in the list, and the
    /// description says so.
    #[test]
    fn a_ticket_that_no_route_matches_rings_no_pager() {
        let shown = |text: &str| {
            let c = Config::parse(Path::new("/etc/stepwatch/alerter.yml"), text).unwrap();
            let routes = c.sections().into_iter().find(|(heading, _)| *heading == "routes").unwrap().1;
            let warnings: Vec<String> = c.warnings.into_iter().filter(|w| w.contains("ticket")).collect();
            (routes, warnings)
        };
        let both = "receivers: [{name: chat, stdout: {}}, {name: pager, wakes: true, stdout: {}}]\n";
        let line = "page and ticket -> chat, pager (pages); info -> nobody".to_owned();
        assert_eq!(shown(both), (vec![line], vec![]));
        let pagers = "receivers: [{name: pager, wakes: true, stdout: {}}]\n";
        let (routes, warnings) = shown(pagers);
        assert_eq!(
            routes,
            ["page -> pager; ticket -> nobody, it waits in the list of incidents; info -> nobody"]
        );
        assert_eq!(
            warnings,
            [
                "every receiver: is pager, which may wake somebody, so that a ticket that no route matches notifies nobody and waits in the list \
          of incidents. Add a receiver that wakes nobody (slack, email, webhook), or a route for what has severity=\"ticket\""
            ]
        );
        let of_tickets = "routes: [{match: ['severity=\"ticket\"'], notify: [pager]}]\n";
        let (_, warnings) = shown(&format!("{pagers}{of_tickets}"));
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("leads to pager with tickets too"), "{warnings:?}");
    }
}
