//! What of routes, teams and `fallback` is allowed and probably not meant.

use stepwatch_engine::matcher::Labels;
use stepwatch_engine::route::Router;
use stepwatch_engine::verdict::{Kind, Severity};

use super::File;

pub(super) fn warnings(file: &File, warnings: &mut Vec<String>) {
    let engine = file.engine();
    let Ok(router) = Router::new(&file.routes, &file.teams) else { return };
    let labels = |of: &[(&str, &str)]| -> Labels {
        of.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let ours = labels(&[("kind", Kind::AlerterFault.as_str()), ("severity", "page"), ("cause", "alerting")]);
    let way = router.ways(&engine, &ours).into_iter().next().map(|way| way.route);
    if way.as_deref() == Some("one receiver") {
        warnings.push(
            "fallback: is empty, and every receiver that wakes belongs to a team: one of them is told what is wrong with the alerter \
             itself. Name whom to tell"
                .into(),
        );
    }
    for (i, team) in file.teams.iter().enumerate() {
        let ways = router.ways(&engine, &labels(&[("team", &team.name), ("severity", "page")]));
        if ways.iter().all(|way| way.levels.is_empty() && way.route.ends_with(&format!(" {}", team.name))) {
            warnings.push(format!(
                "teams[{i}]: has neither notify, policy nor fallback, and there is no `fallback`: a page that no route takes is told to \
                 nobody, and is a fault of the alerter"
            ));
        }
    }
    let tickets = labels(&[("severity", "ticket")]);
    for way in router.ways(&engine, &tickets) {
        let of_tickets = way.levels.iter().filter(|level| level.condition.severity != Some(Severity::Page));
        let mut pagers: Vec<&str> = of_tickets
            .flat_map(|level| &level.notify)
            .map(String::as_str)
            .filter(|item| engine.wakes(item))
            .collect();
        pagers.sort_unstable();
        pagers.dedup();
        if !pagers.is_empty() {
            let (route, pagers) = (&way.route, pagers.join(" and "));
            warnings.push(format!(
                "{route}: leads to {pagers} with tickets too, which wakes somebody unless urgency there follows severity"
            ));
        }
    }
}
