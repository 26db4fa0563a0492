//! Finds what a schedule decides for, by the routes and teams that lead to it.

use stepwatch_respond::config::{ResponderConfig, Route};
use stepwatch_respond::matcher::{Matcher, Op};
use stepwatch_respond::oncall::SCHEDULE;

/// The matchers of everything that may lead to a schedule, one list for each way. An empty list
/// matches everything.
pub(super) fn reaching(config: &ResponderConfig, schedule: &str) -> Vec<Vec<Matcher>> {
    let item = format!("{SCHEDULE}{schedule}");
    let leads = |notify: &[String], policy: Option<&str>| {
        let policies = config.policies.iter().filter(|p| policy == Some(p.name.as_str()));
        notify.contains(&item) || policies.flat_map(|p| &p.levels).any(|level| level.notify.contains(&item))
    };
    let mut found = Vec::new();
    let by_route = |route: &Route| leads(&route.notify, route.policy.as_deref());
    of_routes(&config.routes, &[], &by_route, &mut found);
    for team in &config.teams {
        if leads(&team.notify, team.policy.as_deref()) || team.fallback.contains(&item) {
            found.push(Matcher::new("team", Op::Equal, team.name.as_str()).into_iter().collect());
        }
    }
    if config.fallback.contains(&item) {
        found.push(Vec::new());
    }
    found
}

/// A child that inherits the way of its parent matches less than the parent, which is found.
fn of_routes(
    routes: &[Route],
    above: &[Matcher],
    leads: &dyn Fn(&Route) -> bool,
    found: &mut Vec<Vec<Matcher>>,
) {
    for route in routes {
        // A route whose matchers do not parse matches nothing.
        let Ok(own) = route.matchers.iter().map(|text| Matcher::parse(text)).collect::<Result<Vec<_>, _>>()
        else {
            continue;
        };
        let all = [above, &own].concat();
        if leads(route) {
            found.push(all.clone());
        }
        of_routes(&route.routes, &all, leads, found);
    }
}

#[cfg(test)]
mod tests {
    use stepwatch_respond::config::{Level, Policy, Team};

    use super::*;

    fn route(matchers: &[&str], policy: Option<&str>, notify: &[&str]) -> Route {
        Route {
            matchers: matchers.iter().map(|m| (*m).to_owned()).collect(),
            policy: policy.map(str::to_owned),
            notify: notify.iter().map(|n| (*n).to_owned()).collect(),
            ..Route::default()
        }
    }

    fn found(config: &ResponderConfig, schedule: &str) -> Vec<String> {
        let words =
            |matchers: Vec<Matcher>| matchers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        reaching(config, schedule).into_iter().map(words).collect()
    }

    #[test]
    fn each_way_to_a_schedule_is_found_with_all_of_its_matchers() {
        let level = Level { notify: vec!["schedule:primary".into()], ..Level::default() };
        let mut parent = route(&["team=\"research\""], None, &["chat"]);
        parent.routes = vec![route(&["severity=\"page\""], Some("climb"), &[])];
        let team = Team { name: "infra".into(), fallback: vec!["schedule:backup".into()], ..Team::default() };
        let mut config = ResponderConfig {
            policies: vec![Policy { name: "climb".into(), levels: vec![level] }],
            routes: vec![parent, route(&[], None, &["schedule:other"])],
            teams: vec![team],
            ..ResponderConfig::default()
        };
        assert_eq!(found(&config, "primary"), ["team=\"research\", severity=\"page\""]);
        assert_eq!(found(&config, "backup"), ["team=\"infra\""]);
        assert_eq!(found(&config, "other"), [""], "a route that matches everything");
        assert_eq!(found(&config, "unused"), [""; 0]);
        config.teams[0].policy = Some("climb".into());
        config.fallback = vec!["schedule:backup".into()];
        assert_eq!(found(&config, "primary"), ["team=\"research\", severity=\"page\"", "team=\"infra\""]);
        assert_eq!(found(&config, "backup"), ["team=\"infra\"", ""]);
    }
}
