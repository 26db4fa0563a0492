//! Shares limited room fairly among users.

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Splits entries into those that get room and the others. Users alternate, so the user with the
/// most loses entries first. Within a user, entries of more worth come first.
pub(crate) fn fair<T, U: Ord, W: Ord>(
    wanted: Vec<T>,
    room: usize,
    user: impl Fn(&T) -> U,
    worth: impl Fn(&T) -> W,
) -> (Vec<T>, Vec<T>) {
    if wanted.len() <= room {
        return (wanted, Vec::new());
    }
    let mut wanted = wanted;
    wanted.sort_by_cached_key(|one| Reverse(worth(one)));
    let mut turns: BTreeMap<U, usize> = BTreeMap::new();
    let mut queue: Vec<(usize, T)> = Vec::with_capacity(wanted.len());
    for one in wanted {
        let turn = turns.entry(user(&one)).or_default();
        queue.push((*turn, one));
        *turn += 1;
    }
    queue.sort_by_key(|(turn, _)| *turn);
    let mut kept: Vec<T> = queue.into_iter().map(|(_, one)| one).collect();
    let left = kept.split_off(room);
    (kept, left)
}

/// The count of each user as text for the log, the largest first.
pub(crate) fn by_user(users: impl Iterator<Item = u32>) -> String {
    const NAMED: usize = 4;
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    users.for_each(|user| *counts.entry(user).or_default() += 1);
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| Reverse(*count));
    let named = counts.iter().take(NAMED).map(|(user, count)| format!("{count} of uid {user}"));
    let mut words = named.collect::<Vec<_>>().join(", ");
    if counts.len() > NAMED {
        words.push_str(", and of others");
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(wanted: &[(u32, u32)], room: usize) -> Vec<(u32, u32)> {
        let (mut kept, left) = fair(wanted.to_vec(), room, |w| w.0, |w| w.1);
        assert_eq!(kept.len() + left.len(), wanted.len());
        kept.sort_unstable();
        kept
    }

    #[test]
    fn who_has_most_gives_way() {
        let many: Vec<_> = (0..20_000).map(|n| (1, n)).collect();
        let all = [&many[..], &[(2, 0), (2, 1), (3, 0)]].concat();
        let three = [(1, 19_997), (1, 19_998), (1, 19_999)];
        assert_eq!(kept(&all, 6), [&three[..], &all[20_000..]].concat());
        assert_eq!(kept(&all, 3).iter().map(|w| w.0).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(kept(&all[20_000..], 3), [(2, 0), (2, 1), (3, 0)], "there is room for all");
        assert_eq!(kept(&many, 2), [(1, 19_998), (1, 19_999)], "of one, what is worth most");
        assert_eq!(kept(&all, 0), []);
    }

    #[test]
    fn words_of_users() {
        assert_eq!(by_user([7, 8, 7].into_iter()), "2 of uid 7, 1 of uid 8");
        assert_eq!(
            by_user([1, 2, 3, 4, 5].into_iter()),
            "1 of uid 1, 1 of uid 2, 1 of uid 3, 1 of uid 4, and of others"
        );
    }

    proptest::proptest! {
        #[test]
        fn nobody_has_two_more_than_one_who_waits(wanted: Vec<(u8, u8)>, room in 0_usize..50) {
            let (kept, left) = fair(wanted.clone(), room, |w| w.0, |w| w.1);
            proptest::prop_assert_eq!(kept.len(), wanted.len().min(room));
            let of = |user: u8| kept.iter().filter(|w| w.0 == user).count();
            for waits in &left {
                proptest::prop_assert!(kept.iter().all(|w| of(w.0) <= of(waits.0) + 1));
                proptest::prop_assert!(kept.iter().all(|w| w.0 != waits.0 || w.1 >= waits.1));
            }
        }
    }
}
